//! Finds and loads ONNX Runtime's shared library, once per process.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::environment::Environment;
use volley_types::{ErrorCode, PredictError};

/// The environment variable with the path of the library.
pub const LIBRARY_VARIABLE: &str = "VOLLEY_ONNXRUNTIME";

/// The loaded library. Clones share it.
#[derive(Clone, Debug)]
pub struct Runtime(pub Environment);

static LOADED: Mutex<Option<Environment>> = Mutex::new(None);

impl Runtime {
    /// Finds the library: `configured`, else the path in `VOLLEY_ONNXRUNTIME`, else beside the
    /// executable, else in `../lib/volley` or `../lib` of its directory, else in `target/ort/` of
    /// the source tree that the executable was built in or of the working directory.
    ///
    /// # Errors
    /// `Unavailable`, with a remedy, when the library is in none of these places.
    pub fn locate(configured: Option<&Path>) -> Result<PathBuf, PredictError> {
        let named = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty());
        let named = named.map(PathBuf::from);
        if let Some(path) = configured.map(Path::to_path_buf).or(named) {
            return if path.is_file() {
                Ok(path)
            } else {
                Err(not_there())
            };
        }
        let executable = std::env::current_exe().unwrap_or_default();
        let mut folders = folders(&executable).into_iter();
        folders
            .find_map(|folder| library_in(&folder))
            .ok_or_else(missing)
    }

    /// Loads the library at `library`. Later calls ignore the path and return the first library.
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

/// Folders that may contain the library, in order of preference: beside the executable, as in an
/// unpacked archive; an installation's folder (`/usr/lib/volley` for `/usr/bin/volley`); an `ort`
/// folder above the executable (`target/ort` for everything that cargo builds); `target/ort` of the
/// working directory.
fn folders(executable: &Path) -> Vec<PathBuf> {
    let above = executable
        .ancestors()
        .skip(1)
        .filter(|path| !path.as_os_str().is_empty());
    let beside = above.clone().take(1).map(Path::to_path_buf);
    let prefix = above.clone().skip(1).take(1);
    let installed = prefix.flat_map(|folder| ["lib/volley", "lib"].map(|name| folder.join(name)));
    let built = above.take(5).map(|folder| folder.join("ort"));
    let here = std::iter::once(PathBuf::from("target/ort"));
    beside.chain(installed).chain(built).chain(here).collect()
}

fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let libraries = paths.filter_map(|path| Some((version(path.file_name()?.to_str()?)?, path)));
    libraries.max().map(|(_, path)| path)
}

/// The version in a library's file name, empty if the name has no version; `None` for other files.
fn version(name: &str) -> Option<Vec<u32>> {
    if name == "libonnxruntime.so" || name == "libonnxruntime.dylib" {
        return Some(Vec::new());
    }
    let version = name.strip_prefix("libonnxruntime.so.")?;
    version.split('.').map(|part| part.parse().ok()).collect()
}

fn not_there() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "ONNX Runtime's shared library is not at the path in this worker's 'onnx.library' or \
         VOLLEY_ONNXRUNTIME; set it to libonnxruntime.so, or leave it out and run \
         scripts/get-ort.sh",
    )
}

fn missing() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "ONNX Runtime's shared library was not found on this worker; run scripts/get-ort.sh, or \
         set VOLLEY_ONNXRUNTIME to libonnxruntime.so",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_the_executable_and_then_in_the_build() {
        let folders = folders(Path::new("/src/target/debug/deps/it-1"));
        let names: Vec<_> = folders.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(names[0], "/src/target/debug/deps");
        assert!(names.contains(&"/src/target/ort"));
        assert_eq!(names.last(), Some(&"target/ort"));
    }

    #[test]
    fn an_archive_has_it_beside_the_executable_and_an_installation_in_lib() {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, lib) = (prefix.path().join("bin"), prefix.path().join("lib"));
        let found = || {
            let folders = folders(&bin.join("volley")).into_iter();
            // The build may have a library in the working directory.
            let mut folders = folders.filter(|folder| folder.starts_with(prefix.path()));
            folders.find_map(|folder| library_in(&folder))
        };
        assert_eq!(found(), None);
        for folder in [lib.clone(), lib.join("volley"), bin.clone()] {
            std::fs::create_dir_all(&folder).unwrap();
            let library = folder.join("libonnxruntime.so.1.31.1");
            std::fs::write(&library, "").unwrap();
            // Each is preferred to the previous ones.
            assert_eq!(found(), Some(library));
        }
    }

    #[test]
    fn the_newest_version_wins_and_other_files_are_none() {
        assert_eq!(version("libonnxruntime.so"), Some(vec![]));
        assert!(version("libonnxruntime.so.1.9.1") < version("libonnxruntime.so.1.31.1"));
        assert_eq!(version("libonnxruntime_providers_cuda.so"), None);
        assert_eq!(version("libonnxruntime.so.1.31.1.part"), None);
    }

    #[test]
    fn a_library_that_is_not_where_it_should_be_is_told_without_its_path() {
        let error = Runtime::locate(Some(Path::new("/nowhere/libonnxruntime.so"))).unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains("scripts/get-ort.sh"));
        assert!(!error.message.contains("/nowhere"));
    }
}
