//! Who leads, and who has applied what. Consensus itself is taken for granted here: what more than
//! half have is never lost, and one of those that have all of it leads next. What it leaves open
//! is not: coordinators lag, and one that was deposed believes that it leads until it hears
//! otherwise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_types::registry::RegistryState;

use super::events::{Event, TICK_MS};
use super::{Node, Simulation};

/// How long a leader may do without the others before one of them takes over.
const LEASE_MS: u64 = 1_500;

/// One coordinator's machine, and what its process knows of the others.
pub(super) struct RaftMember {
    /// What it has applied.
    pub(super) applied: Arc<RegistryState>,
    /// It believes that it leads.
    pub(super) leads: bool,
    pub(super) plan_due: bool,
    /// When its process was started.
    pub(super) born_ms: u64,
    /// How far its clock is ahead.
    pub(super) ahead_ms: u64,
    /// It does nothing; what is sent to it waits.
    pub(super) frozen: bool,
    /// Its process does not run.
    pub(super) down: bool,
    /// What came while it was frozen.
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

    /// A coordinator's own clock.
    pub(super) fn clock(&self, at: usize) -> Instant {
        self.now() + Duration::from_millis(self.seats[at].ahead_ms)
    }

    /// Whether a coordinator runs.
    pub(super) fn acts(&self, at: usize) -> bool {
        !self.seats[at].frozen && !self.seats[at].down
    }

    fn is_linked(&self, one: usize, other: usize) -> bool {
        let (one, hearer) = (Node::Coordinator(one), Node::Coordinator(other));
        self.acts(other) && self.links.are_joined(one, hearer)
    }

    /// Whether a coordinator and those that it talks with are more than half.
    fn is_with_most(&self, at: usize) -> bool {
        let others = (0..self.seats.len()).filter(|other| *other != at);
        let with = others.filter(|other| self.is_linked(at, *other)).count();
        self.acts(at) && self.seats.len() < (with + 1) * 2
    }

    pub(super) fn has_quorum(&self) -> bool {
        self.seats[self.leader].leads && self.is_with_most(self.leader)
    }

    /// The leader tells another coordinator what is committed, or takes it itself.
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

    /// Elections, news of them, and what those that lag have missed.
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

    /// Somebody who talks with more than half takes over, if there is anybody.
    fn vote(&mut self) {
        let all = 0..self.seats.len();
        let able: Vec<_> = all.filter(|index| self.is_with_most(*index)).collect();
        if let Some(chosen) = self.random.choice(able) {
            self.make_leader(chosen);
        }
    }

    /// `chosen` has all that was committed. Of what its predecessor was about to propose, it has
    /// the first part.
    pub(super) fn make_leader(&mut self, chosen: usize) {
        let proposed = self.random.usize(0..=self.log.len());
        self.log.truncate(proposed);
        self.leader = chosen;
        self.leader_lost_ms = None;
        self.seats[chosen].leads = true;
        // It has looked again and again while it did not lead.
        self.coordinators[chosen].mover.forget();
        let state = self.state.clone();
        self.apply(chosen, &state);
        self.ring(chosen);
    }

    /// The process of a coordinator starts, with what it had applied.
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
        // Nobody is connected to it: this only fills its book.
        self.coordinators[at].follow(&applied);
    }
}
