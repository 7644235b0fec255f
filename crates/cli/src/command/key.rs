//! `volley key` and `volley audit`.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::bail;
use serde_json::{Value, json};
use volley_client::Client;
use volley_security::audit;
use volley_security::key::KeyText;

use super::explain;
use crate::args::{Key, KeyQuota};
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Key) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    match command {
        Key::Create {
            name,
            role,
            models,
            tenant,
            expires_in,
            quota,
            json,
        } => {
            let body = json!({
                "name": name,
                "role": role,
                "models": Some(models).filter(|models| !models.is_empty()),
                "tenant": tenant,
                "expires_in_s": expires_in.map(|span| span.as_secs()),
                "limits": body_of(&quota),
            });
            let created = client.create_key(&body).await.map_err(explain)?;
            if json {
                return out.json(&created);
            }
            show_once(&mut out, &created)
        }
        Key::List { json } => {
            let keys = client.keys().await.map_err(explain)?;
            if json {
                return out.json(&keys["keys"]);
            }
            list(&mut out, &keys)
        }
        Key::Rotate { id, grace } => {
            let rotated = client.rotate_key(&id, grace).await.map_err(explain)?;
            show_once(&mut out, &rotated)
        }
        Key::SetQuota { id, quota } => {
            let key = client.limit_key(&id, &body_of(&quota)).await;
            let key = key.map_err(explain)?;
            out.line(&format!("key {id} may use: {}", allowance(&key)))
        }
        Key::Revoke { id } => {
            client.revoke_key(&id).await.map_err(explain)?;
            out.line(&format!("key {id} is revoked"))
        }
        Key::Bootstrap => bail!("a bootstrap key is made without a cluster"),
    }
}

fn body_of(quota: &KeyQuota) -> Value {
    json!({
        "requests_per_minute": quota.requests_per_minute,
        "tokens_per_minute": quota.tokens_per_minute,
        "max_streams": quota.max_streams,
    })
}

/// A short description of the limits of `key`.
fn allowance(key: &Value) -> String {
    let limit = |name: &str, unit: &str| Some(format!("{} {unit}", key["limits"][name].as_u64()?));
    let limits = [
        limit("requests_per_minute", "requests/min"),
        limit("tokens_per_minute", "tokens/min"),
        limit("max_streams", "streams"),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    match limits.is_empty() {
        true => "no limits".to_owned(),
        false => limits.join(", "),
    }
}

/// Prints a new bootstrap key.
pub(crate) fn bootstrap() -> anyhow::Result<()> {
    let (_, key) = KeyText::create()?;
    Terminal::stdout().line(key.reveal())
}

/// Verifies an audit log and prints the result.
pub(crate) fn verify_audit(file: &Path) -> anyhow::Result<()> {
    let checked = audit::verify(file)?;
    let mut out = Terminal::stdout();
    if let Some((_, before)) = checked.files.split_last()
        && !before.is_empty()
    {
        let names: Vec<_> = before.iter().map(|it| it.display().to_string()).collect();
        out.line(&format!("it continues {}", names.join(", ")))?;
    }
    if let Some(behind) = &checked.behind {
        out.line(&format!(
            "it begins after entry {}, which is not in this file and must have the hash {}",
            behind.seq, behind.hash
        ))?;
    }
    if checked.torn {
        out.line("its last line is incomplete: it is being written, or was truncated or changed")?;
    }
    out.line(&format!(
        "the chain is valid; its last entry is {} with the hash {}",
        checked.head.seq, checked.head.hash
    ))
}

/// Prints the key to standard output, so that it can be piped, and the notes about it to standard
/// error.
fn show_once(out: &mut Terminal, key: &Value) -> anyhow::Result<()> {
    let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
    Terminal::stderr().line(&format!(
        "key {} ({}); it is shown only once and not stored:",
        text("id"),
        text("role")
    ))?;
    out.line(&text("key"))
}

fn list(out: &mut Terminal, keys: &Value) -> anyhow::Result<()> {
    let empty = Vec::new();
    let keys = keys["keys"].as_array().unwrap_or(&empty);
    let rows: Vec<_> = keys.iter().map(row).collect();
    let head = [
        "KEY", "NAME", "ROLE", "MODELS", "TENANT", "LIMITS", "EXPIRES",
    ];
    out.table(&head, &rows)
}

fn row(key: &Value) -> Vec<String> {
    let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
    let models: Vec<_> = key["models"].as_array().into_iter().flatten().collect();
    let models: Vec<_> = models.iter().filter_map(|model| model.as_str()).collect();
    let expires = match (key["expired"].as_bool(), key["expires_ms"].as_u64()) {
        (Some(true), _) => "expired".to_owned(),
        (_, Some(ms)) => {
            let end = UNIX_EPOCH + Duration::from_millis(ms);
            humantime::format_rfc3339_seconds(end).to_string()
        }
        (_, None) => "never".to_owned(),
    };
    vec![
        text("id"),
        text("name"),
        text("role"),
        if models.is_empty() {
            "all".to_owned()
        } else {
            models.join(", ")
        },
        text("tenant"),
        allowance(key),
        expires,
    ]
}
