//! Which workers hold which models' replicas. Pure: the registry and what is known of the workers
//! come in, a plan comes out, and the same input always gives the same plan. Nothing here waits,
//! reads a clock, or calls another node: times are arguments.
//!
//! - Input: the [`RegistryState`](volley_types::registry::RegistryState) and a [`PlacementInput`], which
//!   [`planner`] makes of what workers report.
//! - Output: a [`Plan`], which the leader commits as writes. [`assignments::AssignmentIndex`] reads the committed
//!   registry back as what each worker shall hold.
//!
//! The laws, which the property tests of `plan` and `fleet` check:
//!
//! - No worker is given more than its memory, more replicas than the limit, or two replicas of one
//!   version.
//! - A replica stays where it is unless its worker is gone, drained, not allowed or cannot load it.
//! - Whatever is replaced, drained or moved stays until what follows it is ready.
//! - Moves come to rest, and never come back to where they began.
//! - A roll ends, and keeps within `max_surge` and `max_unavailable` whatever is slow.
//!
//! Reading order: [`input`], [`output`], [`plan`](plan()), [`rollout`] (how many replicas of which
//! version there shall be while one replaces the other), `fleet` and `ranks` (the best worker for
//! one more replica), `moves` (which replicas go elsewhere although their workers are there),
//! [`planner`] (what the leader remembers between two plans), [`assignments`].

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
