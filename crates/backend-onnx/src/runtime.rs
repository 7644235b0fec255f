//! ONNX Runtime's shared library: found, loaded once, never more than once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use volley_types::{ErrorCode, PredictError};

/// The environment variable that names the library.
pub(crate) const LIBRARY_VARIABLE: &str = "VOLLEY_ONNXRUNTIME";

/// The loaded library. Cloning gives another handle.
#[derive(Clone, Debug)]
pub struct Runtime(pub(crate) Environment);

static LOADED: Mutex<Option<Environment>> = Mutex::new(None);

impl Runtime {
    /// Where the library is: `configured`, else what `VOLLEY_ONNXRUNTIME` names, else beside the
    /// executable, else `target/ort/` of the source tree that the executable was built in or of
    /// the working directory.
    ///
    /// # Errors
    /// `Unavailable`, with what to do, when it is in none of these places.
    pub fn locate(configured: Option<&Path>) -> Result<PathBuf, PredictError> {
        let named = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty());
        if let Some(path) = configured
            .map(Path::to_path_buf)
            .or(named.map(PathBuf::from))
        {
            return if path.is_file() {
                Ok(path)
            } else {
                Err(missing())
            };
        }
        let executable = std::env::current_exe().unwrap_or_default();
        let beside = executable
            .ancestors()
            .skip(1)
            .take(1)
            .map(Path::to_path_buf);
        let built = executable
            .ancestors()
            .skip(1)
            .take(5)
            .map(|folder| folder.join("ort"));
        let here = std::iter::once(PathBuf::from("target/ort"));
        beside
            .chain(built)
            .chain(here)
            .find_map(|folder| library_in(&folder))
            .ok_or_else(missing)
    }

    /// Loads the library at `library`; a second call gives the first one's.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be loaded or is too old.
    pub fn init(library: &Path) -> Result<Self, PredictError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(environment) = loaded.as_ref() {
            return Ok(Self(environment.clone()));
        }
        let failed = |source: String| {
            PredictError::new(
                ErrorCode::Unavailable,
                "ONNX Runtime's shared library could not be loaded; version 1.24 or newer is needed",
            )
            .with_source(source)
        };
        let builder = ort::init_from(library).map_err(|error| failed(error.to_string()))?;
        let environment = builder
            .with_name("volley")
            .build()
            .map_err(|error| failed(error.to_string()))?;
        *loaded = Some(environment.clone());
        Ok(Self(environment))
    }
}

fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let libraries = paths.filter(|path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        name == "libonnxruntime.dylib"
            || name == "libonnxruntime.so"
            || name.strip_prefix("libonnxruntime.so.").is_some_and(|rest| {
                rest.bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'.')
            })
    });
    libraries.max()
}

fn missing() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "ONNX Runtime's shared library was not found on this worker; run scripts/get-ort.sh, or \
         set VOLLEY_ONNXRUNTIME to libonnxruntime.so",
    )
}
