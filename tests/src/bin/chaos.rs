//! `chaos`: faults by plan, and what came of the promises. See `volley_tests::chaos`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use volley_tests::chaos::history::check;
use volley_tests::chaos::load::{DRILL, Load, PROBE, registry};
use volley_tests::chaos::nemesis::{Dice, Fault, strike};
use volley_tests::chaos::report::{Fired, Run, Verdict, unexplained};
use volley_tests::chaos::streams::Ending;
use volley_tests::chaos::test_bed::{COORDINATORS, TestBed, WORKERS};

/// The exit status of a run that is invalid.
const SAYS_NOTHING: u8 = 3;
/// How long a cluster may take to be well again after a fault.
const PATIENCE: Duration = Duration::from_secs(60);
/// Calm before the first fault and after each.
const CALM: Duration = Duration::from_secs(2);

/// Strikes a cluster of real processes with every kind of fault, under load, and checks what its
/// clients saw. Needs root.
#[derive(Debug, Parser)]
struct Arguments {
    /// The binary under test.
    #[arg(long, default_value = "target/debug/volley")]
    volley: PathBuf,
    /// Decides which faults come in which order, and whom they strike.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For how long; every kind of fault is fired at least once, however short that is.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How long each fault lasts.
    #[arg(long, default_value = "6s", value_parser = humantime::parse_duration)]
    fault: Duration,
    /// Only these faults, by name; the run says less then.
    #[arg(long)]
    only: Vec<String>,
    /// Where the nodes' logs are kept [default: nowhere].
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The first of this process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(run) => {
            say(&run.text());
            match run.verdict() {
                Verdict::Held => ExitCode::SUCCESS,
                Verdict::Invalid if !arguments.only.is_empty() => ExitCode::SUCCESS,
                Verdict::Invalid => ExitCode::from(SAYS_NOTHING),
                Verdict::Broken => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            say(&format!("the run could not go on: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<Run, String> {
    let own = tempfile::tempdir().map_err(|error| error.to_string())?;
    let folder = arguments.keep.as_deref().unwrap_or(own.path());
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let volley = std::fs::canonicalize(&arguments.volley)
        .map_err(|error| format!("{}: {error}", arguments.volley.display()))?;
    let mut bed = TestBed::start(volley, folder).await?;
    deploy(&bed).await?;

    let clients: Vec<_> = (0..COORDINATORS).map(|index| bed.client(index)).collect();
    let clients = clients.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut load = Load::start(clients.clone(), Instant::now());
    tokio::time::sleep(CALM).await;
    let mut fired = Vec::new();
    let mut dice = Dice::new(arguments.seed);
    'plan: loop {
        for fault in dice.shuffled().into_iter().filter(|f| arguments.wants(*f)) {
            if arguments.duration < load.now() && arguments.all_fired(&fired) {
                break 'plan;
            }
            let began = load.now();
            let struck = strike(&mut bed, fault, &mut dice, arguments.fault).await?;
            let undone = load.now();
            well(&bed)
                .await
                .map_err(|why| format!("after '{}' on {:?}: {why}", fault.name(), struck.nodes))?;
            let well = load.now();
            say(&format!(
                "{:>5.0} s  {} ({})\n",
                began.as_secs_f64(),
                fault.name(),
                struck.nodes.join(", ")
            ));
            fired.push(Fired {
                struck,
                began,
                undone,
                well,
            });
            tokio::time::sleep(CALM).await;
        }
    }
    load.stop().await;
    let lasted = load.now();

    let registries = futures::future::try_join_all(clients.iter().map(registry));
    let registries = registries.await.map_err(|error| error.to_string())?;
    let writes = std::mem::take(&mut *load.seen.writes.lock().await);
    let streams = std::mem::take(&mut *load.seen.streams.lock().await);
    let mut violations = check(&writes, &registries);
    violations.append(&mut *load.seen.stale.lock().await);
    violations.extend(streams.iter().filter_map(|told| match &told.ending {
        Ending::Violated(what) => Some(format!(
            "a stream through coordinator {} at {:.1} s: {what}",
            told.coordinator + 1,
            told.ended.as_secs_f64()
        )),
        _ => None,
    }));
    let late = std::mem::take(&mut *load.seen.late.lock().await);
    violations.extend(unexplained(&streams, &late, &fired));
    Ok(Run {
        seed: arguments.seed,
        lasted,
        fired,
        writes,
        streams,
        violations,
    })
}

impl Arguments {
    fn wants(&self, fault: Fault) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == fault.name())
    }

    fn all_fired(&self, fired: &[Fired]) -> bool {
        let mut wanted = Fault::ALL.into_iter().filter(|fault| self.wants(*fault));
        wanted.all(|fault| fired.iter().any(|fired| fired.struck.fault == fault))
    }
}

/// Deploys the model that streams, on every worker.
async fn deploy(bed: &TestBed) -> Result<(), String> {
    let client = bed.client(0)?;
    let body = json!({ "name": DRILL, "function_name": "fake" });
    let began = Instant::now();
    while let Err(error) = client.register(&body).await {
        if PATIENCE < began.elapsed() {
            return Err(format!("the cluster does not start: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let replicas = u32::try_from(WORKERS).map_err(|error| error.to_string())?;
    let deployed = client.deploy(DRILL, replicas).await;
    deployed.map_err(|error| error.to_string())?;
    well(bed).await
}

/// Waits until every coordinator sees a leader, all workers and all replicas, and takes a write.
async fn well(bed: &TestBed) -> Result<(), String> {
    let began = Instant::now();
    for index in 0..COORDINATORS {
        let client = bed.client(index)?;
        loop {
            let missing = match ill(&client).await {
                None => break,
                Some(missing) => missing,
            };
            if PATIENCE < began.elapsed() {
                let words = bed.nodes[index].last_words();
                return Err(format!(
                    "coordinator {} is not well within {PATIENCE:?}: {missing}\n{words}",
                    index + 1
                ));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// What a coordinator lacks.
async fn ill(client: &volley_client::Client) -> Option<String> {
    let status = tokio::time::timeout(Duration::from_secs(2), client.status()).await;
    let status = match status {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return Some(error.to_string()),
        Err(_) => return Some("no status".to_owned()),
    };
    if status.node.leader.is_none() {
        return Some("no leader".to_owned());
    }
    let alive = |worker: &&volley_client::WorkerInfo| worker.liveness == "alive";
    let alive = status.workers.iter().filter(alive).count();
    if alive < WORKERS {
        return Some(format!("{alive} workers"));
    }
    let drill = status.models.iter().find(|model| model.id == DRILL);
    let state = drill.map_or("nothing", |drill| drill.state.as_str());
    if state != "DEPLOYED" {
        return Some(format!("the model is {state}"));
    }
    let write =
        tokio::time::timeout(Duration::from_secs(5), client.register_text_model(PROBE)).await;
    match write {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(format!("a write: {error}")),
        Err(_) => Some("a write hangs".to_owned()),
    }
}

fn say(text: &str) {
    // A reader that went away misses nothing that it wants.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
}
