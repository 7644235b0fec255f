//! Placement of replicas on workers. Pure: the input is the registry and the state of the workers,
//! the output is a plan, and the same input always returns the same plan. This crate does not wait,
//! read a clock, or call other nodes: times are arguments.
//!
//! - Input: the [`RegistryState`](volley_types::registry::RegistryState) and a [`PlacementInput`], which
//!   [`planner`] makes of what workers report.
//! - Output: a [`Plan`], which the leader commits as writes. [`assignments::AssignmentIndex`] reads the committed
//!   registry back as what each worker shall hold.
//!
//! Invariants, checked by the property tests of `plan` and `fleet`:
//!
//! - No worker is given more than its memory, more replicas than the limit, or two replicas of one
//!   version.
//! - A replica stays where it is unless its worker is gone, drained, not allowed or cannot load it.
//! - Whatever is replaced, drained or moved stays until what follows it is ready.
//! - Moves come to rest, and never come back to where they began.
//! - A roll ends, and keeps within `max_surge` and `max_unavailable` whatever is slow.
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
