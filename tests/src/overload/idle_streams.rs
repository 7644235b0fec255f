//! Many streams that are idle, and readers that do not read.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::json;

use super::client::{PendingRequest, ask, ask_small};
use super::stage::Stage;
use super::{Figure, Scale, quantile};

/// Streams that are opened at the same moment.
const OPENING: usize = 64;
/// Streams on one worker; it takes no more than 8,192 calls at a time.
const PER_WORKER: usize = 5_000;
/// What an idle stream may take of a process.
const IDLE_KIB: f64 = 96.0;
/// What a stalled client may take of all processes together.
const STALLED_KIB: f64 = 512.0;
/// Fast clients at a time, beside stalled ones.
const FAST: usize = 20;
/// Rounds of them that are measured.
const ROUNDS: usize = 25;
/// The same, where the scale is small.
const FEW_ROUNDS: usize = 5;

/// Streams that have had their first chunk and wait: what each takes.
///
/// # Panics
/// When one cannot be opened.
pub async fn idle(scale: &Scale) -> Figure {
    let workers = scale.idle.div_ceil(PER_WORKER);
    let stage = Stage::set(workers, "[requests]\nmax_concurrent = 20000\n", "").await;
    stage.deploy("quiet", PER_WORKER + 1_000).await;
    let script = json!({ "prompt": "x", "chunks": 2, "delay_ms": 3_600_000 });
    let open = || async {
        let mut asked = ask(stage.address(), "quiet", &script).await?;
        asked.first().await?;
        std::io::Result::Ok(asked)
    };
    // What is allocated once is not theirs.
    for _ in 0..20 {
        open().await.expect("a stream");
    }
    stage.quiet("quiet").await;
    let before = stage.settled().await;
    let opening = futures::stream::iter((0..scale.idle).map(|_| open()));
    let opened: Vec<PendingRequest> = opening
        .buffer_unordered(OPENING)
        .map(|opened| opened.expect("a stream"))
        .collect()
        .await;
    let after = stage.settled().await;
    let each = |index: usize| {
        after[index].saturating_sub(before[index]) as f64 / 1_024.0 / opened.len() as f64
    };
    let (coordinator, worker) = (each(0), each(1));
    Figure {
        promise: "idle streams: memory bounded",
        told: format!(
            "{} streams: {coordinator:.0} KiB each on the coordinator ({} MiB in all), \
             {worker:.0} KiB on the workers",
            opened.len(),
            after[0] >> 20
        ),
        held: coordinator.max(worker) <= IDLE_KIB,
    }
}

/// Readers that do not read, and fast ones beside them on the same worker (P6).
///
/// # Panics
/// When a stream cannot be opened.
pub async fn stalled(scale: &Scale) -> Figure {
    let timeout = format!("write_timeout = \"{}ms\"\n", scale.write_stall.as_millis());
    let (http, flight) = (format!("[http]\n{timeout}"), format!("[flight]\n{timeout}"));
    let stage = Stage::set(1, &http, &flight).await;
    stage.deploy("flood", scale.stalled + 1).await;
    stage.deploy("quick", FAST * 2).await;
    let flood = json!({ "prompt": "x", "chunks": 100_000_000, "text": "x".repeat(1_000) });
    // Warm, and then alone.
    let rounds = match scale.stalled {
        100.. => ROUNDS,
        _ => FEW_ROUNDS,
    };
    fast(&stage, rounds).await;
    let mut alone = fast(&stage, rounds).await;
    let before = stage.settled().await;
    let mut readers = Vec::new();
    for _ in 0..scale.stalled {
        let asked = ask_small(stage.address(), "flood", &flood).await;
        readers.push(asked.expect("a connection"));
    }
    let opened = Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut beside = fast(&stage, rounds).await;
    let after = stage.settled().await;
    let grown: u64 = (0..2).map(|at| after[at].saturating_sub(before[at])).sum();
    let each = grown as f64 / 1_024.0 / scale.stalled as f64;
    let still = stage.active("flood", None).await;
    let limit = scale.write_stall * 2 + Duration::from_secs(20);
    while stage.active("flood", None).await != 0 && opened.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let cut = opened.elapsed();
    stage.quiet("flood").await;
    if scale.slack != 1.0 {
        // What else the machine does may have begun meanwhile: alone is how it is now, too.
        let mut again = fast(&stage, rounds).await;
        if quantile(&mut alone, 500) < quantile(&mut again, 500) {
            alone = again;
        }
    }
    let (alone, beside) = (quantile(&mut alone, 500), quantile(&mut beside, 500));
    let ratio = beside / alone;
    drop(readers);
    Figure {
        promise: "P6: beside stalled readers the fast ones' TTFT is at most 1.2 × alone, a \
                  stalled one takes at most 512 KiB and is cut at the deadline",
        told: format!(
            "{} stalled: TTFT of the fast {beside:.1} ms, alone {alone:.1} ms ({ratio:.2} ×); \
             {each:.0} KiB a stalled one; all cut after {:.1} s of {:.0} s",
            scale.stalled,
            cut.as_secs_f64(),
            scale.write_stall.as_secs_f64()
        ),
        held: ratio <= 1.2 * scale.slack.min(8.0)
            && each <= STALLED_KIB * scale.slack.min(2.0)
            && cut < limit
            && (still as usize == scale.stalled || scale.write_stall < Duration::from_secs(30)),
    }
}

/// The times to the first chunk of many fast streams, in milliseconds.
async fn fast(stage: &Stage, rounds: usize) -> Vec<f64> {
    let script = json!({ "prompt": "x", "chunks": 3, "delay_ms": 5 });
    let one = || async {
        let mut asked = ask(stage.address(), "quick", &script).await.expect("open");
        let first = asked.first().await.expect("a chunk");
        let answer = asked.answer().await;
        assert!(answer.whole, "{}", answer.text);
        first.as_secs_f64() * 1_000.0
    };
    let rounds = futures::stream::iter((0..FAST * rounds).map(|_| one()));
    rounds.buffer_unordered(FAST).collect().await
}
