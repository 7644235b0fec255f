//! Configuration of a worker's Python models.

use std::path::PathBuf;

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
    /// Memory of one process in bytes, for models that set none.
    pub process_memory: Option<u64>,
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
        }
    }
}
