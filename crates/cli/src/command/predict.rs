//! `volley predict`.

use std::io::Read;

use anyhow::Context;
use futures::TryStreamExt;
use serde_json::{Value, json};
use volley_client::Client;

use super::{explain, object};
use crate::args::Predict;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Predict) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    let mut parameters = object(command.parameters);
    if let Some(input) = &command.input {
        let inputs: Value =
            serde_json::from_str(&read(input)?).context("--input is not valid JSON")?;
        let body = json!({ "inputs": inputs, "parameters": parameters });
        let answer = client
            .predict(&command.model, &body)
            .await
            .map_err(explain)?;
        return out.json(&answer);
    }
    let prompt = match command.prompt.as_deref() {
        Some("-") => read("-")?,
        Some(prompt) => prompt.to_owned(),
        None => anyhow::bail!("give a prompt, or --input for a tensor model"),
    };
    parameters.insert("prompt".to_owned(), prompt.into());
    let parameters = Value::Object(parameters);
    if command.json {
        let body = json!({ "parameters": parameters });
        let answer = client
            .predict(&command.model, &body)
            .await
            .map_err(explain)?;
        return out.json(&answer);
    }
    let mut texts = client
        .stream(&command.model, &parameters)
        .await
        .map_err(explain)?;
    while let Some(text) = texts.try_next().await.map_err(explain)? {
        out.raw(text.as_bytes())?;
    }
    out.line("")
}

/// Reads an argument: `-` is standard input, `@file` is the content of a file, anything else is the
/// value.
fn read(input: &str) -> anyhow::Result<String> {
    if input == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("reading standard input")?;
        return Ok(text);
    }
    match input.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("reading {path}")),
        None => Ok(input.to_owned()),
    }
}
