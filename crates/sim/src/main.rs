//! `volley-sim`: prints the costs of a cluster of a given size, and of clusters with one number
//! doubled, or with half of the models.

use std::io::Write;

use clap::Parser;
use volley_sim::measure::{Figures, Size, run};
use volley_sim::scenario::Drill;
use volley_sim_kit::scenario::run_all;

/// Simulates clusters with the real planner, registry, heartbeats and routing. Consensus itself
/// is `scripts/simulate.sh --raft STORIES [--seed SEED]`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Coordinators.
    #[arg(long, default_value_t = 5)]
    coordinators: usize,
    /// Workers.
    #[arg(long, default_value_t = 1_000)]
    workers: usize,
    /// Deployed models.
    #[arg(long, default_value_t = 10_000)]
    models: usize,
    /// Replicas of each model.
    #[arg(long, default_value_t = 3)]
    replicas: u32,
    /// Only this size: do not double each number.
    #[arg(long)]
    once: bool,
    /// Every heartbeat says everything, not only what changed.
    #[arg(long)]
    whole_reports: bool,
    /// Where the random numbers begin.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead: so many stories of faults in small clusters, from this seed on; the first that
    /// breaks a law is cut down and printed.
    #[arg(long)]
    stories: Option<u64>,
}

const HEAD: &str = "\
| coordinators | workers | models | replicas | filled | leader's CPU for it | writes | CPU at rest | bytes at rest | writes at rest | planner's round | worker lost | writes | one joins | moves | writes | a tenth lost | writes | one choice |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(stories) = arguments.stories {
        let told = run_all::<Drill>(arguments.seed..arguments.seed.saturating_add(stories));
        let told = told.map_err(|broken| anyhow::anyhow!("{broken}"))?;
        let line = format!("{} stories of faults: no law was broken", told.len());
        return Ok(writeln!(std::io::stdout(), "{line}")?);
    }
    let size = Size {
        coordinators: arguments.coordinators,
        workers: arguments.workers,
        models: arguments.models,
        replicas: arguments.replicas,
    };
    let mut sizes = vec![size];
    if !arguments.once {
        let double = |count: usize| count * 2;
        sizes.extend([
            Size {
                workers: double(size.workers),
                ..size
            },
            Size {
                models: size.models / 2,
                ..size
            },
            Size {
                replicas: size.replicas * 2,
                ..size
            },
            Size {
                coordinators: double(size.coordinators),
                ..size
            },
        ]);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{HEAD}")?;
    for size in sizes {
        let figures = run(&size, arguments.seed, arguments.whole_reports)?;
        writeln!(out, "{}", row(&size, &figures))?;
        out.flush()?;
    }
    Ok(())
}

fn row(size: &Size, figures: &Figures) -> String {
    let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1_000.0);
    let cells = [
        size.coordinators.to_string(),
        size.workers.to_string(),
        size.models.to_string(),
        size.replicas.to_string(),
        seconds(figures.filled_ms),
        format!("{:.1} s", figures.filling.as_secs_f64()),
        figures.filling_writes.to_string(),
        format!(
            "{:.1} ms/s",
            figures.rest_per_second.as_secs_f64() * 1_000.0
        ),
        format!("{} KiB/s", figures.rest_bytes_per_second >> 10),
        format!("{}/min", figures.rest_writes_per_minute),
        format!("{:.1} ms", figures.planning.as_secs_f64() * 1_000.0),
        seconds(figures.worker_lost_ms),
        figures.worker_lost_writes.to_string(),
        seconds(figures.joined_ms),
        figures.joined_moves.to_string(),
        figures.joined_writes.to_string(),
        seconds(figures.tenth_lost_ms),
        figures.tenth_lost_writes.to_string(),
        format!("{:.1} µs", figures.choice.as_secs_f64() * 1_000_000.0),
    ];
    format!("| {} |", cells.join(" | "))
}
