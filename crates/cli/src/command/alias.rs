//! `volley alias`.

use serde_json::{Value, json};
use volley_client::Client;

use super::explain;
use crate::args::Alias;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Alias) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    match command {
        Alias::Set {
            name,
            targets,
            mirror,
            percent,
            sticky,
            description,
            revision,
        } => {
            let targets = targets.into_iter();
            let targets =
                targets.map(|(model, weight)| json!({ "model": model, "weight": weight }));
            let mirror = mirror.map(|model| json!({ "model": model, "percent": percent }));
            let body = json!({
                "targets": targets.collect::<Vec<_>>(),
                "mirror": mirror,
                "sticky_header": sticky,
                "description": description,
            });
            let written = client.put_alias(&name, &body, revision).await;
            let revision = written.map_err(explain)?["revision"].clone();
            out.line(&format!("alias {name} is at revision {revision}"))
        }
        Alias::Delete { name, revision } => {
            let deleted = client.delete_alias(&name, revision).await;
            deleted.map_err(explain)?;
            out.line(&format!("alias {name} is deleted"))
        }
        Alias::List { json } => {
            let aliases = client.aliases(None).await.map_err(explain)?;
            if json {
                return out.json(&aliases["aliases"]);
            }
            list(&mut out, &aliases)
        }
        Alias::Show { name } => {
            let alias = client.aliases(Some(&name)).await.map_err(explain)?;
            out.json(&alias)
        }
    }
}

fn list(out: &mut Terminal, aliases: &Value) -> anyhow::Result<()> {
    let aliases = aliases["aliases"].as_array();
    let rows: Vec<_> = aliases.into_iter().flatten().map(row).collect();
    let head = [
        "ALIAS",
        "TARGETS",
        "MIRROR",
        "STICKS BY",
        "STATE",
        "REVISION",
    ];
    out.table(&head, &rows)
}

fn row(alias: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let targets = alias["targets"].as_array().into_iter().flatten();
    let targets = targets.map(|target| format!("{}={}", text(&target["model"]), target["weight"]));
    let targets: Vec<_> = targets.collect();
    let mirror = match &alias["mirror"] {
        Value::Null => "-".to_owned(),
        mirror => format!("{} {} %", text(&mirror["model"]), mirror["percent"]),
    };
    vec![
        text(&alias["name"]),
        targets.join(", "),
        mirror,
        text(&alias["sticky_header"]),
        text(&alias["state"]),
        alias["revision"].to_string(),
    ]
}
