//! Models in child processes: a malicious or broken model file crashes its own process, not the
//! worker.
//!
//! A worker's [`HostedLoader`] starts its own binary as `volley model-host`, with one end of a
//! socket pair as standard input. Two messages travel over the socket, the load command and its
//! result (`message`). After that the socket carries the Flight contract, as between a coordinator
//! and a worker. The child ends when the socket closes. If a child ends by itself, its requests
//! fail and it is restarted (`supervisor`). After too many ends the model is lost, and its replica
//! fails.
//!
//! Reading order: [`HostedLoader`], `process` (one process, from outside), `supervisor` (a model
//! over all its processes), [`runtime`] (the process, from inside), `memory_guard` (its end when it
//! takes too much memory).

mod loader;
mod memory_guard;
mod message;
mod process;
pub mod runtime;
mod supervisor;
mod warmup;

pub use crate::loader::{BySource, HostedLoader, TrustedModels, Use};
pub use crate::message::LoadReport;
pub use crate::process::{ProcessEnd, Program};
pub use crate::supervisor::{HostedModel, Launch, Launched, Restarts, Supervisor};
