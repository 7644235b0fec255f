//! Invariants that hold at every step. They are judged by the true state, and not by what nodes
//! believe.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use volley_placement::Plan;
use volley_sim_kit::invariants::Verdict;
use volley_types::control::Liveness;
use volley_types::registry::{ModelEntry, PlacementDecision, RegistryState};
use volley_types::{ModelName, ModelVersion, Revision, WorkerId};

use super::{Settings, Simulation};
use crate::worker::Worker;

/// A worker that was heard within this time keeps its replicas.
const GRACE_MS: u64 = 10_000;
/// Maximum number of running migrations.
const MAX_MOVING: usize = 8;
/// Tolerance for the interval at which clocks are checked.
const SLACK_MS: u64 = 300;

type Replicas = Vec<(ModelName, ModelVersion)>;

/// The checks and their verdict.
pub(super) struct Invariants {
    on: bool,
    verdict: Verdict,
    /// Time of the last heartbeat that reached each coordinator's machine, by coordinator and
    /// worker.
    arrived_ms: Vec<Vec<u64>>,
    /// Assignments that workers received, by revision.
    told: HashMap<(Revision, usize), Replicas>,
}

impl Invariants {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            on: settings.drilled,
            verdict: Verdict::default(),
            arrived_ms: vec![vec![0; settings.workers]; settings.coordinators],
            told: HashMap::new(),
        }
    }

    pub(super) fn broken(&self) -> Option<&str> {
        self.verdict.broken()
    }

    pub(super) fn break_at(&mut self, now_ms: u64, what: &str) {
        self.verdict.breaks(format!("at {now_ms} ms: {what}"));
    }

    pub(super) fn arrived(&mut self, now_ms: u64, to: usize, worker: usize) {
        self.arrived_ms[to][worker] = now_ms;
    }

    /// Checks that all coordinators send a worker the same assignments for one revision.
    pub(super) fn ordered(
        &mut self,
        now_ms: u64,
        revision: Revision,
        worker: usize,
        wanted: &Replicas,
    ) {
        if !self.on {
            return;
        }
        let before = self.told.entry((revision, worker));
        let before = before.or_insert_with(|| wanted.clone());
        if before != wanted {
            let what = format!(
                "worker {worker} was told {before:?} and {wanted:?} of revision {}",
                revision.0
            );
            self.break_at(now_ms, &what);
        }
    }

    /// Checks that a worker which receives assignments still holds exactly the ones that it
    /// follows.
    pub(super) fn obeyed(&mut self, now_ms: u64, worker: &Worker, revision: Revision) {
        let follows: BTreeSet<_> = worker.replicas.keys().collect();
        let number = worker.id.as_str().rsplit('-').next();
        let number = number.and_then(|number| number.parse::<usize>().ok());
        let told = number.and_then(|number| self.told.get(&(worker.followed, number)));
        let differs = told.is_some_and(|told| told.iter().collect::<BTreeSet<_>>() != follows);
        if self.on && differs {
            let what = format!(
                "{} holds what revision {} did not order, when it hears of {}",
                worker.id, worker.followed.0, revision.0
            );
            self.break_at(now_ms, &what);
        }
    }
}

impl Simulation {
    /// Checks that a plan removes nothing from present workers, and spreads new replicas.
    pub(super) fn check_plan(&mut self, state: &RegistryState, plan: &Plan) {
        if !self.laws.on {
            return;
        }
        for placing in &plan.placings {
            let Some(entry) = state.models.get(&placing.model) else {
                continue;
            };
            let wrong = self.moved_without_need(entry, placing);
            let wrong = wrong.or_else(|| self.spread_badly(state, plan, entry, placing));
            if let Some(what) = wrong {
                self.laws.break_at(self.agenda.now_ms(), &what);
            }
        }
    }

    /// Checks that a migration removes nothing before its end, and that the number of migrations is
    /// bounded.
    pub(super) fn check_moves(&mut self, state: &RegistryState, plan: &Plan) {
        if !self.laws.on {
            return;
        }
        for (at, one) in plan.moves.iter().enumerate() {
            let entry = state.models.get(&one.model);
            let placing = plan.placings.iter().find(|it| it.model == one.model);
            let again = plan.moves[..at].iter().any(|it| it.model == one.model);
            let stays = entry.zip(placing).is_some_and(|(entry, placing)| {
                let mut held = entry.placement.iter();
                held.all(|worker| placing.workers.contains(worker))
                    && placing.workers.contains(&one.to)
                    && !entry.placement.contains(&one.to)
                    && entry.placement.contains(&one.from)
            });
            if again || !stays {
                let what = format!("{one:?} begins, of {entry:?} with {placing:?}");
                self.laws.break_at(self.agenda.now_ms(), &what);
            }
        }
        let models = state.models.values();
        let moving = models.filter(|entry| {
            let deployment = entry.deployment.as_ref();
            deployment.is_some_and(|deployment| {
                deployment.rollout.is_none()
                    && (deployment.replicas as usize) < entry.placement.len()
            })
        });
        let moving = moving.count() + plan.moves.len();
        if !plan.moves.is_empty() && MAX_MOVING < moving {
            self.laws.break_at(
                self.agenda.now_ms(),
                &format!("{moving} replicas move at a time"),
            );
        }
    }

    /// Checks that needed replicas are only removed from workers that were silent for the grace
    /// period.
    fn moved_without_need(
        &self,
        entry: &ModelEntry,
        placing: &PlacementDecision,
    ) -> Option<String> {
        let deployment = entry.deployment.as_ref()?;
        if deployment.rollout.is_some() {
            return None;
        }
        let surplus = (entry.placement.len()).saturating_sub(deployment.replicas as usize);
        let old = entry.placement.iter();
        let taken: Vec<_> = old.filter(|id| !placing.workers.contains(id)).collect();
        let present = taken.iter().filter(|id| !self.is_truly_gone(id)).count();
        (surplus < present).then(|| {
            format!(
                "coordinator {} takes '{}' from {taken:?}, of whom {present} were heard within \
                 the grace",
                self.leader, entry.name
            )
        })
    }

    fn is_truly_gone(&self, id: &WorkerId) -> bool {
        let worker = self.numbers[id];
        let heard = self.laws.arrived_ms[self.leader][worker];
        let since = heard.max(self.seats[self.leader].born_ms);
        GRACE_MS <= self.now_ms() - since + SLACK_MS
    }

    /// Checks that no other value of the label had fewer replicas and a worker with room.
    fn spread_badly(
        &self,
        state: &RegistryState,
        plan: &Plan,
        entry: &ModelEntry,
        placing: &PlacementDecision,
    ) -> Option<String> {
        let deployment = entry.deployment.as_ref()?;
        let spread = deployment.options.spread.as_deref()?;
        if deployment.rollout.is_some() {
            return None;
        }
        let zone = |id: &WorkerId| self.workers[self.numbers[id]].label(spread);
        let held = held_after(state, plan);
        let live = &self.coordinators[self.leader].live;
        let has_room = |id: &WorkerId| {
            let worker = live.get(id);
            let alive = worker.is_some_and(|worker| worker.liveness == Liveness::Alive);
            let budget = self.settings.budget_bytes / self.settings.model_bytes.max(1);
            alive && held.get(id).copied().unwrap_or(0) < budget
        };
        for (at, added) in placing.workers.iter().enumerate() {
            let before = &placing.workers[..at];
            if entry.placement.contains(added) {
                continue;
            }
            let count = |in_zone: Option<&str>| {
                let same = before.iter().filter(|id| zone(id) == in_zone);
                same.count()
            };
            let mut others = self.numbers.keys();
            let better = others.find(|id| {
                !placing.workers.contains(id)
                    && has_room(id)
                    && count(zone(id)) < count(zone(added))
            });
            if let Some(better) = better {
                return Some(format!(
                    "'{}' goes to {added} beside {before:?}, although {better} has room",
                    entry.name
                ));
            }
        }
        None
    }

    /// Checks that all coordinators have applied the same registry, and that workers hold exactly
    /// their assignments. This holds at rest only.
    ///
    /// # Errors
    /// A description of the first difference.
    pub fn agreed(&self) -> Result<(), String> {
        if !self.log.is_empty() {
            return Err("writes wait".to_owned());
        }
        for (index, seat) in self.seats.iter().enumerate() {
            if seat.applied.revision != self.state.revision {
                return Err(format!("coordinator {index} lags"));
            }
            if seat.leads != (index == self.leader) {
                return Err(format!("coordinator {index} does not know who leads"));
            }
        }
        for worker in self.workers.iter().filter(|worker| worker.up) {
            let wanted = self.state.assignments(&worker.id);
            let wanted: BTreeSet<_> = wanted
                .into_iter()
                .map(|assignment| (assignment.model, assignment.spec.version))
                .collect();
            let held: BTreeSet<_> = worker.replicas.keys().cloned().collect();
            if wanted != held {
                return Err(format!("{} holds {held:?}, not {wanted:?}", worker.id));
            }
        }
        Ok(())
    }
}

/// Returns the number of replicas of each worker after a plan.
fn held_after(state: &RegistryState, plan: &Plan) -> BTreeMap<WorkerId, u64> {
    let mut held = BTreeMap::new();
    for entry in state.models.values() {
        let placing = plan.placings.iter().find(|it| it.model == entry.name);
        let rollout = entry.deployment.as_ref().and_then(|it| it.rollout.as_ref());
        let (workers, previous) = match placing {
            Some(placing) => (&placing.workers[..], &placing.previous[..]),
            None => (
                &entry.placement[..],
                rollout.map_or(&[][..], |rollout| &rollout.previous),
            ),
        };
        for id in workers.iter().chain(previous) {
            *held.entry(id.clone()).or_default() += 1;
        }
    }
    held
}
