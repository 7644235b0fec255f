//! Time from a cold start to readiness, and from a killed leader to the next successful write.

use std::time::{Duration, Instant};

use anyhow::Context;

use crate::process::until;
use crate::report::Table;
use crate::stats::percentile;
use crate::test_bed::{CoordinatorCluster, SingleProcess, TestBed};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the scenario: `rounds` cold starts and `rounds` failovers.
pub(crate) async fn run(bed: &TestBed, rounds: usize) -> anyhow::Result<Table> {
    let (mut ready, mut deployed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (to_ready, to_deployed) = cold_start(bed).await?;
        ready.push(to_ready);
        deployed.push(to_deployed);
    }
    let mut resumed = Vec::new();
    for _ in 0..rounds {
        resumed.push(failover(bed).await?);
    }
    let mut table = Table::new(
        &format!("Start and failover ({rounds} rounds)"),
        &["ms", "min", "p50", "max"],
    );
    for (name, mut values) in [
        (
            "`volley up`: process start to the first ready response",
            ready,
        ),
        (
            "`volley up`: process start to both demo models deployed",
            deployed,
        ),
        (
            "3 coordinators: leader killed (SIGKILL) to the next write acknowledged",
            resumed,
        ),
    ] {
        let cells =
            [0.0, 0.5, 1.0].map(|share| (percentile(&mut values, share) / 1_000_000).to_string());
        table.row(name, cells);
    }
    Ok(table)
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

async fn cold_start(bed: &TestBed) -> anyhow::Result<(u64, u64)> {
    let started = Instant::now();
    let embedded = SingleProcess::start(bed).await?;
    let client = embedded.client()?;
    until("ready", LIMIT, || async {
        client.ready().await.ok().filter(|ready| *ready)
    })
    .await?;
    let ready = nanos(started);
    until("demo models deployed", LIMIT, || async {
        let status = client.status().await.ok()?;
        let all =
            2 <= status.models.len() && status.models.iter().all(|model| model.state == "DEPLOYED");
        all.then_some(())
    })
    .await?;
    Ok((ready, nanos(started)))
}

async fn failover(bed: &TestBed) -> anyhow::Result<u64> {
    let mut cluster = CoordinatorCluster::start(bed, 3).await?;
    let leader = cluster.leader().await?;
    let survivor = (leader + 1) % 3;
    let client = cluster.client(survivor)?;
    client
        .register_text_model("before")
        .await
        .context("a write before the kill")?;
    let killed = Instant::now();
    cluster.kill(leader).await?;
    until("writes resumed", LIMIT, || async {
        client.register_text_model("after").await.ok()
    })
    .await?;
    Ok(nanos(killed))
}
