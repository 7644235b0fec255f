//! Streams that are left, more of them than there is room for, and very many of them.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::client::{Answer, ask, get};
use super::stage::Stage;
use super::{Figure, Scale, quantile};

/// Streams at a time.
const CROWD: usize = 32;
/// Of the overload: places of the model, and requests that may wait for one.
const PLACES: usize = 16;
/// How long one of its streams takes.
const CHUNKS: u32 = 10;
const CHUNK_MS: u32 = 40;

/// Streams a second, of short ones.
async fn rate(stage: &Stage, count: usize) -> f64 {
    let script = json!({ "prompt": "x", "chunks": 2 });
    let began = Instant::now();
    let all = futures::stream::iter((0..count).map(|_| whole(stage, "drill", &script)));
    let answers: Vec<Answer> = all.buffer_unordered(CROWD).collect().await;
    for answer in &answers {
        assert!(answer.whole, "{}", answer.text);
    }
    count as f64 / began.elapsed().as_secs_f64()
}

/// The rates of five runs, the lowest first: one run of half a second says little on a machine
/// whose processors the clients share.
async fn rates(stage: &Stage, count: usize) -> [f64; 5] {
    let mut rates = [0.0; 5];
    for one in &mut rates {
        *one = rate(stage, count).await;
    }
    rates.sort_by(f64::total_cmp);
    rates
}

async fn whole(stage: &Stage, model: &str, script: &Value) -> Answer {
    let asked = ask(stage.address(), model, script).await;
    asked.expect("a connection").answer().await
}

/// Clients that leave after the first chunk (P5).
///
/// # Panics
/// When a stream cannot be opened.
pub async fn cancels(scale: &Scale) -> Figure {
    let stage = Stage::set(1, "", "").await;
    stage.deploy("drill", CROWD * 2).await;
    rate(&stage, scale.rated).await;
    let before = rates(&stage, scale.rated).await;

    // One alone: until nothing of it runs on the worker.
    let slow = json!({ "prompt": "x", "chunks": 100_000, "delay_ms": 10 });
    let mut stops = Vec::new();
    for _ in 0..30 {
        let mut asked = ask(stage.address(), "drill", &slow).await.expect("open");
        asked.first().await.expect("a chunk");
        drop(asked);
        let left = Instant::now();
        while stage.active("drill", Some(0)).await != 0 {
            assert!(left.elapsed() < Duration::from_secs(30), "it stops");
        }
        stops.push(left.elapsed().as_secs_f64() * 1_000.0);
    }
    let leave = || async {
        let mut asked = ask(stage.address(), "drill", &slow).await.expect("open");
        asked.first().await.expect("a chunk");
    };
    let all = futures::stream::iter((0..scale.cancels).map(|_| leave()));
    all.buffer_unordered(CROWD).collect::<Vec<()>>().await;
    let left = Instant::now();
    stage.quiet("drill").await;
    let quiet = left.elapsed().as_secs_f64() * 1_000.0;
    let after = rates(&stage, scale.rated).await;
    let ratio = after[2] / before[2];
    let stop = quantile(&mut stops, 990);
    Figure {
        promise: "P5: a client that leaves stops the compute within 500 ms p99; 10,000 of them \
                  leave the throughput unchanged",
        told: format!(
            "stopped after {stop:.0} ms p99; {} left, nothing ran {quiet:.0} ms later; \
             {:.0} streams/s before ({:.0} to {:.0}), {:.0} after ({:.0} to {:.0}): {ratio:.2}",
            scale.cancels, before[2], before[0], before[4], after[2], after[0], after[4]
        ),
        held: stop <= 500.0 * scale.slack
            && quiet <= 1_000.0 * scale.slack
            && ratio >= 1.0 - 0.1 * scale.slack.min(6.0),
    }
}

/// Three times as many requests as the model can answer (P7).
pub async fn overload(scale: &Scale) -> Figure {
    let queue = format!("[queue]\nmax_per_replica = {PLACES}\n");
    let stage = Stage::set(1, "", &queue).await;
    stage.deploy("drill", PLACES).await;
    let script = json!({ "prompt": "x", "chunks": CHUNKS, "delay_ms": CHUNK_MS });
    offer(&stage, &script, Duration::from_secs(1), 0.0).await;
    let mut peak = Peak::under(&stage, &script, scale).await;
    // Beside other tests the machine may have given less to one half of it than to the other; a
    // cluster that breaks down under too much does so every time.
    for _ in 0..2 {
        if scale.slack != 1.0 && peak.is_orderly() && !peak.holds(scale) {
            peak = Peak::under(&stage, &script, scale).await;
        }
    }
    Figure {
        promise: "P7: three times too much: refused within 50 ms with Retry-After, goodput at \
                  least 90 % of the peak, no admitted stream broken",
        told: format!(
            "peak {:.1} streams/s; offered {:.0}/s: goodput {:.0} %, {} refused in {:.1} ms p99 \
             (a health check takes {:.1} ms), {} without Retry-After, {} broken",
            peak.rate,
            peak.rate * 3.0,
            peak.share() * 100.0,
            peak.over.refused_ms.len(),
            peak.refused_ms,
            peak.machine_ms,
            peak.over.unmannerly,
            peak.over.broken
        ),
        held: peak.is_orderly() && peak.holds(scale),
    }
}

/// The most that a model can answer, and then three times that.
struct Peak {
    /// Streams a second.
    rate: f64,
    over: Offered,
    /// P99 of refusals, and of health checks beside them.
    refused_ms: f64,
    machine_ms: f64,
}

impl Peak {
    async fn under(stage: &Stage, script: &Value, scale: &Scale) -> Self {
        // As many callers as there are places, and some that wait.
        let peak = offer(stage, script, scale.overload, 0.0).await;
        let rate = peak.whole as f64 / peak.lasted.as_secs_f64();
        let (mut over, machine_ms) = tokio::join!(
            offer(stage, script, scale.overload, rate * 3.0),
            delays(stage, scale.overload)
        );
        let refused_ms = quantile(&mut over.refused_ms, 990);
        Self {
            rate,
            over,
            refused_ms,
            machine_ms,
        }
    }

    fn share(&self) -> f64 {
        self.over.whole as f64 / self.over.lasted.as_secs_f64() / self.rate
    }

    /// Whether every request was answered or refused as it should be.
    fn is_orderly(&self) -> bool {
        let over = &self.over;
        over.broken == 0 && over.unmannerly == 0 && !over.refused_ms.is_empty()
    }

    /// Whether refusals came soon, and goodput stayed.
    fn holds(&self, scale: &Scale) -> bool {
        // Beside other tests, what the machine itself makes everybody wait is no delay of a refusal.
        let bound = match scale.slack {
            1.0 => 50.0,
            _ => 50.0 + 3.0 * self.machine_ms,
        };
        self.refused_ms <= bound && self.share() >= 0.9 / scale.slack.min(1.5)
    }
}

/// How long a request takes that asks for nothing, p99 in milliseconds, over so long.
async fn delays(stage: &Stage, lasts: Duration) -> f64 {
    let began = Instant::now();
    let mut all = Vec::new();
    while began.elapsed() < lasts {
        let asked = Instant::now();
        let alive = get(stage.address(), "/_volley/health/live").await;
        if alive.is_ok() {
            all.push(asked.elapsed().as_secs_f64() * 1_000.0);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    quantile(&mut all, 990)
}

/// What came of a load.
#[derive(Debug, Default)]
struct Offered {
    lasted: Duration,
    whole: usize,
    broken: usize,
    refused_ms: Vec<f64>,
    /// Refusals that do not say when to come back.
    unmannerly: usize,
}

impl Offered {
    fn count(&mut self, answer: &Answer) {
        match answer.status {
            200 if answer.whole => self.whole += 1,
            429 | 503 => {
                self.refused_ms.push(answer.after.as_secs_f64() * 1_000.0);
                let told = answer.text.to_ascii_lowercase().contains("retry-after: ");
                self.unmannerly += usize::from(!told);
            }
            _ => self.broken += 1,
        }
    }
}

/// Offers requests for so long: so many a second, or, where that is 0, the next one of a fixed
/// crowd as soon as one is answered.
async fn offer(stage: &Stage, script: &Value, lasts: Duration, per_second: f64) -> Offered {
    let began = Instant::now();
    let mut offered = Offered::default();
    let mut tasks = JoinSet::new();
    let begin = |tasks: &mut JoinSet<Answer>| {
        let (address, script) = (stage.address().to_owned(), script.clone());
        tasks.spawn(async move {
            let asked = ask(&address, "drill", &script).await;
            asked.expect("a connection").answer().await
        });
    };
    if per_second == 0.0 {
        (0..PLACES + PLACES / 2).for_each(|_| begin(&mut tasks));
    }
    let mut sent = 0.0;
    while began.elapsed() < lasts {
        while per_second != 0.0 && sent < began.elapsed().as_secs_f64() * per_second {
            begin(&mut tasks);
            sent += 1.0;
        }
        let pause = tokio::time::sleep(Duration::from_millis(2));
        tokio::select! {
            Some(answer) = tasks.join_next() => {
                offered.count(&answer.expect("a client"));
                if per_second == 0.0 {
                    begin(&mut tasks);
                }
            }
            () = pause => {}
        }
    }
    // What has begun counts, and so does its time.
    while let Some(answer) = tasks.join_next().await {
        offered.count(&answer.expect("a client"));
    }
    offered.lasted = began.elapsed();
    offered
}

/// Very many streams: what stays of them (P9).
pub async fn leaks(scale: &Scale) -> Figure {
    let stage = Stage::set(1, "", "").await;
    stage.deploy("drill", CROWD * 2).await;
    rate(&stage, (scale.streams / 4).clamp(400, 50_000)).await;
    stage.quiet("drill").await;
    let before = stage.settled().await;
    let began = Instant::now();
    rate(&stage, scale.streams).await;
    let per_second = scale.streams as f64 / began.elapsed().as_secs_f64();
    stage.quiet("drill").await;
    let after = stage.settled().await;
    let grown = |at: usize| (after[at].saturating_sub(before[at])) as f64 / f64::from(1 << 20);
    let (coordinator, worker) = (grown(0), grown(1));
    Figure {
        promise: "P9: after 1,000,000 streams a process has grown by at most 16 MiB",
        told: format!(
            "{} streams, {per_second:.0}/s: coordinator +{coordinator:.1} MiB, worker \
             +{worker:.1} MiB",
            scale.streams
        ),
        held: coordinator.max(worker) <= 16.0,
    }
}
