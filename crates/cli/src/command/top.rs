//! `volley top`: the current load of the cluster. On a terminal, the screen is redrawn; in a pipe,
//! blocks are appended.

mod rates;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use volley_client::{Client, Status};

use super::{explain, gpus};
use crate::terminal::Terminal;
use rates::{Counts, Rates};

/// Moves the cursor home and clears below it, which flickers less than clearing the screen.
const HOME: &[u8] = b"\x1b[H\x1b[J";
const CLEAR: &[u8] = b"\x1b[2J";

/// Shows the cluster every `interval`, `count` times or until it is stopped.
pub(crate) async fn run(
    clients: &[(String, Client)],
    interval: Duration,
    count: Option<u32>,
) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    let mut out = Terminal::stdout();
    if is_terminal {
        out.raw(CLEAR)?;
    }
    let (mut before, mut since) = (read(clients).await?.1, Instant::now());
    let mut shown = 0;
    while count.is_none_or(|count| shown < count) {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        let (status, now) = read(clients).await?;
        let rates = now.since(&before, since.elapsed());
        (before, since) = (now, Instant::now());
        if is_terminal {
            out.raw(HOME)?;
        }
        show(&mut out, &status, &rates, clients.len())?;
        shown += 1;
        if !is_terminal && count != Some(shown) {
            out.line("")?;
        }
    }
    Ok(())
}

/// The status from the first coordinator that responds, and the counts of all that respond.
async fn read(clients: &[(String, Client)]) -> anyhow::Result<(Status, Counts)> {
    let asked = clients
        .iter()
        .map(|(_, client)| async move { Ok((client.status().await?, client.metrics().await?)) });
    let mut answers = futures::future::join_all(asked).await;
    let mut counts = Counts::default();
    for (_, metrics) in answers.iter().flatten() {
        counts.add(metrics);
    }
    let first = answers.iter().position(Result::is_ok).unwrap_or(0);
    match answers.swap_remove(first) {
        Ok((status, _)) => Ok((status, counts)),
        Err(error) => Err(explain(error)),
    }
}

fn show(out: &mut Terminal, status: &Status, rates: &Rates, asked: usize) -> anyhow::Result<()> {
    let leader = status.node.leader;
    let leader = leader.map_or_else(|| "none".to_owned(), |leader| leader.to_string());
    out.line(&format!(
        "{:.1} requests/s, {:.1} failed/s, {:.0} chunks/s through {asked} of {} coordinators; \
         leader {leader}, revision {}",
        rates.all.requests,
        rates.all.failures,
        rates.all.chunks,
        status.coordinators.len(),
        status.registry_revision,
    ))?;
    out.line("")?;
    let models: Vec<_> = status
        .models
        .iter()
        .map(|model| line(status, rates, model))
        .collect();
    let head = [
        "MODEL", "STATE", "REPLICAS", "REQ/S", "FAILED/S", "CHUNKS/S", "RUN", "WAIT", "TTFT P50",
        "P95",
    ];
    out.table(&head, &models)?;
    out.line("")?;
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
                worker.replicas.len().to_string(),
                sum(|replica| replica.active).to_string(),
                sum(|replica| replica.queued).to_string(),
                sum(|replica| replica.capacity).to_string(),
                format!("{} MiB", worker.memory_bytes >> 20),
                gpus(&worker.gpus),
            ]
        })
        .collect();
    out.table(
        &[
            "WORKER", "STATE", "REPLICAS", "RUN", "WAIT", "ROOM", "MEMORY", "GPUS",
        ],
        &workers,
    )
}

fn line(status: &Status, rates: &Rates, model: &volley_client::ModelSummary) -> Vec<String> {
    let replicas = status.workers.iter().flat_map(|worker| &worker.replicas);
    let own = replicas.filter(|replica| replica.model == model.id);
    let (run, wait) = own.fold((0, 0), |(run, wait), replica| {
        (run + replica.active, wait + replica.queued)
    });
    let rate = rates.model(&model.id);
    let millis = |seconds: Option<f64>| match seconds {
        Some(seconds) if seconds.is_finite() => format!("{:.0} ms", seconds * 1_000.0),
        Some(_) => "> 1 m".to_owned(),
        None => "-".to_owned(),
    };
    vec![
        model.id.clone(),
        model.state.clone(),
        format!("{}/{}", model.ready_replicas, model.desired_replicas),
        format!("{:.1}", rate.requests),
        format!("{:.1}", rate.failures),
        format!("{:.0}", rate.chunks),
        run.to_string(),
        wait.to_string(),
        millis(rate.first_chunk(0.5)),
        millis(rate.first_chunk(0.95)),
    ]
}
