//! `volley pipeline`.

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use volley_client::Client;

use super::explain;
use crate::args::Pipeline;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Pipeline) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    match command {
        Pipeline::Set {
            name,
            file,
            revision,
        } => {
            let body = read(&file)?;
            let written = client.put_pipeline(&name, &body, revision).await;
            let revision = written.map_err(explain)?["revision"].clone();
            out.line(&format!("pipeline {name} is at revision {revision}"))
        }
        Pipeline::Delete { name, revision } => {
            let deleted = client.delete_pipeline(&name, revision).await;
            deleted.map_err(explain)?;
            out.line(&format!("pipeline {name} is deleted"))
        }
        Pipeline::List { json } => {
            let pipelines = client.pipelines(None).await.map_err(explain)?;
            if json {
                return out.json(&pipelines["pipelines"]);
            }
            list(&mut out, &pipelines)
        }
        Pipeline::Show { name } => {
            let pipeline = client.pipelines(Some(&name)).await.map_err(explain)?;
            out.json(&pipeline)
        }
    }
}

/// Reads a definition: TOML if the file name ends in `.toml`, otherwise JSON. `-` is standard
/// input.
fn read(file: &Path) -> anyhow::Result<Value> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin()
            .read_to_string(&mut text)
            .context("reading standard input")?;
    } else {
        text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    }
    let is_toml = file.extension().is_some_and(|ending| ending == "toml");
    match is_toml {
        true => {
            toml::from_str(&text).with_context(|| format!("{} is not valid TOML", file.display()))
        }
        false => serde_json::from_str(&text).context("the definition is not valid JSON"),
    }
}

fn list(out: &mut Terminal, pipelines: &Value) -> anyhow::Result<()> {
    let pipelines = pipelines["pipelines"].as_array();
    let rows: Vec<_> = pipelines.into_iter().flatten().map(row).collect();
    let head = ["PIPELINE", "TASK", "STEPS", "STATE", "REVISION"];
    out.table(&head, &rows)
}

fn row(pipeline: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let steps = pipeline["steps"].as_array().into_iter().flatten();
    let steps: Vec<_> = steps.map(|step| text(&step["name"])).collect();
    vec![
        text(&pipeline["name"]),
        text(&pipeline["task"]),
        steps.join(", "),
        text(&pipeline["state"]),
        pipeline["revision"].to_string(),
    ]
}
