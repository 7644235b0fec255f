//! Configuration of a worker's Python models.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::sandbox::Sandbox;

/// The program that keeps a model's process. It runs [`keeper_main`](crate::keeper_main).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperProgram {
    /// The executable.
    pub path: PathBuf,
    /// Its first arguments.
    pub arguments: Vec<OsString>,
}

/// How a worker runs Python models.
#[derive(Clone, Debug)]
pub struct PythonConfig {
    /// Whether models may be loaded at all. Their code runs as the worker's user.
    pub enabled: bool,
    /// The interpreter of models that name none.
    pub interpreter: PathBuf,
    /// Directory of environments that are built from packages.
    pub environments: PathBuf,
    /// Directory of wheels besides a model's own.
    pub wheels: Option<PathBuf>,
    /// Whether packages are installed from wheels only, without an index.
    pub offline: bool,
    /// Memory in bytes of one process and all that it starts, for models that set none.
    pub process_memory: Option<u64>,
    /// Processes and threads of one process and all that it starts, for models that set none.
    pub process_tasks: u64,
    /// The sandbox of every model; a model may have a stricter one.
    pub sandbox: Sandbox,
    /// Files and directories of this machine's nodes that no model may open: keys, certificates,
    /// the registry, other models.
    pub hidden: Vec<PathBuf>,
    /// The GPUs of models, as `CUDA_VISIBLE_DEVICES` names them. `None`: all of this machine that
    /// the worker may use.
    pub gpus: Option<Vec<String>>,
    /// The program of each model's process: this executable with the argument `python-host`.
    pub keeper: KeeperProgram,
}

impl Default for PythonConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            interpreter: PathBuf::from("python3"),
            environments: std::env::temp_dir().join("volley-python-environments"),
            wheels: None,
            offline: false,
            process_memory: None,
            process_tasks: 1_024,
            sandbox: Sandbox::None,
            hidden: Vec::new(),
            gpus: None,
            keeper: KeeperProgram {
                // Also when the file has been replaced since the start.
                path: PathBuf::from("/proc/self/exe"),
                arguments: vec![OsString::from("python-host")],
            },
        }
    }
}
