//! Small clusters under random faults. A story is made of its seed alone, so that one that ends
//! badly can be told again, and be cut down to what it takes.

use std::collections::BTreeSet;
use std::fmt::Write;

use volley_types::registry::{
    BackendKind, DeployOptions, ModelSource, ModelVersionSpec, RegistryCommand,
};
use volley_types::{ModelName, ModelVersion, Parameters};

use crate::{Settings, World};

/// Workers of a story.
pub const WORKERS: usize = 5;
/// Coordinators of a story.
pub const COORDINATORS: usize = 3;
const MODELS: usize = 5;
/// Replicas that a worker has room for.
const BUDGET: u64 = 6;
/// How long a cluster may take to be well once all works again.
const PATIENCE_MS: u64 = 60_000;
/// At rest nothing moves for this long.
const REST_MS: u64 = 6_000;

/// One thing that goes wrong, or that an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A worker's process dies.
    Kill(usize),
    /// It is started again.
    Start(usize),
    /// A worker does nothing for so many milliseconds.
    FreezeWorker(usize, u64),
    /// A coordinator does nothing for so many milliseconds.
    Freeze(usize, u64),
    /// A coordinator's process dies, and is back after so many milliseconds.
    Restart(usize, u64),
    /// A coordinator's clock leaps ahead by so many milliseconds.
    Leap(usize, u64),
    /// A worker and a coordinator hear nothing of each other.
    Cut(usize, usize),
    /// The coordinator does not hear the worker.
    Mute(usize, usize),
    /// The worker does not hear the coordinator.
    Deafen(usize, usize),
    /// They hear each other again.
    Mend(usize, usize),
    /// Their connection is reset.
    Reset(usize, usize),
    /// A worker's packets get lost now and then, or do no more.
    Lose(usize, bool),
    /// Requests to a worker fail, or do no more.
    Fail(usize, bool),
    /// The second coordinator does not hear the first, or does again.
    Part(usize, usize, bool),
    /// A coordinator takes over.
    Elect(usize),
    /// A model is deployed: so many replicas, spread over zones or not, of a new version or not.
    Deploy(usize, u32, bool, bool),
    /// A model is undeployed.
    Undeploy(usize),
}

/// Acts, each with the time after it in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// Decides everything that chance does.
    pub seed: u64,
    /// What happens.
    pub acts: Vec<(Act, u64)>,
}

impl Story {
    /// The story of that seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(4..24);
        let acts = (0..count).map(|_| {
            let act = act(&mut random);
            // Mostly one upon the other, at times after everything has come to rest.
            let after = [400, 3_000, 14_000][random.usize(..3)];
            (act, random.u64(..after))
        });
        let acts = acts.collect();
        Self { seed, acts }
    }

    /// Tells it.
    ///
    /// # Errors
    /// The first law that was broken.
    pub fn tell(&self) -> Result<(), String> {
        let mut world = World::new(Settings {
            coordinators: COORDINATORS,
            workers: WORKERS,
            budget_bytes: BUDGET,
            model_bytes: 1,
            load_ms: 300,
            rebalance_ms: 2_000,
            drilled: true,
            seed: self.seed,
            ..Settings::default()
        });
        world.submit((0..MODELS).map(register));
        world.submit((0..2).map(|model| deploy(model, 2, true)));
        world.run(2_000);
        for (act, after) in &self.acts {
            perform(&mut world, *act);
            world.run(*after);
            check(&world)?;
        }
        world.heal();
        let well = |world: &World| world.is_served() && world.agreed().is_ok();
        let mut ended = None;
        while ended.is_none() && world.now_ms() < self.length() + PATIENCE_MS {
            world.run(500);
            check(&world)?;
            ended = well(&world).then_some(());
        }
        world.agreed()?;
        if ended.is_none() {
            return Err("not everything serves again".to_owned());
        }
        rests(&mut world)
    }

    fn length(&self) -> u64 {
        2_000 + self.acts.iter().map(|(_, after)| after).sum::<u64>()
    }

    /// The shortest story that ends badly too, as far as leaving out one act after the other
    /// finds it, and how it ends.
    #[must_use]
    pub fn shrunk(&self, why: String) -> (Self, String) {
        let (mut story, mut why) = (self.clone(), why);
        let mut at = 0;
        while at < story.acts.len() {
            let mut shorter = story.clone();
            shorter.acts.remove(at);
            match shorter.tell() {
                Err(still) => (story, why) = (shorter, still),
                Ok(()) => at += 1,
            }
        }
        (story, why)
    }

    /// The story, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("seed {}\n", self.seed);
        let mut at = 2_000;
        for (act, after) in &self.acts {
            let _ = writeln!(text, "{at:>7} ms  {act:?}");
            at += after;
        }
        let _ = writeln!(text, "{at:>7} ms  all works again");
        text
    }
}

/// Tells the stories of these seeds on all processors.
///
/// # Errors
/// The first that ended badly, cut down, and why.
pub fn tell_all(seeds: std::ops::Range<u64>) -> Result<u64, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let told = |thread: usize| {
        let mut own = seeds.clone().skip(thread).step_by(threads);
        own.try_for_each(|seed| {
            let story = Story::new(seed);
            story.tell().map_err(|why| {
                let (short, why) = story.shrunk(why);
                format!("{why}\n{}", short.text())
            })
        })
    };
    let told = &told;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || told(thread)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let panicked = || Err("a story panicked".to_owned());
            thread.join().unwrap_or_else(|_| panicked())
        })
    })?;
    Ok(seeds.end - seeds.start)
}

fn act(random: &mut fastrand::Rng) -> Act {
    let (worker, coordinator) = (random.usize(..WORKERS), random.usize(..COORDINATORS));
    let model = random.usize(..MODELS);
    match random.u8(..34) {
        0..=3 => Act::Kill(worker),
        4..=6 => Act::Start(worker),
        7 | 8 => Act::FreezeWorker(worker, random.u64(500..20_000)),
        9..=11 => Act::Freeze(coordinator, random.u64(500..20_000)),
        12 | 13 => Act::Restart(coordinator, random.u64(200..6_000)),
        14 | 15 => Act::Leap(coordinator, random.u64(1_000..40_000)),
        16 => Act::Cut(worker, coordinator),
        17 => Act::Mute(worker, coordinator),
        18 => Act::Deafen(worker, coordinator),
        19 | 20 => Act::Mend(worker, coordinator),
        21 => Act::Reset(worker, coordinator),
        22 => Act::Lose(worker, random.bool()),
        23 => Act::Fail(worker, random.bool()),
        24..=26 => {
            let parted = random.u8(..3) != 0;
            Act::Part(coordinator, random.usize(..COORDINATORS), parted)
        }
        27 => Act::Elect(coordinator),
        // At most ten of the thirty places, so that there is room for both versions while one
        // follows the other.
        28..=31 => Act::Deploy(model, random.u32(1..=2), random.bool(), random.bool()),
        _ => Act::Undeploy(model),
    }
}

fn perform(world: &mut World, act: Act) {
    match act {
        Act::Kill(worker) => world.kill(worker),
        Act::Start(worker) => world.start(worker),
        Act::FreezeWorker(worker, ms) => world.freeze_worker(worker, ms),
        Act::Freeze(coordinator, ms) => world.freeze(coordinator, ms),
        Act::Restart(coordinator, ms) => world.restart(coordinator, ms),
        Act::Leap(coordinator, ms) => world.leap(coordinator, ms),
        Act::Cut(worker, coordinator) => world.cut(worker, coordinator),
        Act::Mute(worker, coordinator) => world.mute(worker, coordinator),
        Act::Deafen(worker, coordinator) => world.deafen(worker, coordinator),
        Act::Mend(worker, coordinator) => world.mend(worker, coordinator),
        Act::Reset(worker, coordinator) => world.reset(worker, coordinator),
        Act::Lose(worker, lossy) => world.lose(worker, lossy),
        Act::Fail(worker, fail) => world.fail_requests(worker, fail),
        Act::Part(speaker, hearer, parted) => world.part(speaker, hearer, parted),
        Act::Elect(coordinator) => world.elect(coordinator),
        Act::Deploy(model, replicas, spread, new) => {
            world.submit(new.then(|| register(model)));
            world.submit([deploy(model, replicas, spread)]);
        }
        Act::Undeploy(model) => world.submit([RegistryCommand::Undeploy(name(model))]),
    }
}

fn name(model: usize) -> ModelName {
    ModelName::new(format!("m{model}")).expect("a good name")
}

fn register(model: usize) -> RegistryCommand {
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendKind::Text,
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

/// What is not even is made even, and then nothing is written any more.
fn rests(world: &mut World) -> Result<(), String> {
    let begun = world.now_ms();
    loop {
        let writes = world.writes;
        world.run(REST_MS);
        check(world)?;
        // A worker takes a while to notice that a coordinator has not heard it for long.
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

/// What the registry must never say, and whatever the world found broken.
fn check(world: &World) -> Result<(), String> {
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
