//! `volley secret`.

use std::io::Read;

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use volley_client::Client;
use volley_security::secrets::{MAX_SECRET_BYTES, MasterKeys};

use super::explain;
use crate::args::Secret;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Secret) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    match command {
        Secret::Put { name } => {
            let value = read()?;
            client.put_secret(&name, &value).await.map_err(explain)?;
            out.line(&format!(
                "secret {name} is stored; connectors name it 'secret:{name}'"
            ))
        }
        Secret::List { json } => {
            let secrets = client.secrets().await.map_err(explain)?;
            if json {
                return out.json(&secrets["secrets"]);
            }
            list(&mut out, &secrets)
        }
        Secret::Delete { name } => {
            client.delete_secret(&name).await.map_err(explain)?;
            out.line(&format!("secret {name} is deleted"))
        }
        Secret::Rewrap => {
            let done = client.rewrap_secrets().await.map_err(explain)?;
            let key = done["master_key"].as_str().unwrap_or_default();
            out.line(&format!(
                "{} secrets are now encrypted under {key}",
                done["rewrapped"]
            ))?;
            let failed = done["failed"].as_array().map_or(&[][..], Vec::as_slice);
            for failure in failed {
                let reason = failure["reason"].as_str().unwrap_or_default();
                Terminal::stderr().line(reason)?;
            }
            ensure!(
                failed.is_empty(),
                "{} secrets could not be encrypted under it",
                failed.len()
            );
            Ok(())
        }
        Secret::MasterKey => bail!("a master key is made without a cluster"),
    }
}

/// Prints a new master key.
pub(crate) fn master_key() -> anyhow::Result<()> {
    Terminal::stdout().line(&MasterKeys::generate()?)
}

/// Reads the secret from standard input, so that it appears in no command line and no shell
/// history.
fn read() -> anyhow::Result<String> {
    let limit = u64::try_from(MAX_SECRET_BYTES)? + 2;
    let mut value = String::new();
    std::io::stdin()
        .take(limit)
        .read_to_string(&mut value)
        .context("reading the secret from standard input")?;
    let value = value.trim_end_matches(['\r', '\n']).to_owned();
    ensure!(!value.is_empty(), "standard input holds no secret");
    Ok(value)
}

fn list(out: &mut Terminal, secrets: &Value) -> anyhow::Result<()> {
    let text = |secret: &Value, name: &str| secret[name].as_str().unwrap_or_default().to_owned();
    let secrets = secrets["secrets"].as_array().map_or(&[][..], Vec::as_slice);
    let rows = secrets
        .iter()
        .map(|secret| vec![text(secret, "name"), text(secret, "master_key")]);
    let rows: Vec<_> = rows.collect();
    out.table(&["SECRET", "MASTER KEY"], &rows)
}
