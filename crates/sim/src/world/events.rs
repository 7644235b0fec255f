//! Events of the simulation, and their handlers.

use std::sync::Arc;

use prost::Message;
use volley_placement::planner::places;
use volley_proto::registry_records::command_to_wire;
use volley_proto::worker_report::orders_to_wire;
use volley_registry::apply;
use volley_sim_kit::network::NetworkConditions;
use volley_types::registry::{RegistryCommand, RegistryState, RolloutAction};
use volley_types::{Assignments, ModelName, ModelVersion, Revision, WorkerId};

use super::{Node, Simulation};
use crate::cost::Meter;

/// Interval of the checks for silent workers.
pub(super) const TICK_MS: u64 = 250;
/// Interval of the heartbeats of a worker.
pub(super) const BEAT_MS: u64 = 500;
/// Interval of planner rounds without news.
pub(super) const PATROL_MS: u64 = 2_000;
/// Delay of a planner round after news, to wait for more.
const SETTLE_MS: u64 = 20;
/// Maximum number of entries in one append.
const APPEND: usize = 32;

#[derive(Debug)]
pub(super) enum Event {
    Beat(usize),
    Heartbeat {
        to: usize,
        worker: usize,
        stream: u64,
        bytes: Vec<u8>,
    },
    HangUp {
        to: usize,
        worker: usize,
        stream: u64,
    },
    Tick,
    Plan(usize),
    Patrol,
    Append,
    /// A coordinator receives the committed registry.
    Apply {
        to: usize,
        state: Arc<RegistryState>,
    },
    /// Runs elections, and updates lagging coordinators.
    Raft,
    Thaw(usize),
    Up(usize),
    ThawWorker(usize),
    Calls,
    Orders {
        worker: usize,
        life: u64,
        revision: Revision,
        wanted: Vec<(ModelName, ModelVersion)>,
    },
    Loaded {
        worker: usize,
        life: u64,
        held: (ModelName, ModelVersion),
    },
}

impl Simulation {
    pub(super) fn after(&mut self, ms: u64, event: Event) {
        self.agenda.after(ms, event);
    }

    pub(super) fn delay(&mut self) -> u64 {
        let weather = NetworkConditions::within(0, self.settings.network_ms);
        weather.delay_ms(&mut self.random)
    }

    /// Schedules a planner round after news for the placement.
    pub(super) fn ring(&mut self, at: usize) {
        if self.seats[at].leads && !self.seats[at].plan_due {
            self.seats[at].plan_due = true;
            self.after(SETTLE_MS, Event::Plan(at));
        }
    }

    pub(super) fn happen(&mut self, event: Event) {
        let Some(event) = self.unless_held(event) else {
            return;
        };
        match event {
            Event::Beat(worker) => self.beat(worker),
            Event::Heartbeat {
                to,
                worker,
                stream,
                bytes,
            } => self.hear(to, worker, stream, &bytes),
            Event::HangUp { to, worker, stream } => {
                let id = self.workers[worker].id.clone();
                if self.coordinators[to].hang_up(&id, stream) {
                    self.ring(to);
                }
            }
            Event::Tick => {
                for index in 0..self.coordinators.len() {
                    if self.acts(index) {
                        self.tick(index);
                    }
                }
                self.after(TICK_MS, Event::Tick);
            }
            Event::Plan(at) => self.plan(at),
            Event::Patrol => {
                for index in 0..self.coordinators.len() {
                    self.ring(index);
                }
                self.after(PATROL_MS, Event::Patrol);
            }
            Event::Append => self.commit(),
            Event::Apply { to, state } => self.apply(to, &state),
            Event::Raft => self.look_around(),
            Event::Thaw(coordinator) => self.thaw(coordinator),
            Event::Up(coordinator) => self.begin_again(coordinator),
            Event::ThawWorker(worker) => self.thaw_worker(worker),
            Event::Calls => self.call(),
            Event::Orders {
                worker,
                life,
                revision,
                wanted,
            } => self.obey(worker, life, revision, wanted),
            Event::Loaded { worker, life, held } => self.loaded(worker, life, &held),
        }
    }

    pub(super) fn tick(&mut self, at: usize) {
        let now = self.clock(at);
        if self.coordinators[at].tick(now) {
            self.ring(at);
        }
    }

    fn beat(&mut self, worker: usize) {
        self.after(BEAT_MS, Event::Beat(worker));
        if self.workers[worker].up && !self.workers[worker].frozen {
            self.report(worker);
        }
    }

    fn report(&mut self, worker: usize) {
        let (now, whole) = (self.now_ms(), self.settings.whole_reports);
        let (seats, links) = (&self.seats, &self.links);
        let takes = |index: usize| !seats[index].down;
        // A connection is established in both directions. Later, messages wait at a cut in it.
        let reached = |index: usize| {
            let other = Node::Coordinator(index);
            links.are_joined(Node::Worker(worker), other)
        };
        let simulated = &mut self.workers[worker];
        let beats = simulated.beat(now, &mut self.next_stream, whole, takes, reached);
        for (to, stream, bytes) in beats {
            let delay = self.travel(worker, to);
            self.after(
                delay,
                Event::Heartbeat {
                    to,
                    worker,
                    stream,
                    bytes,
                },
            );
        }
    }

    fn hear(&mut self, to: usize, worker: usize, stream: u64, bytes: &[u8]) {
        if !self.arrives(worker, to, stream) {
            return;
        }
        let now = self.clock(to);
        let heard = self.coordinators[to].hear(stream, bytes, now);
        let heard = heard.expect("a simulated worker speaks well");
        if heard.first {
            self.order_worker(to, &heard.worker);
        }
        if heard.news {
            self.ring(to);
        }
    }

    pub(super) fn order_worker(&mut self, from: usize, id: &WorkerId) {
        let worker = self.numbers[id];
        if !self.hears(worker, from) || self.workers[worker].links[from].stream.is_none() {
            return;
        }
        let coordinator = &mut self.coordinators[from];
        let meter = Meter::start();
        let orders = Assignments {
            revision: coordinator.book.revision(),
            assignments: coordinator.book.assignments(id),
            coordinators: Vec::new(),
            overcommit: std::collections::BTreeSet::new(),
        };
        let bytes = orders_to_wire(&orders).encode_to_vec().len() as u64;
        coordinator.cost.cpu += meter.stop();
        coordinator.cost.bytes_out += bytes;
        let wanted = orders.assignments.into_iter();
        let wanted = wanted.map(|assignment| (assignment.model, assignment.spec.version));
        let (life, revision) = (self.workers[worker].life, orders.revision);
        let wanted: Vec<_> = wanted.collect();
        let now_ms = self.now_ms();
        self.laws.ordered(now_ms, revision, worker, &wanted);
        let delay = self.delay();
        self.after(
            delay,
            Event::Orders {
                worker,
                life,
                revision,
                wanted,
            },
        );
    }

    fn obey(
        &mut self,
        worker: usize,
        life: u64,
        revision: Revision,
        wanted: Vec<(ModelName, ModelVersion)>,
    ) {
        if !self.workers[worker].up || self.workers[worker].life != life {
            return;
        }
        let wanted = wanted.into_iter().collect();
        let bytes = self.settings.model_bytes;
        let now_ms = self.now_ms();
        self.laws.obeyed(now_ms, &self.workers[worker], revision);
        let Some(begun) = self.workers[worker].follow(revision, &wanted, bytes) else {
            return;
        };
        for held in begun {
            let load_ms = self.settings.load_ms;
            self.after(load_ms, Event::Loaded { worker, life, held });
        }
        self.report(worker);
    }

    fn loaded(&mut self, worker: usize, life: u64, held: &(ModelName, ModelVersion)) {
        let simulated = &mut self.workers[worker];
        if !simulated.up || simulated.life != life {
            return;
        }
        if let Some(replica) = simulated.replicas.get_mut(held) {
            replica.ready = true;
            self.report(worker);
        }
    }

    fn plan(&mut self, at: usize) {
        self.seats[at].plan_due = false;
        if !self.seats[at].leads {
            return;
        }
        // The planner waits for its writes before the next round.
        if self.appending && at == self.leader {
            return self.ring(at);
        }
        let (now, state) = (self.clock(at), self.seats[at].applied.clone());
        let plan = self.coordinators[at].plan(&state, now);
        // A coordinator that only believes it leads finds no majority for its writes.
        if at != self.leader {
            return;
        }
        self.check_plan(&state, &plan);
        self.check_moves(&state, &plan);
        let stops = plan
            .stops
            .into_iter()
            .map(|(model, reason)| RegistryCommand::Rollout {
                model,
                action: RolloutAction::Stop(reason),
            });
        let commands: Vec<_> = stops.chain(places(plan.placings)).collect();
        self.submit(commands);
    }

    pub(super) fn append(&mut self) {
        if !self.appending && !self.log.is_empty() {
            self.appending = true;
            let append_ms = self.settings.append_ms;
            self.after(append_ms, Event::Append);
        }
    }

    /// Commits the oldest entries if the leader has a quorum, and sends the registry to the others.
    fn commit(&mut self) {
        if !self.has_quorum() {
            return self.after(TICK_MS, Event::Append);
        }
        let count = self.log.len().min(APPEND);
        let commands: Vec<_> = self.log.drain(..count).collect();
        let meter = Meter::start();
        let mut next = (*self.state).clone();
        let mut bytes = 0;
        for command in &commands {
            bytes += command_to_wire(command).encoded_len() as u64;
            // A rejected command is committed too.
            let _ = apply(&mut next, command);
        }
        let spent = meter.stop();
        self.state = Arc::new(next);
        self.writes += commands.len() as u64;
        if self.settings.drilled {
            self.last_write = format!("at {} ms: {:?}", self.now_ms(), commands.last());
        }
        let followers = self.coordinators.len() as u64 - 1;
        for index in 0..self.coordinators.len() {
            let leads = index == self.leader;
            let cost = &mut self.coordinators[index].cost;
            cost.cpu += spent;
            if leads {
                cost.bytes_out += bytes * followers;
            } else {
                cost.bytes_in += bytes;
            }
            self.send_committed(index);
        }
        self.appending = false;
        self.append();
        self.ring(self.leader);
    }
}
