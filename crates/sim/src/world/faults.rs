//! Faults and their ends.

use super::events::Event;
use super::{Node, Simulation};
use crate::worker::Link;

/// Delay before a lost packet is sent again, in milliseconds. It doubles with each further loss.
const RESEND_MS: u64 = 200;
/// Time of silence after which a connection is closed, in milliseconds.
const KEEP_ALIVE_MS: u64 = 15_000;

impl Simulation {
    /// Ends a worker's process, which resets its connections.
    pub fn kill(&mut self, worker: usize) {
        let coordinators = 0..self.coordinators.len();
        coordinators.for_each(|coordinator| self.hang_up(worker, coordinator));
        self.workers[worker].die();
    }

    /// Starts a dead worker again.
    pub fn start(&mut self, worker: usize) {
        if !self.workers[worker].up {
            let now = self.now_ms();
            self.workers[worker].start(now);
        }
    }

    /// Freezes a worker for `ms` milliseconds. Its connections stay open unless it is frozen for
    /// longer than the keep-alive timeout.
    pub fn freeze_worker(&mut self, worker: usize, ms: u64) {
        if self.workers[worker].up && !self.workers[worker].frozen {
            self.workers[worker].frozen = true;
            self.after(ms, Event::ThawWorker(worker));
            if KEEP_ALIVE_MS < ms {
                let coordinators = 0..self.coordinators.len();
                coordinators.for_each(|coordinator| self.reset(worker, coordinator));
            }
        }
    }

    pub(super) fn thaw_worker(&mut self, worker: usize) {
        self.workers[worker].frozen = false;
    }

    /// Freezes a coordinator for `ms` milliseconds. Messages to it wait.
    pub fn freeze(&mut self, coordinator: usize, ms: u64) {
        if self.acts(coordinator) {
            self.seats[coordinator].frozen = true;
            self.after(ms, Event::Thaw(coordinator));
        }
    }

    /// Thaws a coordinator. It checks its clock and its messages in random order.
    pub(super) fn thaw(&mut self, coordinator: usize) {
        if !std::mem::take(&mut self.seats[coordinator].frozen) {
            return;
        }
        let clock_first = self.random.bool();
        if clock_first {
            self.tick(coordinator);
        }
        for event in std::mem::take(&mut self.seats[coordinator].held) {
            self.happen(event);
        }
        if !clock_first {
            self.tick(coordinator);
        }
    }

    /// Ends a coordinator's process, and restarts it after `ms` milliseconds.
    pub fn restart(&mut self, coordinator: usize, ms: u64) {
        if self.seats[coordinator].down {
            return;
        }
        for worker in 0..self.workers.len() {
            self.workers[worker].links[coordinator] = Link::default();
        }
        let seat = &mut self.seats[coordinator];
        seat.down = true;
        seat.frozen = false;
        seat.leads = false;
        seat.plan_due = false;
        seat.held.clear();
        self.after(ms, Event::Up(coordinator));
    }

    /// Sets a coordinator's clock ahead by `ms` milliseconds.
    pub fn leap(&mut self, coordinator: usize, ms: u64) {
        self.seats[coordinator].ahead_ms += ms;
    }

    /// Cuts the network between a worker and a coordinator in both directions.
    pub fn cut(&mut self, worker: usize, coordinator: usize) {
        self.mute(worker, coordinator);
        self.deafen(worker, coordinator);
    }

    /// Cuts the direction from a worker to a coordinator.
    pub fn mute(&mut self, worker: usize, coordinator: usize) {
        self.links
            .cut(Node::Worker(worker), Node::Coordinator(coordinator));
    }

    /// Cuts the direction from a coordinator to a worker.
    pub fn deafen(&mut self, worker: usize, coordinator: usize) {
        self.links
            .cut(Node::Coordinator(coordinator), Node::Worker(worker));
    }

    /// Restores the network between a worker and a coordinator. An interrupted connection is reset.
    pub fn mend(&mut self, worker: usize, coordinator: usize) {
        let (one, other) = (Node::Worker(worker), Node::Coordinator(coordinator));
        let (muted, deafened) = (self.links.join(one, other), self.links.join(other, one));
        if muted || deafened {
            self.reset(worker, coordinator);
        }
    }

    /// Resets the connection between a worker and a coordinator. Messages in flight are lost.
    pub fn reset(&mut self, worker: usize, coordinator: usize) {
        self.hang_up(worker, coordinator);
        self.workers[worker].links[coordinator] = Link::default();
    }

    /// Starts or ends the packet loss of a worker.
    pub fn lose(&mut self, worker: usize, lossy: bool) {
        self.workers[worker].lossy = lossy;
    }

    /// Starts or ends the failure of requests to a worker's replicas.
    pub fn fail_requests(&mut self, worker: usize, fail: bool) {
        if fail {
            self.failing.insert(worker);
        } else {
            self.failing.remove(&worker);
        }
    }

    /// Cuts or restores the direction from `speaker` to `hearer`.
    pub fn part(&mut self, speaker: usize, hearer: usize, parted: bool) {
        if speaker == hearer {
            return;
        }
        let (from, to) = (Node::Coordinator(speaker), Node::Coordinator(hearer));
        if parted {
            self.links.cut(from, to);
        } else {
            self.links.join(from, to);
        }
    }

    /// Makes another coordinator the leader, if it is running. The new leader has no record of load
    /// failures.
    pub fn elect(&mut self, leader: usize) {
        if self.acts(leader) && self.leader != leader {
            let before = self.leader;
            self.seats[before].leads = false;
            self.make_leader(leader);
        }
    }

    /// Ends all faults, and starts the processes that are not running.
    pub fn heal(&mut self) {
        for coordinator in 0..self.coordinators.len() {
            for hearer in 0..self.coordinators.len() {
                self.part(coordinator, hearer, false);
            }
            self.thaw(coordinator);
            self.begin_again(coordinator);
            for worker in 0..self.workers.len() {
                self.mend(worker, coordinator);
            }
        }
        for worker in 0..self.workers.len() {
            self.start(worker);
            self.thaw_worker(worker);
            self.lose(worker, false);
            self.fail_requests(worker, false);
        }
    }

    fn hang_up(&mut self, worker: usize, to: usize) {
        if let Some(stream) = self.workers[worker].links[to].stream
            && self.speaks(worker, to)
        {
            let delay = self.delay();
            self.after(delay, Event::HangUp { to, worker, stream });
        }
    }

    /// Returns whether a coordinator receives what a worker sends.
    fn speaks(&self, worker: usize, to: usize) -> bool {
        let to = Node::Coordinator(to);
        !self.links.is_cut(Node::Worker(worker), to)
    }

    /// Returns whether a worker receives what a coordinator sends.
    pub(super) fn hears(&self, worker: usize, from: usize) -> bool {
        let from = Node::Coordinator(from);
        !self.links.is_cut(from, Node::Worker(worker))
    }

    /// Returns the delay of the next heartbeat on a connection in milliseconds.
    pub(super) fn travel(&mut self, worker: usize, to: usize) -> u64 {
        let mut delay = self.settings.network_ms;
        if self.workers[worker].lossy {
            let mut resend = RESEND_MS;
            while self.random.u8(..10) < 3 && delay < KEEP_ALIVE_MS {
                delay += resend;
                resend *= 2;
            }
        }
        let now_ms = self.now_ms();
        let link = &mut self.workers[worker].links[to];
        link.busy_until_ms = link.busy_until_ms.max(now_ms + delay);
        link.busy_until_ms - now_ms
    }

    /// Returns whether a heartbeat belongs to an open connection and arrives.
    pub(super) fn arrives(&self, worker: usize, to: usize, stream: u64) -> bool {
        let sender = &self.workers[worker];
        sender.links[to].stream == Some(stream) && self.speaks(worker, to) && !self.seats[to].down
    }

    /// Returns the event if it can be handled now. Events for a stopped coordinator are dropped,
    /// and events for a frozen node wait.
    pub(super) fn unless_held(&mut self, event: Event) -> Option<Event> {
        let to = match &event {
            Event::Heartbeat {
                to, worker, stream, ..
            } => {
                if self.arrives(*worker, *to, *stream) {
                    let now_ms = self.now_ms();
                    self.laws.arrived(now_ms, *to, *worker);
                }
                *to
            }
            Event::HangUp { to, .. } | Event::Apply { to, .. } | Event::Plan(to) => *to,
            Event::Orders { worker, .. } | Event::Loaded { worker, .. }
                if self.workers[*worker].frozen =>
            {
                self.after(RESEND_MS, event);
                return None;
            }
            _ => return Some(event),
        };
        if self.seats[to].down {
            return None;
        }
        if self.seats[to].frozen {
            self.seats[to].held.push(event);
            return None;
        }
        Some(event)
    }
}
