//! The cluster, its clock and its network.

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

/// Settings of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of coordinators. The first one leads.
    pub coordinators: usize,
    /// Number of workers.
    pub workers: usize,
    /// Number of values of the workers' label `zone`.
    pub zones: usize,
    /// Memory budget of a worker in bytes.
    pub budget_bytes: u64,
    /// Memory of each model in bytes.
    pub model_bytes: u64,
    /// Time to load a model in milliseconds.
    pub load_ms: u64,
    /// Time in milliseconds until a majority has an append on disk.
    pub append_ms: u64,
    /// Maximum delay of a message in milliseconds.
    pub network_ms: u64,
    /// Time in milliseconds without changes of a model, a worker or the leader before rebalancing.
    pub rebalance_ms: u64,
    /// Every heartbeat is a full report, as in versions before incremental reports.
    pub whole_reports: bool,
    /// Coordinators elect leaders and route requests, and the invariants are checked at every step.
    pub drilled: bool,
    /// Seed of the random numbers.
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

/// Sender or receiver of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Coordinator(usize),
    Worker(usize),
}

/// A simulated cluster.
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
    /// Time since which the leader has had no quorum.
    leader_lost_ms: Option<u64>,
    next_stream: u64,
    log: Vec<RegistryCommand>,
    appending: bool,
    laws: Invariants,
    /// Workers whose replicas fail every request.
    failing: BTreeSet<usize>,
    /// Number of committed writes since the start or the last [`Simulation::reset_costs`].
    pub writes: u64,
    /// Time and command of the last write; empty unless drilled.
    last_write: String,
}

impl Simulation {
    /// Creates a cluster whose workers start to send heartbeats.
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

    /// Returns the settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the simulated time in milliseconds since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.agenda.now_ms()
    }

    /// Returns the committed registry.
    #[must_use]
    pub fn state(&self) -> &RegistryState {
        &self.state
    }

    /// Returns the costs of each coordinator so far.
    #[must_use]
    pub fn costs(&self) -> Vec<Cost> {
        self.coordinators
            .iter()
            .map(|coordinator| coordinator.cost)
            .collect()
    }

    /// Sets all costs and the number of writes to zero.
    pub fn reset_costs(&mut self) {
        self.writes = 0;
        for coordinator in &mut self.coordinators {
            coordinator.cost = Cost::default();
        }
    }

    /// Returns a coordinator's view of the workers.
    #[must_use]
    pub fn live(&self, coordinator: usize) -> &volley_coordinator::live::LiveWorkers {
        &self.coordinators[coordinator].live
    }

    /// Returns the simulated time as an instant, without the clock errors of coordinators.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.now_ms())
    }

    /// Returns the time and the command of the last committed write; empty unless drilled.
    #[must_use]
    pub fn last_write(&self) -> &str {
        &self.last_write
    }

    /// Returns the first violated invariant and its time.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.laws.broken()
    }

    /// Proposes commands to the leader.
    pub fn submit(&mut self, commands: impl IntoIterator<Item = RegistryCommand>) {
        self.log.extend(commands);
        self.append();
    }

    /// Returns the memory of all replicas that the registry places on a worker, in bytes.
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

    /// Returns the number of completed migrations between live workers.
    #[must_use]
    pub fn moved(&self) -> u64 {
        let coordinators = self.coordinators.iter();
        coordinators.map(|coordinator| coordinator.moved).sum()
    }

    /// Returns the number of deployed models.
    #[must_use]
    pub fn deployed(&self) -> usize {
        let models = self.state.models.values();
        models.filter(|entry| entry.deployment.is_some()).count()
    }

    /// Returns whether all deployed replicas are placed, and every coordinator sees them ready.
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

    /// Runs until `done`, which is checked every `every_ms`, and returns the simulated time that
    /// took, in milliseconds; `None` if `limit_ms` pass first.
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

    /// Runs for `ms` milliseconds of simulated time.
    pub fn run(&mut self, ms: u64) {
        let until_ms = self.now_ms() + ms;
        while let Some(event) = self.agenda.next(until_ms) {
            self.happen(event);
        }
    }
}
