//! Placement of replicas on workers. Pure: the input is the registry and the state of the workers,
//! the output is a plan, and the same input always returns the same plan. This crate does not wait,
//! read a clock, or call other nodes: times are arguments.
//!
//! - Input: the [`RegistryState`](volley_types::registry::RegistryState) and a [`PlacementInput`],
//!   which [`planner`] builds from the workers' reports.
//! - Output: a [`Plan`], which the leader commits as writes. [`assignments::AssignmentIndex`]
//!   returns the assignments of each worker in the committed registry.
//!
//! Invariants, checked by the property tests of `plan` and `fleet`:
//!
//! - No worker exceeds its memory budget or the maximum number of replicas, or gets two replicas of
//!   one version.
//! - A replica stays on its worker unless the worker is gone, drained, not allowed or cannot load
//!   it.
//! - A replaced, drained or migrated replica stays until its replacement is ready.
//! - Migrations end, and no sequence of them returns to its start.
//! - A rollout ends, and keeps within `max_surge` and `max_unavailable` even if workers are slow.
//!
//! Reading order: [`input`], [`output`], [`plan`](plan()), [`rollout`] (replicas of each version
//! during a rollout), `fleet` and `ranks` (the best worker for one more replica), `moves`
//! (migrations between live workers), [`planner`] (state of the leader between two plans),
//! [`assignments`].

pub mod assignments;
mod desired;
mod fleet;
pub mod input;
mod moves;
pub mod output;
mod plan;
pub mod planner;
mod ranks;
pub mod rollout;

pub use crate::input::{Moves, PlacedReplica, PlacementInput, PlacementWorker};
pub use crate::output::{Move, MoveReason, Plan};
pub use crate::plan::plan;
