//! `volley connector`.

use serde_json::json;
use volley_client::Client;

use super::{explain, object};
use crate::args::Connector;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Connector) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    match command {
        Connector::Create {
            id,
            provider,
            endpoint,
            model,
            credential,
            parameters,
            test,
        } => {
            let body = json!({
                "connector_id": id,
                "provider": provider,
                "url": endpoint,
                "model": model,
                "credential": credential,
                "parameters": object(parameters),
            });
            let created = client.new_connector(&body, test).await.map_err(explain)?;
            for warning in &created.warnings {
                Terminal::stderr().line(&format!("warning: {warning}"))?;
            }
            out.line(&created.connector_id)
        }
        Connector::Delete { id } => {
            client.delete_connector(&id).await.map_err(explain)?;
            out.line(&format!("connector {id} is deleted"))
        }
        Connector::List => {
            out.json(&client.connectors(None).await.map_err(explain)?["hits"]["hits"])
        }
        Connector::Show { id } => out.json(&client.connectors(Some(&id)).await.map_err(explain)?),
    }
}
