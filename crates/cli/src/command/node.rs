//! `volley node`.

use volley_client::Client;

use super::explain;
use crate::args::Node;
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, command: Node) -> anyhow::Result<()> {
    let members = match command {
        Node::Join { id, address } => client.join(id, &address).await.map_err(explain)?,
        Node::Leave { id } => client.leave(id).await.map_err(explain)?,
    };
    Terminal::stdout().json(&members)
}
