//! ONNX Runtime: the shared library, sessions on a device, and the outline of graph files.
//!
//! This is the only crate that depends on `ort`. The crates of model kinds use the binding's types
//! through [`ort`], so that its version and features are chosen in one place. All calls of C
//! functions that the binding lacks, and all `unsafe` code of local models, are here: [`strings`]
//! (texts without copies), [`kv`] (views of caches), `arena` (memory bounds) and `malloc` (memory for
//! the system).
//!
//! Reading order: [`Runtime`] (the library), [`OnnxConfig`], [`graph`] (the outline of a file),
//! [`session`], [`run_timeout`] (the time limit of a run), `memory_watch` (its memory limit),
//! [`failure`].

mod arena;
mod config;
pub mod failure;
pub mod graph;
pub mod kv;
mod malloc;
mod memory_watch;
pub mod run_timeout;
mod runtime;
pub mod session;
pub mod strings;
pub mod wire;

pub use ort;

pub use crate::config::{Device, OnnxConfig};
pub use crate::runtime::{LIBRARY_VARIABLE, Runtime};
