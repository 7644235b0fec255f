//! Models in processes of their own: what a file that was made to do harm breaks is its own
//! process, not the worker.
//!
//! A worker's [`HostedLoader`] starts this binary anew as `volley model-host`, with one end of a
//! socket as its standard input. Two messages travel over it, what to load and what came of it
//! (`message`); then it carries the Flight contract, as between a coordinator and a worker. The
//! child ends when the socket does. A child that ends by itself fails what it ran, and is started
//! again (`hosted`); after too many ends the model is lost, and its replica has failed.
//!
//! Reading order: [`HostedLoader`], `child` (one process, from outside), `hosted` (a model over
//! all its processes), [`runtime`] (the process, from inside).

mod loader;
mod message;
mod process;
pub mod runtime;
mod supervisor;
mod warmup;

pub use crate::loader::{BySource, HostedLoader, TrustedModels, Use};
pub use crate::message::LoadReport;
pub use crate::process::{ProcessEnd, Program};
pub use crate::supervisor::{HostedModel, Launch, Launched, Restarts, Supervisor};
