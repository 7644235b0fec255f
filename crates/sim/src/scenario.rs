//! Small clusters under random faults.

use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use volley_sim_kit::{Scenario, World};
use volley_types::registry::{
    BackendName, DeployOptions, ModelSource, ModelVersionSpec, RegistryCommand,
};
use volley_types::{ModelName, ModelVersion, Parameters};

use crate::{Settings, Simulation};

/// Number of workers in a scenario.
pub const WORKERS: usize = 5;
/// Number of coordinators in a scenario.
pub const COORDINATORS: usize = 3;
const MODELS: usize = 5;
/// Number of replicas that fit on a worker.
const BUDGET: u64 = 6;
/// Time in milliseconds in which the cluster must settle after the faults.
const PATIENCE_MS: u64 = 60_000;
/// Time in milliseconds from the start until the first act.
const BEGINS_MS: u64 = 2_000;
/// Time in milliseconds without writes after which the cluster is at rest.
const REST_MS: u64 = 6_000;

/// A fault, or an action of an operator. Workers, coordinators and models are indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Ends a worker's process.
    Kill(usize),
    /// Starts a worker's process again.
    Start(usize),
    /// Freezes a worker for this many milliseconds.
    FreezeWorker(usize, u64),
    /// Freezes a coordinator for this many milliseconds.
    Freeze(usize, u64),
    /// Ends a coordinator's process, and restarts it after this many milliseconds.
    Restart(usize, u64),
    /// Sets a coordinator's clock ahead by this many milliseconds.
    Leap(usize, u64),
    /// Cuts the network between a worker and a coordinator.
    Cut(usize, usize),
    /// Cuts the direction from the worker to the coordinator.
    Mute(usize, usize),
    /// Cuts the direction from the coordinator to the worker.
    Deafen(usize, usize),
    /// Restores the network between a worker and a coordinator.
    Mend(usize, usize),
    /// Resets the connection between a worker and a coordinator.
    Reset(usize, usize),
    /// Starts or ends the packet loss of a worker.
    Lose(usize, bool),
    /// Starts or ends the failure of requests to a worker.
    Fail(usize, bool),
    /// Cuts or restores the direction from the first to the second coordinator.
    Part(usize, usize, bool),
    /// Makes a coordinator the leader.
    Elect(usize),
    /// Deploys a model: the number of replicas, whether they are spread over zones, and whether a
    /// new version is registered.
    Deploy(usize, u32, bool, bool),
    /// Undeploys a model.
    Undeploy(usize),
}

impl Fault {
    fn draw(random: &mut fastrand::Rng) -> Self {
        let (worker, coordinator) = (random.usize(..WORKERS), random.usize(..COORDINATORS));
        let model = random.usize(..MODELS);
        match random.u8(..34) {
            0..=3 => Self::Kill(worker),
            4..=6 => Self::Start(worker),
            7 | 8 => Self::FreezeWorker(worker, random.u64(500..20_000)),
            9..=11 => Self::Freeze(coordinator, random.u64(500..20_000)),
            12 | 13 => Self::Restart(coordinator, random.u64(200..6_000)),
            14 | 15 => Self::Leap(coordinator, random.u64(1_000..40_000)),
            16 => Self::Cut(worker, coordinator),
            17 => Self::Mute(worker, coordinator),
            18 => Self::Deafen(worker, coordinator),
            19 | 20 => Self::Mend(worker, coordinator),
            21 => Self::Reset(worker, coordinator),
            22 => Self::Lose(worker, random.bool()),
            23 => Self::Fail(worker, random.bool()),
            24..=26 => {
                let parted = random.u8(..3) != 0;
                Self::Part(coordinator, random.usize(..COORDINATORS), parted)
            }
            27 => Self::Elect(coordinator),
            // At most ten of the thirty replicas that fit, so that both versions fit during a
            // rollout.
            28..=31 => Self::Deploy(model, random.u32(1..=2), random.bool(), random.bool()),
            _ => Self::Undeploy(model),
        }
    }
}

/// A small cluster that executes a scenario.
pub struct Drill(Simulation);

impl World for Drill {
    type Setting = ();
    type Act = Fault;
    type Summary = ();
    type Trace = ();

    const ACTS: Range<usize> = 4..24;
    const PAUSES_MS: [u64; 3] = [400, 3_000, 14_000];
    const BEGINS_MS: u64 = BEGINS_MS;

    fn setting(_: &mut fastrand::Rng) {}

    fn act(random: &mut fastrand::Rng) -> Fault {
        Fault::draw(random)
    }

    fn describe((): &()) -> String {
        String::new()
    }

    fn no_trace() {}

    /// The clock is an agenda, so no future in this world is ever pending.
    fn on_its_clock<T>(_: u64, work: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(work).poll(&mut context) {
            Poll::Ready(done) => done,
            Poll::Pending => unreachable!("nothing in a simulation waits"),
        }
    }

    fn new(story: &Scenario<Self>, (): &()) -> Self {
        Self(Simulation::new(Settings {
            coordinators: COORDINATORS,
            workers: WORKERS,
            budget_bytes: BUDGET,
            model_bytes: 1,
            load_ms: 300,
            rebalance_ms: 2_000,
            drilled: true,
            seed: story.seed,
            ..Settings::default()
        }))
    }

    async fn begin(&mut self, _: &Scenario<Self>) -> Result<(), String> {
        self.0.submit((0..MODELS).map(register));
        self.0.submit((0..2).map(|model| deploy(model, 2, true)));
        self.0.run(BEGINS_MS);
        Ok(())
    }

    async fn perform(&mut self, act: Fault) -> Result<(), String> {
        perform(&mut self.0, act);
        Ok(())
    }

    async fn run(&mut self, ms: u64) -> Result<(), String> {
        self.0.run(ms);
        check(&self.0)
    }

    async fn heal(&mut self) -> Result<(), String> {
        self.0.heal();
        Ok(())
    }

    async fn settle(&mut self, story: &Scenario<Self>) -> Result<(), String> {
        let world = &mut self.0;
        let is_well = |world: &Simulation| world.is_served() && world.agreed().is_ok();
        let by_ms = BEGINS_MS + story.length_ms() + PATIENCE_MS;
        let mut ended = false;
        while !ended && world.now_ms() < by_ms {
            world.run(500);
            check(world)?;
            ended = is_well(world);
        }
        world.agreed()?;
        if !ended {
            return Err("not everything serves again".to_owned());
        }
        rests(world)
    }

    fn end(&mut self) {}
}

fn perform(world: &mut Simulation, act: Fault) {
    match act {
        Fault::Kill(worker) => world.kill(worker),
        Fault::Start(worker) => world.start(worker),
        Fault::FreezeWorker(worker, ms) => world.freeze_worker(worker, ms),
        Fault::Freeze(coordinator, ms) => world.freeze(coordinator, ms),
        Fault::Restart(coordinator, ms) => world.restart(coordinator, ms),
        Fault::Leap(coordinator, ms) => world.leap(coordinator, ms),
        Fault::Cut(worker, coordinator) => world.cut(worker, coordinator),
        Fault::Mute(worker, coordinator) => world.mute(worker, coordinator),
        Fault::Deafen(worker, coordinator) => world.deafen(worker, coordinator),
        Fault::Mend(worker, coordinator) => world.mend(worker, coordinator),
        Fault::Reset(worker, coordinator) => world.reset(worker, coordinator),
        Fault::Lose(worker, lossy) => world.lose(worker, lossy),
        Fault::Fail(worker, fail) => world.fail_requests(worker, fail),
        Fault::Part(speaker, hearer, parted) => world.part(speaker, hearer, parted),
        Fault::Elect(coordinator) => world.elect(coordinator),
        Fault::Deploy(model, replicas, spread, new) => {
            world.submit(new.then(|| register(model)));
            world.submit([deploy(model, replicas, spread)]);
        }
        Fault::Undeploy(model) => world.submit([RegistryCommand::Undeploy(name(model))]),
    }
}

fn name(model: usize) -> ModelName {
    ModelName::new(format!("m{model}")).expect("a good name")
}

fn register(model: usize) -> RegistryCommand {
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    };
    RegistryCommand::RegisterModel(name(model), spec)
}

fn deploy(model: usize, replicas: u32, spread: bool) -> RegistryCommand {
    RegistryCommand::Deploy {
        model: name(model),
        version: None,
        replicas,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions {
            memory_bytes: 1,
            spread: spread.then(|| "zone".to_owned()),
            max_unavailable: 1,
            ..DeployOptions::default()
        },
    }
}

/// Waits until uneven load is balanced and no more writes follow.
fn rests(world: &mut Simulation) -> Result<(), String> {
    let begun = world.now_ms();
    loop {
        let writes = world.writes;
        world.run(REST_MS);
        check(world)?;
        // A worker needs a while to notice that a coordinator has not received its heartbeats.
        if world.writes == writes && world.is_served() {
            return world.agreed();
        }
        if begun + PATIENCE_MS < world.now_ms() {
            return Err(match world.writes == writes {
                true => "not everything serves at rest".to_owned(),
                false => format!("it never rests: {}", world.last_write()),
            });
        }
    }
}

/// Checks the invariants of the registry, and those that the world has found violated.
fn check(world: &Simulation) -> Result<(), String> {
    if let Some(broken) = world.broken() {
        return Err(broken.to_owned());
    }
    for worker in 0..WORKERS {
        let bytes = world.placed_bytes(worker);
        if BUDGET < bytes {
            return Err(format!("{bytes} bytes on worker {worker}"));
        }
    }
    for entry in world.state().models.values() {
        let distinct: BTreeSet<_> = entry.placement.iter().collect();
        if distinct.len() != entry.placement.len() {
            return Err(format!("'{}' is twice on one worker", entry.name));
        }
        if entry.deployment.is_none() && !entry.placement.is_empty() {
            return Err(format!("'{}' is placed and not deployed", entry.name));
        }
    }
    Ok(())
}
