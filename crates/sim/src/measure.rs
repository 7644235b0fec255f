//! Measurements of a cluster that is filled, rests, loses a worker, gets an empty one, and loses a
//! tenth of its workers.

use std::time::Duration;

use volley_coordinator::route::{RoutingHints, decide};
use volley_types::registry::{
    BackendName, DeployOptions, ModelSource, ModelVersionSpec, RegistryCommand,
};
use volley_types::{ModelName, ModelVersion, Parameters};

use crate::cost::Meter;
use crate::{Settings, Simulation};

/// Maximum simulated time of each step in milliseconds.
const LIMIT_MS: u64 = 600_000;
/// Time at rest during which costs are measured, in milliseconds.
const REST_MS: u64 = 20_000;
/// Number of measured choices of a replica.
const CHOICES: u32 = 20_000;

/// Size of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of coordinators.
    pub coordinators: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of deployed models.
    pub models: usize,
    /// Number of replicas of each model.
    pub replicas: u32,
}

/// Results of a run. Times with the suffix `_ms` are simulated; durations are processor time.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Time from the first write until all replicas serve at every coordinator.
    pub filled_ms: u64,
    /// Processor time of the leader until then.
    pub filling: Duration,
    /// Number of writes until then.
    pub filling_writes: u64,
    /// Processor time of one coordinator per second at rest.
    pub rest_per_second: Duration,
    /// Bytes that one coordinator receives and sends per second at rest.
    pub rest_bytes_per_second: u64,
    /// Number of writes per minute at rest.
    pub rest_writes_per_minute: u64,
    /// Processor time of one planner round at rest.
    pub planning: Duration,
    /// Time from the death of a worker until all replicas serve again.
    pub worker_lost_ms: u64,
    /// Number of writes until then.
    pub worker_lost_writes: u64,
    /// Time from the start of an empty worker until it is nearly as full as the fullest one.
    pub joined_ms: u64,
    /// Number of replicas that migrated until then.
    pub joined_moves: u64,
    /// Number of writes until then.
    pub joined_writes: u64,
    /// Time from the death of a tenth of the workers until all replicas serve again.
    pub tenth_lost_ms: u64,
    /// Number of writes until then.
    pub tenth_lost_writes: u64,
    /// Processor time of one choice of a replica.
    pub choice: Duration,
}

/// Runs all measurements on a cluster of this size. `seed` determines the random numbers.
///
/// # Errors
/// If a step does not finish within 600 s of simulated time.
pub fn run(size: &Size, seed: u64, whole_reports: bool) -> anyhow::Result<Figures> {
    let per_worker = size.models * size.replicas as usize / size.workers.max(1) + 1;
    let settings = Settings {
        coordinators: size.coordinators,
        workers: size.workers,
        // Room for a third more than is deployed.
        budget_bytes: (per_worker as u64 * 4 / 3 + 2) << 30,
        whole_reports,
        seed,
        ..Settings::default()
    };
    let mut world = Simulation::new(settings);
    world.run(11_000);
    world.reset_costs();
    world.submit(filling(size));
    let all = size.models;
    let served = move |world: &Simulation| world.deployed() == all && world.is_served();
    let stuck = || anyhow::anyhow!("the cluster did not come to rest");
    let filled_ms = world.run_until(100, LIMIT_MS, served).ok_or_else(stuck)?;
    let (filling, filling_writes) = (world.costs()[0].cpu, world.writes);

    world.run(2_000);
    world.reset_costs();
    world.run(REST_MS);
    let rest = world.costs();
    let rest_writes = world.writes;
    let seconds = u32::try_from(REST_MS / 1_000).unwrap_or(1);
    let follower = rest.last().copied().unwrap_or_default();
    let rounds = u32::try_from(REST_MS / 2_000).unwrap_or(1);

    world.reset_costs();
    world.kill(size.workers / 2);
    let worker_lost_ms = world
        .run_until(100, LIMIT_MS, lost(size.workers / 2))
        .ok_or_else(stuck)?;
    let worker_lost_writes = world.writes;
    let joined = join(&mut world, size.workers / 2).ok_or_else(stuck)?;
    world.reset_costs();
    for worker in 0..size.workers / 10 {
        world.kill(worker);
    }
    let tenth_lost_ms = world.run_until(100, LIMIT_MS, lost(0)).ok_or_else(stuck)?;
    Ok(Figures {
        filled_ms,
        filling,
        filling_writes,
        rest_per_second: follower.cpu / seconds,
        rest_bytes_per_second: (follower.bytes_in + follower.bytes_out) / u64::from(seconds),
        rest_writes_per_minute: rest_writes * 60_000 / REST_MS,
        planning: rest[0].planning / rounds,
        worker_lost_ms,
        worker_lost_writes,
        joined_ms: joined.0,
        joined_moves: joined.1,
        joined_writes: joined.2,
        tenth_lost_ms,
        tenth_lost_writes: world.writes,
        choice: choice(&world),
    })
}

/// Starts an empty worker, and waits until its models are within a tenth of the budget of the
/// fullest worker's. Returns the time in milliseconds, the number of migrated replicas, and the
/// number of writes.
fn join(world: &mut Simulation, worker: usize) -> Option<(u64, u64, u64)> {
    world.reset_costs();
    let (moved, budget) = (world.moved(), world.settings().budget_bytes);
    world.start(worker);
    let workers = 0..world.settings().workers;
    let ms = world.run_until(100, LIMIT_MS, |world| {
        let fullest = workers.clone().map(|other| world.placed_bytes(other)).max();
        let lacks = fullest
            .unwrap_or(0)
            .saturating_sub(world.placed_bytes(worker));
        lacks <= budget / 10 && world.is_served()
    })?;
    Some((ms, world.moved() - moved, world.writes))
}

/// Returns whether all models are served again and the lost worker holds nothing.
fn lost(worker: usize) -> impl FnMut(&Simulation) -> bool {
    move |world| world.placed_bytes(worker) == 0 && world.is_served()
}

fn name(model: usize) -> ModelName {
    ModelName::new(format!("model-{model:06}")).expect("a good name")
}

/// Returns the writes that register and deploy all models.
pub fn filling(size: &Size) -> Vec<RegistryCommand> {
    let spec = |model: usize| ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::ONNX,
        source: ModelSource::Path(format!("/var/lib/models/model-{model:06}")),
        parameters: Parameters::default(),
        description: "simulated".to_owned(),
        created_ms: 1,
    };
    let commands = (0..size.models).flat_map(|model| {
        let deploy = RegistryCommand::Deploy {
            model: name(model),
            version: None,
            replicas: size.replicas,
            overcommit: false,
            workers: Vec::new(),
            options: DeployOptions {
                spread: Some("zone".to_owned()),
                memory_bytes: 1 << 30,
                ..DeployOptions::default()
            },
        };
        [
            RegistryCommand::RegisterModel(name(model), spec(model)),
            deploy,
        ]
    });
    commands.collect()
}

/// Measures one choice among the replicas of a model, as a request makes it.
fn choice(world: &Simulation) -> Duration {
    let models: Vec<_> = world.state().models.keys().cloned().collect();
    let mut random = fastrand::Rng::with_seed(1);
    let (live, now) = (world.live(0), world.now());
    let mut chosen = 0_usize;
    let meter = Meter::start();
    for _ in 0..CHOICES {
        let model = &models[random.usize(..models.len())];
        let candidates = live.candidates(model, ModelVersion(1));
        let views: Vec<_> = candidates
            .iter()
            .map(|candidate| candidate.view(now, Duration::from_secs(10)))
            .collect();
        chosen += usize::from(decide(&views, &RoutingHints::default(), &mut random).is_some());
    }
    let spent = meter.stop();
    assert!(0 < chosen, "replicas are there");
    spent / CHOICES
}
