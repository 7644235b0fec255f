//! Small clusters under random faults, thousands of seeds: what placement promises always holds,
//! and once the faults are over everything serves again.

use std::collections::{BTreeMap, BTreeSet};

use volley_sim::{Settings, World};
use volley_types::registry::{
    BackendKind, DeployOptions, ModelSource, ModelVersionSpec, RegistryCommand,
};
use volley_types::{ModelName, ModelVersion, Parameters};

/// Seeds in an ordinary run; `VOLLEY_SIM_SEEDS` asks for more.
const SEEDS: u64 = if cfg!(debug_assertions) { 300 } else { 5_000 };
const WORKERS: usize = 6;
const COORDINATORS: usize = 3;
const MODELS: usize = 6;
const BUDGET: u64 = 6;

fn seeds() -> u64 {
    let asked = std::env::var("VOLLEY_SIM_SEEDS").ok();
    asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

fn model(index: usize) -> ModelName {
    ModelName::new(format!("m{index}")).unwrap()
}

fn register(index: usize) -> RegistryCommand {
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendKind::Text,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: String::new(),
        created_ms: 0,
    };
    RegistryCommand::RegisterModel(model(index), spec)
}

fn deploy(index: usize, replicas: u32, random: &mut fastrand::Rng) -> RegistryCommand {
    RegistryCommand::Deploy {
        model: model(index),
        version: None,
        replicas,
        overcommit: false,
        workers: Vec::new(),
        options: DeployOptions {
            memory_bytes: 1,
            spread: random.bool().then(|| "zone".to_owned()),
            labels: BTreeMap::new(),
            max_unavailable: 1,
            ..DeployOptions::default()
        },
    }
}

/// One thing that goes wrong, or that an operator does.
fn stir(world: &mut World, random: &mut fastrand::Rng) {
    let (worker, coordinator) = (random.usize(..WORKERS), random.usize(..COORDINATORS));
    match random.u8(..8) {
        0 | 1 => world.kill(worker),
        2 => world.start(worker),
        3 => world.cut(worker, coordinator),
        4 => world.mend(worker, coordinator),
        5 => world.elect(coordinator),
        6 => {
            // At most twelve of the thirty-six places, so that there is room for both versions
            // while one follows the other.
            let replicas = random.u32(1..=2);
            let index = random.usize(..MODELS);
            let mut commands = vec![deploy(index, replicas, random)];
            if random.bool() {
                commands.insert(0, register(index));
            }
            world.submit(commands);
        }
        _ => world.submit([RegistryCommand::Undeploy(model(random.usize(..MODELS)))]),
    }
}

fn check(world: &World, seed: u64) {
    for worker in 0..WORKERS {
        let bytes = world.placed_bytes(worker);
        assert!(
            bytes <= BUDGET,
            "seed {seed}: {bytes} bytes on worker {worker}"
        );
    }
    for entry in world.state().models.values() {
        let distinct: BTreeSet<_> = entry.placement.iter().collect();
        assert_eq!(
            distinct.len(),
            entry.placement.len(),
            "seed {seed}: twice on one worker"
        );
        assert!(
            entry.deployment.is_some() || entry.placement.is_empty(),
            "seed {seed}"
        );
    }
}

fn story(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::new(Settings {
        coordinators: COORDINATORS,
        workers: WORKERS,
        budget_bytes: BUDGET,
        model_bytes: 1,
        load_ms: 300,
        seed,
        ..Settings::default()
    });
    world.submit((0..MODELS).map(register));
    for _ in 0..random.usize(5..25) {
        stir(&mut world, &mut random);
        world.run(random.u64(0..4_000));
        check(&world, seed);
    }
    for worker in 0..WORKERS {
        world.start(worker);
        (0..COORDINATORS).for_each(|coordinator| world.mend(worker, coordinator));
    }
    let served = world.run_until(500, 60_000, |world| {
        check(world, seed);
        world.is_served()
    });
    assert!(served.is_some(), "seed {seed}: not everything serves again");
    // At rest nothing moves any more.
    let writes = world.writes;
    world.run(10_000);
    assert_eq!(world.writes, writes, "seed {seed}: replicas move at rest");
}

#[test]
fn whatever_fails_the_cluster_keeps_its_promises_and_comes_to_rest() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let seeds = seeds();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || (thread..seeds).step_by(threads as usize).for_each(story));
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut random = fastrand::Rng::with_seed(7);
        let mut world = World::new(Settings {
            coordinators: 2,
            workers: 4,
            seed: 7,
            ..Settings::default()
        });
        world.submit((0..4).flat_map(|index| [register(index), deploy(index, 2, &mut random)]));
        world.run(20_000);
        world.kill(1);
        world.run(20_000);
        (world.state().clone(), world.writes)
    };
    assert_eq!(run(), run());
}
