//! What there is, the clock, and the network between.

mod events;
mod faults;
mod invariants;
mod raft;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_sim_kit::agenda::Agenda;
use volley_sim_kit::network::Links;
use volley_types::WorkerId;
use volley_types::registry::{RegistryCommand, RegistryState};

use self::events::{BEAT_MS, Event, PATROL_MS, TICK_MS};
use self::invariants::Invariants;
use self::raft::RaftMember;
use crate::coordinator::SimCoordinator;
use crate::cost::Cost;
use crate::worker::Worker;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Coordinators; the first leads.
    pub coordinators: usize,
    /// Workers.
    pub workers: usize,
    /// Values of the workers' label `zone`.
    pub zones: usize,
    /// Bytes of models that a worker may hold.
    pub budget_bytes: u64,
    /// Bytes of each model.
    pub model_bytes: u64,
    /// How long a worker loads a model.
    pub load_ms: u64,
    /// How long an append takes until more than half have it on disk.
    pub append_ms: u64,
    /// The longest that a message travels.
    pub network_ms: u64,
    /// For how long models, workers and the leader are as they are before anything is rebalanced.
    pub rebalance_ms: u64,
    /// Every heartbeat says everything, as before workers told only changes.
    pub whole_reports: bool,
    /// Coordinators elect leaders, requests are made, and the laws are checked at every step.
    pub drilled: bool,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            coordinators: 5,
            workers: 1_000,
            zones: 3,
            budget_bytes: 80 << 30,
            model_bytes: 1 << 30,
            load_ms: 2_000,
            append_ms: 5,
            network_ms: 4,
            rebalance_ms: 60_000,
            whole_reports: false,
            drilled: false,
            seed: 1,
        }
    }
}

impl Settings {
    pub(crate) fn rebalance_after(&self) -> Duration {
        Duration::from_millis(self.rebalance_ms)
    }
}

/// Who sends and hears messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Coordinator(usize),
    Worker(usize),
}

/// The whole cluster.
pub struct Simulation {
    settings: Settings,
    start: Instant,
    agenda: Agenda<Event>,
    links: Links<Node>,
    random: fastrand::Rng,
    state: Arc<RegistryState>,
    coordinators: Vec<SimCoordinator>,
    workers: Vec<Worker>,
    numbers: BTreeMap<WorkerId, usize>,
    seats: Vec<RaftMember>,
    leader: usize,
    /// Since when it cannot do its work.
    leader_lost_ms: Option<u64>,
    next_stream: u64,
    log: Vec<RegistryCommand>,
    appending: bool,
    laws: Invariants,
    /// Workers whose replicas fail every request.
    failing: BTreeSet<usize>,
    /// Writes that were committed.
    pub writes: u64,
    /// The last of them, in words.
    last_write: String,
}

impl Simulation {
    /// A cluster whose workers begin to report.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let workers: Vec<_> = (0..settings.workers)
            .map(|index| {
                let budget = settings.budget_bytes;
                Worker::new(index, settings.zones, settings.coordinators, budget)
            })
            .collect();
        let numbered = workers.iter().enumerate();
        let mut world = Self {
            numbers: numbered
                .map(|(index, worker)| (worker.id.clone(), index))
                .collect(),
            coordinators: (0..settings.coordinators)
                .map(|_| SimCoordinator::new(settings.rebalance_after()))
                .collect(),
            workers,
            start: Instant::now(),
            agenda: Agenda::default(),
            links: Links::default(),
            random: fastrand::Rng::with_seed(settings.seed),
            state: Arc::default(),
            seats: (0..settings.coordinators).map(RaftMember::new).collect(),
            leader: 0,
            leader_lost_ms: None,
            next_stream: 0,
            log: Vec::new(),
            appending: false,
            laws: Invariants::new(&settings),
            failing: BTreeSet::new(),
            writes: 0,
            last_write: String::new(),
            settings,
        };
        for worker in 0..settings.workers {
            let phase = world.random.u64(0..BEAT_MS);
            world.after(phase, Event::Beat(worker));
        }
        world.after(TICK_MS, Event::Tick);
        world.after(PATROL_MS, Event::Patrol);
        if settings.drilled {
            world.begin_drill();
        }
        world
    }

    /// What is simulated.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Simulated time since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.agenda.now_ms()
    }

    /// The registry.
    #[must_use]
    pub fn state(&self) -> &RegistryState {
        &self.state
    }

    /// What each coordinator has spent so far.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        self.coordinators
            .iter()
            .map(|coordinator| coordinator.cost)
            .collect()
    }

    /// Sets all costs to zero.
    pub fn reset_costs(&mut self) {
        self.writes = 0;
        for coordinator in &mut self.coordinators {
            coordinator.cost = Cost::default();
        }
    }

    /// One coordinator's view of the workers.
    #[must_use]
    pub fn live(&self, coordinator: usize) -> &volley_coordinator::live::LiveWorkers {
        &self.coordinators[coordinator].live
    }

    /// The simulated instant, as clocks that were left alone show it.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.now_ms())
    }

    /// The write that was committed last, in words.
    #[must_use]
    pub fn last_write(&self) -> &str {
        &self.last_write
    }

    /// The first law that was broken, and when.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.laws.broken()
    }

    /// Gives commands to the leader.
    pub fn submit(&mut self, commands: impl IntoIterator<Item = RegistryCommand>) {
        self.log.extend(commands);
        self.append();
    }

    /// Bytes of all that the registry places on a worker.
    #[must_use]
    pub fn placed_bytes(&self, worker: usize) -> u64 {
        let id = &self.workers[worker].id;
        let held = self
            .state
            .models
            .values()
            .map(|entry| entry.placed(id).count() as u64);
        held.sum::<u64>() * self.settings.model_bytes
    }

    /// Replicas that leaders have moved so far although their workers were there.
    #[must_use]
    pub fn moved(&self) -> u64 {
        let coordinators = self.coordinators.iter();
        coordinators.map(|coordinator| coordinator.moved).sum()
    }

    /// How many models are deployed.
    #[must_use]
    pub fn deployed(&self) -> usize {
        let models = self.state.models.values();
        models.filter(|entry| entry.deployment.is_some()).count()
    }

    /// Whether all that is deployed is placed, and every coordinator sees it ready.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.state.models.values().all(|entry| {
            let Some(deployment) = &entry.deployment else {
                return true;
            };
            let wanted = deployment.replicas as usize;
            deployment.rollout.is_none()
                && entry.placement.len() == wanted
                && self.coordinators.iter().all(|coordinator| {
                    let ready = coordinator.live.ready_versions(&entry.name);
                    ready.get(&deployment.version) == Some(&wanted)
                })
        })
    }

    /// Runs until `done`, looked at every `every_ms`; `None` when `limit_ms` have passed first.
    pub fn run_until(
        &mut self,
        every_ms: u64,
        limit_ms: u64,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Option<u64> {
        let begun = self.now_ms();
        while self.now_ms() < begun + limit_ms {
            if done(self) {
                return Some(self.now_ms() - begun);
            }
            self.run(every_ms);
        }
        done(self).then(|| self.now_ms() - begun)
    }

    /// Runs for a while.
    pub fn run(&mut self, ms: u64) {
        let until_ms = self.now_ms() + ms;
        while let Some(event) = self.agenda.next(until_ms) {
            self.happen(event);
        }
    }
}
