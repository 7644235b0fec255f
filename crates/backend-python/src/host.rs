//! The host program: the Python files that every model's process runs.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use volley_types::PredictError;

/// The files, by their path below the program's directory.
const FILES: &[(&str, &str)] = &[
    ("__main__.py", include_str!("../host/__main__.py")),
    ("answers.py", include_str!("../host/answers.py")),
    ("arrow.py", include_str!("../host/arrow.py")),
    ("calls.py", include_str!("../host/calls.py")),
    ("context.py", include_str!("../host/context.py")),
    ("errors.py", include_str!("../host/errors.py")),
    ("events.py", include_str!("../host/events.py")),
    ("hints.py", include_str!("../host/hints.py")),
    (
        "interfaces/__init__.py",
        include_str!("../host/interfaces/__init__.py"),
    ),
    (
        "interfaces/base.py",
        include_str!("../host/interfaces/base.py"),
    ),
    (
        "interfaces/inferless.py",
        include_str!("../host/interfaces/inferless.py"),
    ),
    (
        "interfaces/inferless_stream.py",
        include_str!("../host/interfaces/inferless_stream.py"),
    ),
    (
        "interfaces/inferless_typed.py",
        include_str!("../host/interfaces/inferless_typed.py"),
    ),
    (
        "interfaces/mlserver.py",
        include_str!("../host/interfaces/mlserver.py"),
    ),
    (
        "interfaces/mlserver_events.py",
        include_str!("../host/interfaces/mlserver_events.py"),
    ),
    (
        "interfaces/mlserver_runtimes.py",
        include_str!("../host/interfaces/mlserver_runtimes.py"),
    ),
    (
        "interfaces/plain.py",
        include_str!("../host/interfaces/plain.py"),
    ),
    (
        "interfaces/plain_events.py",
        include_str!("../host/interfaces/plain_events.py"),
    ),
    (
        "interfaces/plain_table.py",
        include_str!("../host/interfaces/plain_table.py"),
    ),
    (
        "interfaces/plain_text.py",
        include_str!("../host/interfaces/plain_text.py"),
    ),
    (
        "interfaces/triton.py",
        include_str!("../host/interfaces/triton.py"),
    ),
    ("logs.py", include_str!("../host/logs.py")),
    ("loop.py", include_str!("../host/loop.py")),
    ("outbox.py", include_str!("../host/outbox.py")),
    (
        "triton/__init__.py",
        include_str!("../host/triton/__init__.py"),
    ),
    ("triton/calls.py", include_str!("../host/triton/calls.py")),
    ("triton/config.py", include_str!("../host/triton/config.py")),
    (
        "triton/metrics.py",
        include_str!("../host/triton/metrics.py"),
    ),
    (
        "triton/tensors.py",
        include_str!("../host/triton/tensors.py"),
    ),
    ("triton/types.py", include_str!("../host/triton/types.py")),
    ("triton/utils.py", include_str!("../host/triton/utils.py")),
    ("triton/values.py", include_str!("../host/triton/values.py")),
    ("wire.py", include_str!("../host/wire.py")),
];

/// How the names of the directories of host programs start.
pub(crate) const HOSTS: &str = ".host-";
const PROGRAM: &str = "host";
const TEMPORARY: &str = "temporary";

/// The host program on this machine's disk, and the place for the temporary files of all models.
/// Dropping it removes them.
#[derive(Debug)]
pub(crate) struct HostProgram(TempDir);

impl HostProgram {
    /// Writes the program to a new directory in `parent`, which only this user can read.
    ///
    /// # Errors
    /// `Unavailable` when the directory cannot be written.
    pub(crate) fn write(parent: &Path) -> Result<Self, PredictError> {
        let failed = |error: std::io::Error| {
            let message = "the directory for Python environments cannot be written; set \
                           'python.environments_dir'";
            PredictError::new(volley_types::ErrorCode::Unavailable, message).with_source(error)
        };
        std::fs::create_dir_all(parent).map_err(failed)?;
        let directory = tempfile::Builder::new().prefix(HOSTS).tempdir_in(parent);
        let directory = directory.map_err(failed)?;
        for (name, text) in FILES {
            let file: PathBuf = directory.path().join(PROGRAM).join(name);
            if let Some(parent) = file.parent() {
                std::fs::create_dir_all(parent).map_err(failed)?;
            }
            std::fs::write(&file, text).map_err(failed)?;
        }
        std::fs::create_dir_all(directory.path().join(TEMPORARY)).map_err(failed)?;
        Ok(Self(directory))
    }

    /// The directory of everything, which no model may open.
    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// The program's directory, which Python runs.
    pub(crate) fn program(&self) -> PathBuf {
        self.0.path().join(PROGRAM)
    }

    /// The directory in which each process gets one for its temporary files.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.0.path().join(TEMPORARY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths of the Python files below a directory, relative to `root`.
    fn python_files(directory: &Path, root: &Path, into: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                python_files(&path, root, into);
            } else if path.extension().is_some_and(|ending| ending == "py") {
                let name = path.strip_prefix(root).unwrap().to_string_lossy();
                into.push(name.into_owned());
            }
        }
    }

    #[test]
    fn the_program_has_every_file_of_its_directory() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("host");
        let mut found = Vec::new();
        python_files(&root, &root, &mut found);
        found.sort();
        let listed: Vec<_> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(listed, found);
        let parent = tempfile::tempdir().unwrap();
        let program = HostProgram::write(parent.path()).unwrap();
        assert!(program.program().join("interfaces/plain.py").is_file());
    }
}
