//! What is lost when nodes are: the leader (P2), most coordinators (P3), a worker (P4), and every
//! node in its turn (P8).

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;

use super::client::{Answer, PendingRequest, ask};
use super::stage::Stage;
use super::{Figure, Scale, quantile};
use crate::callers::Callers;
use crate::cluster::Cluster;
use crate::{PATIENCE, until};

/// Predictions beside a lost majority.
const PREDICTIONS: usize = 500;
/// Requests of each kind that run when a worker dies.
const CROWD: usize = 60;
const WORKERS: usize = 3;
/// An answer begins after this long where a worker is to die before that. All are asked meanwhile.
const BEGINS_MS: u32 = 3_000;
/// Chunks of a stream that runs when a worker dies, and between two of them: longer than that.
const CHUNKS: u32 = 250;
const CHUNK_MS: u32 = 20;
/// Both are so many times as long beside other tests.
const BUSY: u32 = 2;

/// A cluster whose model runs on every worker.
async fn drilled(coordinators: usize, workers: usize) -> Cluster {
    let mut cluster = Cluster::new(coordinators, workers);
    cluster.with_the_usual_write_timeout();
    cluster.run().await;
    let body = json!({
        "name": "drill", "function_name": "fake", "parameters": { "capacity": CROWD * 4 },
    });
    let replicas = u32::try_from(workers).unwrap_or(u32::MAX);
    cluster.deploy(&body, replicas).await;
    cluster
}

/// Leaders that are killed (P2).
///
/// # Panics
/// When the cluster does not come back.
pub async fn leader(scale: &Scale) -> Figure {
    let mut cluster = drilled(3, 1).await;
    let (mut gaps, mut written) = (Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        let leader = cluster.wait_for_leader().await;
        let client = cluster.client((leader + 1) % 3);
        let (before, after) = (format!("b{round}"), format!("a{round}"));
        // A machine that has just elected may do so again.
        until("it takes writes", || async {
            client.register_text_model(&before).await.ok()
        })
        .await;
        cluster.coordinators[leader].kill().await;
        let killed = Instant::now();
        // A write that was lost with its answer may stand already: its name is taken then, and
        // its second version is as good a write as the first.
        until("writes resume", || async {
            client.register_text_model(&after).await.ok()
        })
        .await;
        gaps.push(killed.elapsed().as_secs_f64());
        written.extend([before, after]);
        cluster.coordinators[leader].start();
        cluster.wait_for_leader().await;
        cluster.wait_until_deployed(leader, "drill").await;
    }
    let lost = lost(&cluster, &written).await;
    let p50 = quantile(&mut gaps, 500);
    let most = quantile(&mut gaps, 1_000);
    let p99 = quantile(&mut gaps, 990);
    Figure {
        promise: "P2: a leader that is killed: writes resume within 3 s p99",
        told: format!(
            "{} leaders killed: {p50:.2} s p50, {p99:.2} s p99, {most:.2} s at most; {lost} of {} acknowledged \
             writes lost",
            gaps.len(),
            written.len()
        ),
        held: lost == 0 && p99 <= 3.0 * scale.slack.min(3.0),
    }
}

/// How many of these models some coordinator does not have in the end.
async fn lost(cluster: &Cluster, written: &[String]) -> usize {
    let mut missing = 0;
    for coordinator in 0..cluster.coordinators.len() {
        let there = |status: &volley_client::Status, name: &String| {
            status.models.iter().any(|model| model.id == *name)
        };
        let client = cluster.client(coordinator);
        let by = Instant::now() + PATIENCE;
        loop {
            let status = client.status().await;
            let absent = status.map_or(written.len(), |status| {
                written.iter().filter(|name| !there(&status, name)).count()
            });
            if absent == 0 || by < Instant::now() {
                missing = missing.max(absent);
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    missing
}

/// Most coordinators are killed (P3).
///
/// # Panics
/// When nothing answers any more.
pub async fn quorum(scale: &Scale) -> Figure {
    let mut cluster = drilled(3, 2).await;
    let leader = cluster.wait_for_leader().await;
    cluster.coordinators[leader].kill().await;
    cluster.coordinators[(leader + 1) % 3].kill().await;
    let left = (leader + 2) % 3;
    let address = cluster.coordinators[left].http.clone();
    let began = Instant::now();
    let script = json!({ "prompt": "x", "chunks": 3, "delay_ms": 5 });
    let mut failed = 0;
    let predictions = (PREDICTIONS as f64 / scale.slack.min(5.0)) as usize;
    for _ in 0..predictions / 10 {
        let ten = (0..10).map(|_| async {
            match ask(&address, "drill", &script).await {
                Ok(asked) => asked.answer().await.whole,
                Err(_) => false,
            }
        });
        failed += join_all(ten).await.into_iter().filter(|ok| !ok).count();
    }
    let lasted = began.elapsed();
    let asked = Instant::now();
    let refused = cluster.client(left).register_text_model("late").await;
    let after = asked.elapsed().as_secs_f64();
    let is_refusal = matches!(
        refused,
        Err(volley_client::ClientError::Refused { status: 503, .. })
    );
    Figure {
        promise: "P3: most coordinators lost: no prediction fails on the one that is left, a \
                  write is refused within 2 s",
        told: format!(
            "{failed} of {predictions} predictions failed within {:.1} s of the loss; a write \
             was {} after {after:.2} s",
            lasted.as_secs_f64(),
            if is_refusal {
                "refused (503)"
            } else {
                "**not refused**"
            }
        ),
        held: failed == 0 && is_refusal && after <= 2.2 * scale.slack.min(2.0),
    }
}

/// What has come of requests whose worker may have died.
#[derive(Default)]
struct Struck {
    /// Ran on the worker that died, before their first chunk and after it.
    before: usize,
    after: usize,
    whole: usize,
    failed: usize,
    told: usize,
    silent: usize,
    told_s: Vec<f64>,
}

/// Workers that are killed under requests that wait for their first chunk, and under streams (P4).
///
/// # Panics
/// When the cluster does not come back.
pub async fn lost_worker(scale: &Scale) -> Figure {
    let mut stage = Stage {
        cluster: drilled(1, WORKERS).await,
    };
    let mut struck = Struck::default();
    let times = if scale.slack == 1.0 { 1 } else { BUSY };
    for round in 0..scale.rounds {
        let victim = round % WORKERS;
        strike(&mut stage, victim, times, &mut struck).await;
        stage.cluster.workers[victim].start();
        let back = |status: &volley_client::Status| {
            let ready = status.models.iter().map(|model| model.ready_replicas);
            ready.sum::<u32>() as usize == WORKERS
        };
        stage.cluster.wait(0, "all replicas are back", back).await;
    }
    let asked = struck.whole + struck.failed;
    let p99 = quantile(&mut struck.told_s, 990);
    // Of all that were to be retried, not of all that were asked.
    let retried = 1.0 - struck.failed as f64 / struck.before.max(1) as f64;
    Figure {
        promise: "P4: a worker that is killed: before the first chunk at least 99.9 % are \
                  retried; after it one error within 1 s, no silent end",
        told: format!(
            "{} workers killed under {asked} requests that waited for their first chunk, {} of \
             them on those workers: {:.1} % retried; and under {} streams there: {} told in \
             {p99:.2} s p99, {} silent ends",
            scale.rounds,
            struck.before,
            retried * 100.0,
            struck.after,
            struck.told,
            struck.silent
        ),
        held: 0 < struck.before
            && 0 < struck.after
            && 0.999 <= retried
            && struck.silent == 0
            && struck.told == struck.after
            && p99 <= scale.slack.min(3.0),
    }
}

async fn strike(stage: &mut Stage, victim: usize, times: u32, struck: &mut Struck) {
    let address = stage.address().to_owned();
    let runs = json!({ "prompt": "x", "chunks": CHUNKS * times, "delay_ms": CHUNK_MS });
    let open = |script: serde_json::Value| {
        let address = address.clone();
        async move { ask(&address, "drill", &script).await.expect("open") }
    };
    let mut streams: Vec<PendingRequest> = join_all((0..CROWD).map(|_| open(runs.clone()))).await;
    join_all(streams.iter_mut().map(PendingRequest::first)).await;
    let after = stage.active("drill", Some(victim)).await as usize;
    let waits = json!({ "prompt": "x", "chunks": 3, "first_delay_ms": BEGINS_MS * times });
    let waiting = join_all((0..CROWD).map(|_| open(waits.clone()))).await;
    // All have been sent to a worker.
    until("all run", || async {
        (2 * CROWD <= stage.active("drill", None).await as usize).then_some(())
    })
    .await;
    let both = until("the worker has its part", || async {
        let there = stage.active("drill", Some(victim)).await as usize;
        (after < there).then_some(there)
    })
    .await;
    stage.cluster.workers[victim].kill().await;
    let killed = Instant::now();
    struck.before += both - after;
    struck.after += after;
    let streams = join_all(streams.into_iter().map(|asked| async move {
        let answer = asked.answer().await;
        (answer, killed.elapsed().as_secs_f64())
    }));
    let waiting = join_all(waiting.into_iter().map(PendingRequest::answer));
    let (streams, waiting) = tokio::join!(streams, waiting);
    for answer in waiting {
        match is_whole(&answer) {
            true => struck.whole += 1,
            false => struck.failed += 1,
        }
    }
    for (answer, after) in streams {
        if answer.text.contains("\"error\"") {
            struck.told += 1;
            struck.told_s.push(after);
        } else if !answer.whole {
            struck.silent += 1;
        }
    }
}

fn is_whole(answer: &Answer) -> bool {
    answer.status == 200 && answer.whole && !answer.text.contains("\"error\"")
}

/// Every node is restarted in its turn, again and again (P8).
///
/// # Panics
/// When a node does not come back.
pub async fn restarts(scale: &Scale) -> Figure {
    let mut cluster = Cluster::start(3, 3).await;
    cluster
        .wait(0, "all workers", |status| status.workers.len() == 3)
        .await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 2).await;
    let callers = Callers::start(&cluster, &["drill"], 6);
    for _ in 0..scale.restarts {
        round_of_restarts(&mut cluster, &callers).await;
    }
    let tally = callers.stop().await;
    Figure {
        promise: "P8: every node is restarted in turn, ten rounds, and no request fails",
        told: format!(
            "{} rounds of 6 nodes under {} requests: {} failed{}",
            scale.restarts,
            tally.answered + tally.failures.len(),
            tally.failures.len(),
            tally
                .failures
                .first()
                .map_or_else(String::new, |why| format!(" ({why})"))
        ),
        held: tally.failures.is_empty() && 0 < tally.answered,
    }
}

/// Stops and starts every node, one after the other, and waits each time until all is back.
async fn round_of_restarts(cluster: &mut Cluster, callers: &Callers) {
    for index in 0..cluster.coordinators.len() {
        cluster.coordinators[index].stop().await;
        callers.go_on(10).await;
        cluster.coordinators[index].start();
        // As whoever restarts a cluster does.
        let client = cluster.client(index);
        let ready = || async { client.ready().await.ok().filter(|ready| *ready) };
        until("it says that it is ready", ready).await;
        for index in 0..cluster.coordinators.len() {
            cluster.wait_until_deployed(index, "drill").await;
        }
        cluster.wait_for_leader().await;
    }
    for index in 0..cluster.workers.len() {
        let id = cluster.workers[index].name.clone();
        cluster.workers[index].stop().await;
        callers.go_on(10).await;
        cluster.workers[index].start();
        for coordinator in 0..cluster.coordinators.len() {
            cluster
                .wait(
                    coordinator,
                    "it is back, and so are the replicas",
                    |status| {
                        let alive = status
                            .workers
                            .iter()
                            .any(|worker| worker.id == id && worker.liveness == "alive");
                        alive && status.models[0].ready_replicas == 2
                    },
                )
                .await;
        }
    }
}
