//! A model of consensus: leadership, and the registry that each coordinator has applied. Committed
//! writes are assumed never to be lost, and the next leader has all of them. Other weaknesses of
//! consensus are simulated: coordinators lag, and a deposed leader believes that it leads until it
//! receives a message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_types::registry::RegistryState;

use super::events::{Event, TICK_MS};
use super::{Node, Simulation};

/// Time in milliseconds without a quorum after which another coordinator takes over.
const LEASE_MS: u64 = 1_500;

/// State of a coordinator in the consensus model.
pub(super) struct RaftMember {
    /// Registry that it has applied.
    pub(super) applied: Arc<RegistryState>,
    /// It believes that it leads.
    pub(super) leads: bool,
    pub(super) plan_due: bool,
    /// Start time of its process.
    pub(super) born_ms: u64,
    /// Error of its clock in milliseconds.
    pub(super) ahead_ms: u64,
    /// It does nothing, and received messages wait.
    pub(super) frozen: bool,
    /// Its process is not running.
    pub(super) down: bool,
    /// Events that arrived while it was frozen.
    pub(super) held: Vec<Event>,
}

impl RaftMember {
    pub(super) fn new(index: usize) -> Self {
        Self {
            applied: Arc::default(),
            leads: index == 0,
            plan_due: false,
            born_ms: 0,
            ahead_ms: 0,
            frozen: false,
            down: false,
            held: Vec::new(),
        }
    }
}

impl Simulation {
    pub(super) fn begin_drill(&mut self) {
        self.after(TICK_MS, Event::Raft);
        self.after(TICK_MS, Event::Calls);
    }

    /// Returns the time of a coordinator's own clock.
    pub(super) fn clock(&self, at: usize) -> Instant {
        self.now() + Duration::from_millis(self.seats[at].ahead_ms)
    }

    /// Returns whether a coordinator is running and not frozen.
    pub(super) fn acts(&self, at: usize) -> bool {
        !self.seats[at].frozen && !self.seats[at].down
    }

    fn is_linked(&self, one: usize, other: usize) -> bool {
        let (one, hearer) = (Node::Coordinator(one), Node::Coordinator(other));
        self.acts(other) && self.links.are_joined(one, hearer)
    }

    /// Returns whether a coordinator can exchange messages with a majority, including itself.
    fn is_with_most(&self, at: usize) -> bool {
        let others = (0..self.seats.len()).filter(|other| *other != at);
        let with = others.filter(|other| self.is_linked(at, *other)).count();
        self.acts(at) && self.seats.len() < (with + 1) * 2
    }

    pub(super) fn has_quorum(&self) -> bool {
        self.seats[self.leader].leads && self.is_with_most(self.leader)
    }

    /// Sends the committed registry to a coordinator. The leader applies it directly.
    pub(super) fn send_committed(&mut self, to: usize) {
        let state = self.state.clone();
        if to == self.leader || !self.settings.drilled {
            return self.apply(to, &state);
        }
        if self.is_linked(self.leader, to) {
            let delay = self.delay();
            self.after(delay, Event::Apply { to, state });
        }
    }

    pub(super) fn apply(&mut self, to: usize, state: &Arc<RegistryState>) {
        if state.revision < self.seats[to].applied.revision || self.seats[to].down {
            return;
        }
        self.seats[to].applied = state.clone();
        for worker in self.coordinators[to].follow(state) {
            self.order_worker(to, &worker);
        }
    }

    /// Holds elections, informs deposed leaders, and sends missed writes to lagging coordinators.
    pub(super) fn look_around(&mut self) {
        self.after(TICK_MS, Event::Raft);
        if self.has_quorum() {
            self.leader_lost_ms = None;
        } else {
            let since = *self.leader_lost_ms.get_or_insert(self.agenda.now_ms());
            let patience = LEASE_MS + self.random.u64(0..500);
            if since + patience <= self.now_ms() {
                self.vote();
            }
        }
        let leader = self.leader;
        for index in 0..self.seats.len() {
            if index == leader || !self.is_linked(leader, index) || !self.acts(leader) {
                continue;
            }
            self.seats[index].leads = false;
            if self.seats[index].applied.revision < self.state.revision {
                self.send_committed(index);
            }
        }
    }

    /// Makes a random coordinator with a majority the leader, if there is one.
    fn vote(&mut self) {
        let all = 0..self.seats.len();
        let able: Vec<_> = all.filter(|index| self.is_with_most(*index)).collect();
        if let Some(chosen) = self.random.choice(able) {
            self.make_leader(chosen);
        }
    }

    /// Makes `chosen` the leader. It has all committed writes, and a random prefix of those that
    /// its predecessor was about to propose.
    pub(super) fn make_leader(&mut self, chosen: usize) {
        let proposed = self.random.usize(0..=self.log.len());
        self.log.truncate(proposed);
        self.leader = chosen;
        self.leader_lost_ms = None;
        self.seats[chosen].leads = true;
        // A real coordinator discards this state in every planner round in which it does not lead.
        self.coordinators[chosen].mover.forget();
        let state = self.state.clone();
        self.apply(chosen, &state);
        self.ring(chosen);
    }

    /// Restarts the process of a coordinator with the registry that it had applied.
    pub(super) fn begin_again(&mut self, at: usize) {
        if !self.seats[at].down {
            return;
        }
        let now_ms = self.now_ms();
        let seat = &mut self.seats[at];
        seat.down = false;
        seat.born_ms = now_ms;
        let applied = seat.applied.clone();
        let rebalance_after = self.settings.rebalance_after();
        self.coordinators[at].restart(rebalance_after);
        // No worker is connected, so this only builds the assignments.
        self.coordinators[at].follow(&applied);
    }
}
