//! CPU time per chunk: 64 streams of 200 chunks without delay, alternately through Volley and
//! directly to the stand-in.

use std::time::Duration;

use anyhow::ensure;

use crate::load::{self, Target};
use crate::report::Table;
use crate::standin::Script;
use crate::stats::median;
use crate::test_bed::TestBed;

const STREAMS: usize = 64;
const CHUNKS: u32 = 200;
/// Runs of each kind, alternating, after one warm-up run.
const ROUNDS: usize = 15;
const LIMIT: Duration = Duration::from_secs(60);

struct Cost {
    coordinator: f64,
    worker: f64,
    standin: f64,
    client: f64,
}

impl Cost {
    fn total(&self) -> f64 {
        self.coordinator + self.worker + self.standin + self.client
    }
}

/// Runs the scenario.
pub(crate) async fn run(bed: &TestBed) -> anyhow::Result<Table> {
    let script = Script {
        chunks: CHUNKS,
        delay: Duration::ZERO,
        hold_after: None,
        stamped: false,
    };
    let through = bed.remote_model("cpu", &script).await?;
    let direct = bed.direct(&script);
    let (mut through_costs, mut direct_costs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let costs = (
            once(bed, &direct, &script).await?,
            once(bed, &through, &script).await?,
        );
        if round != 0 {
            direct_costs.push(costs.0);
            through_costs.push(costs.1);
        }
    }
    let of = |costs: &[Cost], part: fn(&Cost) -> f64| {
        format!("{:.1}", median(&costs.iter().map(part).collect::<Vec<_>>()))
    };
    let ratios: Vec<f64> = through_costs
        .iter()
        .zip(&direct_costs)
        .map(|(a, b)| a.total() / b.total())
        .collect();
    let mut table = Table::new(
        &format!(
            "CPU per chunk, {STREAMS} streams × {CHUNKS} chunks, no delay (median of {ROUNDS})"
        ),
        &[
            "µs of CPU per chunk",
            "coordinator",
            "worker",
            "stand-in",
            "client",
            "all",
        ],
    );
    for (name, costs) in [
        ("through Volley", &through_costs),
        ("direct", &direct_costs),
    ] {
        let cells = [
            of(costs, |cost| cost.coordinator),
            of(costs, |cost| cost.worker),
            of(costs, |cost| cost.standin),
            of(costs, |cost| cost.client),
            of(costs, Cost::total),
        ];
        table.row(name, cells);
    }
    table.note(format!(
        "All CPU, through Volley over direct: {:.2} ×.",
        median(&ratios)
    ));
    Ok(table)
}

async fn once(bed: &TestBed, target: &Target, script: &Script) -> anyhow::Result<Cost> {
    let before = bed.cpu()?;
    let outcomes = load::run(target, STREAMS, LIMIT).await?;
    let after = bed.cpu()?;
    let expected = script.expected_text();
    for outcome in &outcomes {
        ensure!(outcome.text == expected, "a stream is not byte-exact");
    }
    let chunks = (STREAMS * CHUNKS as usize) as f64;
    let per_chunk = |index: usize| (after[index] - before[index]).as_secs_f64() * 1e6 / chunks;
    Ok(Cost {
        coordinator: per_chunk(0),
        worker: per_chunk(1),
        standin: per_chunk(2),
        client: per_chunk(3),
    })
}
