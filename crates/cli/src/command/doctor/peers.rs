//! Checks whether the coordinators in a node's file are reachable, and which nodes they are.

use std::time::Duration;

use futures::future::join_all;
use volley_flight::transport;
use volley_security::nodes::{Dialer, NodeKind};
use volley_security::tls::{CertificateFiles, NodeFiles, NodeTls};

use super::file::NodeFile;
use super::{Finding, Verdict};

/// Time limit for the response of one coordinator.
const ANSWER: Duration = Duration::from_secs(3);

/// Calls each coordinator like the node does, with the node's certificate.
pub(super) async fn check(node: &NodeFile) -> Vec<Finding> {
    let dialer = match tls(node) {
        None => Dialer::plain(),
        Some(Ok(tls)) => Dialer::tls(tls),
        // The check of the file has already reported the reason.
        Some(Err(_)) => return Vec::new(),
    };
    let mut found = join_all(named(node).iter().map(|address| call(&dialer, address))).await;
    // A coordinator may be the first one that starts; a worker needs one that runs.
    let silent = |finding: &Finding| finding.verdict == Verdict::Notice;
    if !node.is_coordinator && found.iter().all(silent) {
        for finding in &mut found {
            finding.verdict = Verdict::Bad;
        }
    }
    found
}

fn tls(node: &NodeFile) -> Option<Result<NodeTls, volley_types::PredictError>> {
    let path = |key: &str| node.path(&["security", "nodes", key]);
    let files = NodeFiles {
        own: CertificateFiles {
            certificate: path("certificate")?,
            key: path("key")?,
        },
        authority: path("authority")?,
    };
    Some(NodeTls::load(files))
}

/// The internal addresses of other coordinators.
fn named(node: &NodeFile) -> Vec<String> {
    let lists = [["cluster", "coordinators"], ["cluster", "join"]];
    let listed = lists.iter().flat_map(|keys| node.texts(keys));
    let id = node.value(&["node", "id"]).map(ToString::to_string);
    let first = node.value(&["cluster", "bootstrap"]);
    let first = first.and_then(toml::Value::as_table).into_iter().flatten();
    let others = first.filter(|(other, _)| Some(*other) != id.as_ref());
    let others = others.filter_map(|(_, address)| address.as_str());
    listed.chain(others).map(str::to_owned).collect()
}

async fn call(dialer: &Dialer, address: &str) -> Finding {
    let what = "peer";
    let bad = |detail: String, advice: &str| Finding::new(Verdict::Bad, what, detail, advice);
    let endpoint = match transport::endpoint(address, ANSWER) {
        Ok(endpoint) => endpoint,
        Err(error) => return bad(format!("{address}: {}", error.message), "write host:port"),
    };
    let tcp = tokio::time::timeout(ANSWER, tokio::net::TcpStream::connect(address)).await;
    let unheard = match tcp {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no response within {ANSWER:?}")),
    };
    if let Some(why) = unheard {
        return Finding::new(
            Verdict::Notice,
            what,
            format!("{address}: {why}"),
            "start the coordinator, correct the address, or check the network in between",
        );
    }
    let called = dialer.connect(&endpoint, NodeKind::Coordinator);
    match tokio::time::timeout(ANSWER, called).await {
        Ok(Ok(_)) => Finding::good(what, format!("{address} responds")),
        Ok(Err(error)) => bad(
            format!(
                "{address} does not respond as a coordinator: {}",
                cause(&error)
            ),
            "compare 'security.nodes' of both nodes: all nodes need certificates of one \
             authority, or none has them; compare their clocks",
        ),
        Err(_) => bad(
            format!("{address} accepted the connection and did not respond within {ANSWER:?}"),
            "check its log: the coordinator hangs, or another program uses the port",
        ),
    }
}

/// The root cause. The outer errors only state that a connection failed.
fn cause(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.last().map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests;
