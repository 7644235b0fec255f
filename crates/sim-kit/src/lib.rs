//! What the simulations share: a seed makes a story, a world has the story happen to it, laws are
//! checked at every step, and a story that breaks one is cut down to what it takes.
//!
//! A [`World`] is what a story happens to. There are two: coordinators with their real consensus,
//! store and services (`volley-cluster`, in its tests), and a whole cluster with the real planner,
//! heartbeats and routing (`volley-sim`). Both have their [`Scenario`] told here.
//!
//! Reading order: [`scenario`], [`seeds`], [`invariants`], [`network`]; then the two clocks: [`agenda`] for
//! a world whose events are values, `process` (feature `paused-time`) for one that runs real tasks;
//! `trace` for what happened.

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
