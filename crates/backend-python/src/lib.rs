//! The backend `python`: models that are Python classes and functions.
//!
//! Each instance of a model is a process of its own: a Python interpreter that runs the host
//! program (`host/`), which loads the model's file. The worker and the process exchange frames over
//! a Unix socket (`frame`): columns in Arrow's layout, calls, credits and cancels. The model's
//! code cannot reach the worker's memory, and its end is an error of its own calls only.
//!
//! Reading order: [`PythonLoader`] (`loader`), `launcher` (one instance), `batcher` (several requests
//! in one call), `model` (a request on one process), `session` (the connection), `frame` and `column`
//! (the bytes), `process` (start and end), `keeper` (the parent of a model's process: `usage` and
//! `tree`, limits; `cgroup`; `sandbox`, files and network), `gpus`, `environment` (interpreters and
//! packages), `triton` (models of Triton
//! repositories), `host` (the Python files).

mod batcher;
mod cgroup;
mod column;
mod config;
mod environment;
mod frame;
mod gpus;
mod host;
mod inferless;
mod instances;
mod keeper;
mod launcher;
mod loader;
mod log;
mod model;
mod process;
mod sandbox;
mod session;
mod settings;
mod tree;
mod triton;
mod usage;

use volley_types::registry::{BackendInfo, BackendName, SourceKind};

pub use crate::config::{KeeperProgram, PythonConfig};
pub use crate::keeper::main as keeper_main;
pub use crate::loader::{Description, PythonLoader, is_python};
pub use crate::sandbox::Sandbox;

/// This backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::from_static("python"),
    summary: "a Python class or function, in processes of its own",
    source: SourceKind::Files,
    takes_model_config: false,
};
