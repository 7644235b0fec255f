//! `volley drain` and `volley undrain`.

use std::time::Duration;

use anyhow::bail;
use tokio::time::Instant;
use volley_client::{Client, DrainInfo};

use super::explain;
use crate::args::ops::{Drain, DrainTarget};
use crate::terminal::Terminal;

/// Interval between status requests.
const LOOK: Duration = Duration::from_millis(500);
/// Interval between progress lines while nothing changes.
const PRINT: Duration = Duration::from_secs(5);

pub(crate) async fn run(client: &Client, drain: Drain) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    let kind = drain.node.kind.as_deref();
    let asked = client.drain(&drain.node.node, kind, drain.force).await;
    let mut now = asked.map_err(explain)?;
    out.line(&sentence(&now))?;
    if !drain.wait {
        return Ok(());
    }
    let by = Instant::now() + drain.timeout;
    let mut printed = Instant::now();
    while now.state != "drained" {
        if let Some(blocked) = blocked(&now) {
            bail!("{blocked}");
        }
        if by <= Instant::now() {
            bail!(
                "{}; not drained within {}; draining continues: {}",
                sentence(&now),
                humantime::format_duration(drain.timeout),
                advice(&now),
            );
        }
        tokio::time::sleep(LOOK).await;
        // A failed request is retried: the called coordinator may be the one that is drained.
        let Ok(status) = client.status().await else {
            continue;
        };
        let same = |other: &DrainInfo| (&other.kind, &other.node) == (&now.kind, &now.node);
        match status.drains.into_iter().find(same) {
            Some(found) => {
                if found != now || PRINT <= printed.elapsed() {
                    out.line(&sentence(&found))?;
                    printed = Instant::now();
                }
                now = found;
            }
            None => bail!(
                "{} {} was returned to service by another command",
                now.kind,
                now.node
            ),
        }
    }
    Ok(())
}

pub(crate) async fn undo(client: &Client, node: DrainTarget) -> anyhow::Result<()> {
    let done = client.undrain(&node.node, node.kind.as_deref()).await;
    let done = done.map_err(explain)?;
    Terminal::stdout().line(&format!("{} {} works again", done.kind, done.node))
}

fn sentence(drain: &DrainInfo) -> String {
    let mut left = Vec::new();
    if !drain.models.is_empty() {
        left.push(format!("holds {} yet", drain.models.join(", ")));
    }
    if drain.active != 0 {
        left.push(format!("{} streams run", drain.active));
    }
    let left = match left.is_empty() {
        true => String::new(),
        false => format!(": {}", left.join(", ")),
    };
    format!("{} {} is {}{left}", drain.kind, drain.node, drain.state)
}

/// Why the drain cannot finish in the current state of the cluster, and what to do. `None` if it
/// can.
fn blocked(drain: &DrainInfo) -> Option<String> {
    if drain.blocked.is_empty() {
        return None;
    }
    let reasons = drain.blocked.iter();
    let reasons: Vec<_> = reasons
        .map(|blocked| format!("  {}: {}", blocked.model, blocked.reason))
        .collect();
    Some(format!(
        "{} {} cannot be drained now; it stays in draining, and continues once other workers can \
         hold:\n{}\nAdd a worker that can hold them, undeploy them, add --force to unload them \
         anyway, or run `volley undrain {}`",
        drain.kind,
        drain.node,
        reasons.join("\n"),
        drain.node,
    ))
}

fn advice(drain: &DrainInfo) -> &'static str {
    match (drain.kind.as_str(), drain.models.is_empty()) {
        ("worker", false) => {
            "its models need memory on other workers; add a worker, or add --force to unload them \
             anyway"
        }
        _ => "its streams have not ended",
    }
}

/// The state of a node in a table. A requested drain takes precedence over the liveness.
pub(crate) fn state(liveness: &str, drain: Option<&str>) -> String {
    match (liveness, drain) {
        ("alive", Some(drain)) => drain.to_owned(),
        (liveness, Some(drain)) => format!("{liveness}, {drain}"),
        (liveness, None) => liveness.to_owned(),
    }
}
