//! A cluster in one thread: the real planner, registry, heartbeats and routing, on simulated
//! time and a simulated network. The same seed gives the same run.
//!
//! Reading order: [`Simulation`] (what there is, and the clock), `coordinator`, `worker`, [`cost`]
//! (what it counts), [`measure`] (the runs that are printed), [`scenario`] (faults, and the laws that
//! hold whatever happens).

#![expect(
    clippy::expect_used,
    reason = "a simulation that breaks its own rules must stop"
)]

mod coordinator;
pub mod cost;
pub mod measure;
pub mod scenario;
mod worker;
mod world;

pub use crate::world::{Settings, Simulation};
