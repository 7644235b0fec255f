//! `volley cluster`.

use serde_json::Value;
use volley_client::{Client, Status};

use super::explain;
use crate::args::ops::Cluster;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Cluster) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    let changed = match command {
        Cluster::Members { json } => {
            let status = client.status().await.map_err(explain)?;
            return if json {
                out.json(&status.coordinators)
            } else {
                show(&mut out, &status)
            };
        }
        Cluster::Add { id, address } => client.join(id, &address).await,
        Cluster::Remove { id } => client.leave(id).await,
        Cluster::Replace { old, id, address } => client.replace(old, id, &address).await,
        Cluster::TransferLeader { to } => {
            let answer = client.transfer_leadership(to).await.map_err(explain)?;
            return out.line(&format!(
                "coordinator {} is now the leader",
                answer["leader"]
            ));
        }
    };
    table(&mut out, &changed.map_err(explain)?)
}

/// Prints the coordinators of a status.
pub(crate) fn show(out: &mut Terminal, status: &Status) -> anyhow::Result<()> {
    let rows: Vec<_> = status
        .coordinators
        .iter()
        .map(|node| {
            let role = match (Some(node.id) == status.node.leader, node.voter) {
                (true, _) => "leader",
                (false, true) => "voter",
                (false, false) => "learner",
            };
            let dash = || "-".to_owned();
            vec![
                node.id.to_string(),
                super::drain::state(role, node.drain.as_deref()),
                node.address.clone(),
                node.level.map_or_else(dash, |level| level.to_string()),
                node.version
                    .clone()
                    .filter(|version| !version.is_empty())
                    .unwrap_or_else(dash),
                node.active_streams
                    .map_or_else(dash, |streams| streams.to_string()),
            ]
        })
        .collect();
    let head = [
        "COORDINATOR",
        "ROLE",
        "ADDRESS",
        "LEVEL",
        "VERSION",
        "STREAMS",
    ];
    out.table(&head, &rows)
}

/// Prints the coordinators after a membership change.
fn table(out: &mut Terminal, changed: &Value) -> anyhow::Result<()> {
    let members = changed["coordinators"].as_array();
    let rows: Vec<_> = members
        .into_iter()
        .flatten()
        .map(|member| {
            let role = if member["voter"] == true {
                "voter"
            } else {
                "learner"
            };
            let address = member["address"].as_str().unwrap_or_default();
            vec![
                member["id"].to_string(),
                role.to_owned(),
                address.to_owned(),
            ]
        })
        .collect();
    out.table(&["COORDINATOR", "ROLE", "ADDRESS"], &rows)
}
