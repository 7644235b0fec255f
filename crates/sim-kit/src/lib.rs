//! Shared parts of the simulations: a seed determines a scenario, a world executes it and checks
//! its invariants at every step, and a failed scenario is reduced to the acts that it needs.
//!
//! There are two implementations of [`World`]: coordinators with their real consensus, store and
//! services (`volley-cluster`, in its tests), and a whole cluster with the real planner, heartbeats
//! and routing (`volley-sim`). Both run a [`Scenario`].
//!
//! Reading order: [`scenario`], [`seeds`], [`invariants`], [`network`]; then the two clocks:
//! [`agenda`] for a world whose events are values, and `process` (feature `paused-time`) for a
//! world of real tasks; and `trace` for the events of a run.

#![expect(
    clippy::expect_used,
    reason = "a simulation that breaks its own rules must stop"
)]

pub mod agenda;
pub mod invariants;
pub mod network;
#[cfg(feature = "paused-time")]
pub mod process;
pub mod scenario;
pub mod seeds;
#[cfg(feature = "paused-time")]
pub mod trace;

pub use crate::scenario::{FailedScenario, Scenario, World};
