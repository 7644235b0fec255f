//! A cluster in one thread: the real planner, registry, heartbeats and routing, on simulated time
//! and a simulated network. The same seed gives the same run.
//!
//! Reading order: [`Simulation`] (the cluster and its clock), `coordinator`, `worker`, [`cost`]
//! (what a coordinator spends), [`measure`] (the measurements that `volley-sim` prints),
//! [`scenario`] (random faults and the invariants).

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
