//! Migrations started by the leader, and the conditions for further ones. This state is lost with
//! the leadership: the next leader finds one replica more than desired, removes the one that does
//! not serve yet, and starts again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_types::control::Liveness;
use volley_types::registry::{ModelEntry, RegistryState};
use volley_types::{ModelName, WorkerId};

use super::observed::ObservedWorkers;
use crate::assignments::differences;
use crate::input::Moves;
use crate::output::{Move, MoveReason, Plan};

/// Maximum number of running migrations.
const MAX_UNDER_WAY: usize = 8;
/// Time limit of a migration.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Initial and maximum interval of searches for migrations.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Difference between the fullest and the emptiest worker, in thousandths of their memory, at which
/// rebalancing starts, and at which it ends.
const APART: (u64, u64) = (200, 100);

/// Outcome of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The replica serves on the target and was removed from the source.
    Done,
    /// The replica stays on the source, or another change came first.
    GivenUp,
}

impl MoveOutcome {
    /// Stable name, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::GivenUp => "given_up",
        }
    }
}

/// The leader's state of migrations.
#[derive(Debug)]
pub struct Rebalancer {
    /// Time without changes of a model, a worker or the leader before rebalancing may start.
    after: Duration,
    since: Option<Instant>,
    seen: Arc<RegistryState>,
    /// Time of the last deployment, scaling or placement of a model.
    changed: HashMap<ModelName, Instant>,
    /// Time of the last migration of a model, completed or abandoned.
    moved: HashMap<ModelName, Instant>,
    /// Time since which each worker accepts replicas.
    present: HashMap<WorkerId, Instant>,
    under_way: BTreeMap<ModelName, (Move, Instant)>,
    wanted: bool,
    rebalancing: bool,
    look_at: Option<Instant>,
    pause: Duration,
}

impl Rebalancer {
    /// Creates the state of a new leader. Rebalancing starts after a model, a worker and the leader
    /// have been unchanged for `after`.
    #[must_use]
    pub fn new(after: Duration) -> Self {
        Self {
            after,
            since: None,
            seen: Arc::default(),
            changed: HashMap::new(),
            moved: HashMap::new(),
            present: HashMap::new(),
            under_way: BTreeMap::new(),
            wanted: false,
            rebalancing: false,
            look_at: None,
            pause: LOOK.0,
        }
    }

    /// Discards the state when this coordinator stops leading.
    pub fn forget(&mut self) {
        if self.since.is_some() {
            *self = Self::new(self.after);
        }
    }

    /// Number of running migrations.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Applies the observed state. Returns the ended migrations.
    pub fn learn(
        &mut self,
        state: &Arc<RegistryState>,
        observed: &ObservedWorkers<'_>,
        now: Instant,
    ) -> Vec<(Move, MoveOutcome)> {
        let after = self.after;
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < after;
        let before = std::mem::replace(&mut self.seen, state.clone());
        if self.since.is_none() {
            self.since = Some(now);
        } else if !Arc::ptr_eq(&before, state) {
            for (name, old, new) in differences(&before, state) {
                if new.is_some_and(|new| is_other(old, new)) {
                    self.changed.insert(name.clone(), now);
                }
            }
        }
        self.changed.retain(|_, at| is_recent(at));
        self.moved.retain(|_, at| is_recent(at));
        let takes = |id: &WorkerId| {
            let worker = observed.workers.get(id);
            let alive = worker.is_some_and(|worker| worker.liveness == Liveness::Alive);
            alive && state.worker_drain(id).is_none()
        };
        self.present.retain(|id, _| takes(id));
        for id in observed.workers.keys() {
            if takes(id) && !self.present.contains_key(*id) {
                self.present.insert((*id).clone(), now);
                // Another candidate exists.
                (self.pause, self.look_at) = (LOOK.0, None);
            }
        }
        self.settle(state, now)
    }

    /// Removes and returns the ended migrations.
    fn settle(&mut self, state: &RegistryState, now: Instant) -> Vec<(Move, MoveOutcome)> {
        let mut ended = Vec::new();
        self.under_way.retain(|name, (one, begun)| {
            let late = PATIENCE <= now.saturating_duration_since(*begun);
            let entry = state.models.get(name);
            let end = if late {
                Some(MoveOutcome::GivenUp)
            } else {
                end_of(one, entry.map(|entry| &**entry))
            };
            if let Some(end) = end {
                ended.push((one.clone(), end));
            }
            end.is_none()
        });
        for (one, end) in &ended {
            self.moved.insert(one.model.clone(), now);
            self.pause = LOOK.0;
            self.look_at = Some(now);
            tracing::info!(
                model = %one.model, from = %one.from, to = %one.to, reason = one.reason.as_str(),
                end = end.as_str(), "replica migration ended",
            );
        }
        ended
    }

    /// Returns the migrations as input of a plan. New ones only start if `may`.
    #[must_use]
    pub fn moves<'a>(&'a self, state: &'a RegistryState, may: bool, now: Instant) -> Moves<'a> {
        let is_due = self.look_at.is_none_or(|at| at <= now);
        let may_begin = match self.wanted && is_due && may {
            true => MAX_UNDER_WAY.saturating_sub(self.under_way.len()),
            false => 0,
        };
        let leads = self
            .since
            .is_some_and(|since| self.after <= now.saturating_duration_since(since));
        let apart = if self.rebalancing { APART.1 } else { APART.0 };
        let recent = |(id, at): (&'a WorkerId, &Instant)| {
            (now.saturating_duration_since(*at) < self.after).then_some(id)
        };
        let young = self.present.iter().filter_map(recent);
        let under_way = self.under_way.iter().map(|(name, (one, _))| (name, one));
        Moves {
            under_way: under_way.collect(),
            may_begin,
            imbalance: (leads && state.rebalances()).then_some(apart),
            resting: match may_begin {
                0 => std::collections::HashSet::new(),
                _ => self.changed.keys().collect(),
            },
            fixed: self.moved.keys().collect(),
            young: young.collect(),
        }
    }

    /// Records the started migrations of a plan in which up to `may_begin` were allowed.
    pub fn took(&mut self, plan: &Plan, may_begin: usize, now: Instant) {
        self.wanted = plan.moves_wanted;
        for one in &plan.moves {
            tracing::info!(
                model = %one.model, from = %one.from, to = %one.to, reason = one.reason.as_str(),
                "replica migration started",
            );
            self.under_way.insert(one.model.clone(), (one.clone(), now));
        }
        if may_begin == 0 {
            return;
        }
        let rebalances = |one: &Move| one.reason == MoveReason::Rebalance;
        if plan.moves.iter().any(rebalances) {
            self.rebalancing = true;
        } else if self.under_way.is_empty() {
            self.rebalancing = false;
        }
        self.pause = match self.under_way.is_empty() {
            true => (self.pause * 2).min(LOOK.1),
            false => LOOK.0,
        };
        self.look_at = Some(now + self.pause);
    }
}

/// Returns whether the deployment or the placement of a model changed.
fn is_other(old: Option<&ModelEntry>, new: &ModelEntry) -> bool {
    let asked = |entry: &ModelEntry| {
        let deployment = entry.deployment.as_ref();
        deployment.map(|deployment| (deployment.revision, deployment.replicas))
    };
    let same = |old: &ModelEntry| asked(old) == asked(new) && old.placement == new.placement;
    new.deployment.is_some() && !old.is_some_and(same)
}

/// Returns the outcome of a migration, if it has ended. A migration is abandoned if the source
/// replica is needed after all.
fn end_of(one: &Move, entry: Option<&ModelEntry>) -> Option<MoveOutcome> {
    let Some((entry, deployment)) = entry.and_then(|it| Some((it, it.deployment.as_ref()?))) else {
        return Some(MoveOutcome::GivenUp);
    };
    let stands = deployment.revision == one.deployment && deployment.rollout.is_none();
    let placed = |worker: &WorkerId| stands && entry.placement.contains(worker);
    let beyond = (deployment.replicas as usize) < entry.placement.len();
    match (placed(&one.from), placed(&one.to)) {
        (true, true) if beyond => None,
        (false, true) => Some(MoveOutcome::Done),
        _ => Some(MoveOutcome::GivenUp),
    }
}
