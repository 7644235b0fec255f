//! `volley status`.

use volley_client::{Client, Status};

use super::model::serving;
use super::{explain, gpus};
use crate::terminal::Terminal;

pub(crate) async fn run(client: &Client, json: bool) -> anyhow::Result<()> {
    let status = client.status().await.map_err(explain)?;
    let mut out = Terminal::stdout();
    if json {
        out.json(&status)
    } else {
        show(&mut out, &status)
    }
}

fn show(out: &mut Terminal, status: &Status) -> anyhow::Result<()> {
    let leader = status
        .node
        .leader
        .map_or_else(|| "none".to_owned(), |leader| leader.to_string());
    out.line(&format!(
        "coordinator {} ({}), leader {leader}, term {}, registry revision {}, {} active streams",
        status.node.id,
        status.node.role,
        status.node.term,
        status.registry_revision,
        status.active_streams,
    ))?;
    if let Some(held_back) = upgrade(status) {
        out.line(&held_back)?;
    }
    if let Some(placement) = status.placement.as_ref() {
        out.line(&placed(placement))?;
    }
    out.line("")?;
    super::cluster::show(out, status)?;
    out.line("")?;
    show_workers(out, status)?;
    out.line("")?;
    show_models(out, status)
}

/// Prints a row for each worker.
fn show_workers(out: &mut Terminal, status: &Status) -> anyhow::Result<()> {
    let workers: Vec<_> = status
        .workers
        .iter()
        .map(|worker| {
            let sum = |of: fn(&volley_client::ReplicaInfo) -> u32| -> u32 {
                worker.replicas.iter().map(of).sum()
            };
            vec![
                worker.id.clone(),
                super::drain::state(&worker.liveness, worker.drain.as_deref()),
                worker.address.clone(),
                worker.replicas.len().to_string(),
                sum(|replica| replica.active).to_string(),
                sum(|replica| replica.queued).to_string(),
                format!("{} MiB", worker.memory_bytes >> 20),
                models(worker),
                gpus(&worker.gpus),
            ]
        })
        .collect();
    let head = [
        "WORKER", "STATE", "ADDRESS", "REPLICAS", "ACTIVE", "QUEUED", "MEMORY", "MODELS", "GPUS",
    ];
    out.table(&head, &workers)
}

/// Prints a row for each model, and below them the failures with the next command.
fn show_models(out: &mut Terminal, status: &Status) -> anyhow::Result<()> {
    let models: Vec<_> = status
        .models
        .iter()
        .map(|model| {
            let failure = model.failure.as_ref();
            let previous = failure.and_then(|failure| failure.serving_version);
            vec![
                model.id.clone(),
                model.version.map_or_else(
                    || "-".to_owned(),
                    |version| serving(&version.to_string(), previous),
                ),
                model.state.clone(),
                format!("{}/{}", model.ready_replicas, model.desired_replicas),
            ]
        })
        .collect();
    out.table(&["MODEL", "VERSION", "STATE", "REPLICAS"], &models)?;
    for model in &status.models {
        if let Some(failure) = &model.failure {
            out.line("")?;
            out.line(&format!("{}: {}", model.id, failure.message))?;
            out.line(&format!("  next: `{}`", failure.next_command))?;
        }
    }
    Ok(())
}

/// The placement of replicas and the running migrations.
fn placed(placement: &volley_client::PlacementInfo) -> String {
    let even = match placement.rebalance {
        true => "rebalanced",
        false => "not rebalanced",
    };
    format!(
        "placement: {}, {even}, {} migrating replicas, {} unschedulable",
        placement.strategy, placement.migrating_replicas, placement.unschedulable_replicas,
    )
}

/// A note while coordinators have different feature levels, or while the registry is held at a
/// lower level.
pub(crate) fn upgrade(status: &Status) -> Option<String> {
    let levels = status.coordinators.iter().filter_map(|node| node.level);
    let (least, most) = (levels.clone().min()?, levels.max()?);
    let behind = status.coordinators.iter();
    let behind = behind.filter(|node| node.level.is_some_and(|level| level < most));
    let behind: Vec<_> = behind.map(|node| node.id.to_string()).collect();
    if least == most {
        return None;
    }
    Some(format!(
        "upgrade unfinished: coordinators {} run at level {least}, the others at {most}; commands \
         that need level {most} are rejected until all coordinators have it",
        behind.join(", "),
    ))
}

/// The memory that models reserve of a worker's budget, and the number of evicted replicas.
fn models(worker: &volley_client::WorkerInfo) -> String {
    let bytes: u64 = worker
        .replicas
        .iter()
        .map(|replica| replica.memory_bytes)
        .sum();
    let taken = format!("{}/{} MiB", bytes >> 20, worker.memory_budget_bytes >> 20);
    match worker
        .replicas
        .iter()
        .filter(|replica| replica.evicted)
        .count()
    {
        0 => taken,
        evicted => format!("{taken}, {evicted} evicted"),
    }
}
