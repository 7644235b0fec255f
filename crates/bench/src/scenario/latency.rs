//! Added time to first chunk and added latency per chunk, with 1,000 streams of one chunk every 20
//! ms: through Volley, and directly to the stand-in for comparison.

use std::time::Duration;

use anyhow::ensure;

use crate::load::{self, Target};
use crate::report::Table;
use crate::standin::Script;
use crate::stats::percentile;
use crate::test_bed::TestBed;

const CHUNKS: u32 = 250;
const LIMIT: Duration = Duration::from_secs(120);

struct Figures {
    first: [u64; 2],
    chunk: [u64; 2],
}

/// Runs the scenario with `streams` concurrent streams.
pub(crate) async fn run(bed: &TestBed, streams: usize) -> anyhow::Result<Table> {
    let script = Script {
        chunks: CHUNKS,
        delay: Duration::from_millis(20),
        hold_after: None,
        stamped: true,
    };
    let through = bed
        .remote_model(&format!("latency-{streams}"), &script)
        .await?;
    let direct = bed.direct(&script);
    let cores_before = bed.cpu()?;
    let direct = figures(&direct, streams).await?;
    let cores_between = bed.cpu()?;
    let started = std::time::Instant::now();
    let through = figures(&through, streams).await?;
    let elapsed = started.elapsed().as_secs_f64();
    let cores_after = bed.cpu()?;
    let mut table = Table::new(
        &format!("Latency at {streams} streams of one chunk per 20 ms, {CHUNKS} chunks each"),
        &[
            "ms",
            "first chunk p50",
            "first chunk p99",
            "per chunk p50",
            "per chunk p99",
        ],
    );
    let cells = |f: &Figures| {
        [f.first[0], f.first[1], f.chunk[0], f.chunk[1]].map(|ns| format!("{:.2}", ns as f64 / 1e6))
    };
    table.row("direct", cells(&direct));
    table.row("through Volley", cells(&through));
    let added = |a: u64, b: u64| format!("{:.2}", (a as f64 - b as f64) / 1e6);
    table.row(
        "added",
        [
            added(through.first[0], direct.first[0]),
            added(through.first[1], direct.first[1]),
            added(through.chunk[0], direct.chunk[0]),
            added(through.chunk[1], direct.chunk[1]),
        ],
    );
    let cores = |a: &[Duration; 4], b: &[Duration; 4]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (*a - *b).as_secs_f64())
            .sum::<f64>()
    };
    table.note(format!(
        "Every stream was complete and in order. The time to the first chunk begins with the connection, with all \
         streams opened at once, and includes the stand-in's own 20 ms. CPU used by all four processes \
         through Volley: {:.2} cores for {elapsed:.1} s; direct: {:.1} s of CPU in all.",
        cores(&cores_after, &cores_between) / elapsed,
        cores(&cores_between, &cores_before),
    ));
    Ok(table)
}

async fn figures(target: &Target, streams: usize) -> anyhow::Result<Figures> {
    let outcomes = load::run(target, streams, LIMIT).await?;
    let mut first: Vec<u64> = outcomes.iter().map(|outcome| outcome.first_ns).collect();
    let mut chunk: Vec<u64> = Vec::with_capacity(streams * CHUNKS as usize);
    for outcome in outcomes {
        ensure!(
            outcome.chunks == CHUNKS,
            "a stream has {} chunks of {CHUNKS}",
            outcome.chunks
        );
        ensure!(outcome.in_order, "a stream's chunks are out of order");
        chunk.extend(outcome.latency_ns);
    }
    Ok(Figures {
        first: [percentile(&mut first, 0.5), percentile(&mut first, 0.99)],
        chunk: [percentile(&mut chunk, 0.5), percentile(&mut chunk, 0.99)],
    })
}
