//! One round of the leader's planner, and its state between two rounds. Pure: the input is the
//! observed workers and the time, the output is the decisions.

mod failures;
mod observed;
mod plan_input;
mod rebalancer;

use std::sync::Arc;
use std::time::Instant;

use volley_types::registry::{PlacementDecision, RegistryCommand, RegistryState};

pub use self::failures::Failures;
pub use self::observed::{ObservedWorker, ObservedWorkers};
pub use self::plan_input::input;
pub use self::rebalancer::{MoveOutcome, Rebalancer};
use crate::output::{Move, Plan};
use crate::plan::plan;

/// Maximum number of placements in one write.
const BATCH: usize = 256;

/// Runs one round: returns the plan and the ended migrations. Pure except for the state between two
/// rounds (`failures` and `mover`). Migrations only start if `may_move`. The `now` of all rounds
/// must come from one clock.
pub fn decide(
    state: &Arc<RegistryState>,
    observed: &ObservedWorkers<'_>,
    failures: &mut Failures,
    mover: &mut Rebalancer,
    may_move: bool,
    now: Instant,
) -> (Plan, Vec<(Move, MoveOutcome)>) {
    failures.learn(state, observed);
    let ended = mover.learn(state, observed, now);
    let moves = mover.moves(state, may_move && !observed.settling, now);
    let may_begin = moves.may_begin;
    let input = input(state, observed, failures, moves);
    let plan = plan(state, &input);
    drop(input);
    mover.took(&plan, may_begin, now);
    (plan, ended)
}

/// Returns the writes of placements. Migrations are in separate writes, because they may be
/// rejected while coordinators of two versions run.
pub fn places(placings: Vec<PlacementDecision>) -> impl Iterator<Item = RegistryCommand> {
    let (moving, others): (Vec<_>, Vec<_>) = placings.into_iter().partition(|it| it.moving);
    let batches = [others, moving].into_iter().flat_map(|placings| {
        let batches = placings.chunks(BATCH).map(<[_]>::to_vec);
        batches.collect::<Vec<_>>()
    });
    batches.map(RegistryCommand::Place)
}
