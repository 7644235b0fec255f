//! Interpreters and packages of Python models.
//!
//! The interpreter of a model is, in this order: the one that its setting `python` names; the one in
//! a `.venv` or `venv` of its directory; one with the packages of its `requirements.txt` or
//! `pyproject.toml` and of Inferless' `inferless-runtime-config.yaml`; the worker's own. An
//! environment with packages is built once for each set of packages and interpreter, aside, and then
//! renamed to its place. Installers run code of packages, so they reach no more than models do.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::process::Command;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::config::PythonConfig;
use crate::host::HOSTS;
use crate::inferless::RuntimeFile;
use crate::keeper::Order;
use crate::process::inherited;
use crate::sandbox::{Reach, Sandbox};
use crate::usage::Limits;

/// How long an installation may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(1_800);
/// How long an interpreter may take to print its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);
/// Name of a new environment in its temporary directory.
const BUILT: &str = "environment";
/// Name of the directory of the installers' caches.
const CACHE: &str = ".cache";
/// Files that an installer may open.
const MAX_FILES: u64 = 16_384;
/// Variables of the worker's environment that installers get besides those of models.
const INSTALLER_VARIABLES: [&str; 11] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
];
/// Prefixes of further ones.
const INSTALLER_PREFIXES: [&str; 2] = ["PIP_", "UV_"];
/// Oldest supported version.
const MIN_VERSION: (u32, u32) = (3, 9);

/// The environments of a worker.
#[derive(Debug)]
pub(crate) struct Environments {
    config: PythonConfig,
    /// Locks of the environments that are being built, by their key.
    builds: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Packages of a model, in the format of `requirements.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirements {
    text: String,
}

#[derive(Deserialize)]
struct PyProject {
    project: Option<Project>,
}

#[derive(Deserialize)]
struct Project {
    #[serde(default)]
    dependencies: Vec<String>,
}

impl Requirements {
    /// The packages that the files of `directory` name; `None` when there are none.
    ///
    /// # Errors
    /// `InvalidInput` when a file cannot be read.
    fn of(directory: &Path, further: &[String]) -> Result<Option<Self>, PredictError> {
        let read = |name: &str| match std::fs::read_to_string(directory.join(name)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let message = format!("'{name}' of the model cannot be read");
                Err(PredictError::invalid(message).with_source(error))
            }
        };
        let mut text = match (read("requirements.txt")?, read("pyproject.toml")?) {
            (Some(text), _) => text,
            (None, Some(text)) => {
                let parsed: PyProject = toml::from_str(&text).map_err(|error| {
                    let message = "'pyproject.toml' of the model is not valid TOML";
                    PredictError::invalid(message).with_source(error)
                })?;
                let project = parsed.project.map(|project| project.dependencies);
                project.unwrap_or_default().join("\n")
            }
            (None, None) => String::new(),
        };
        for package in further {
            text.push('\n');
            text.push_str(package);
        }
        let names_packages = text.lines().any(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#')
        });
        Ok(names_packages.then_some(Self { text }))
    }

    /// Name of the environment's directory: a hash of the packages and the interpreter.
    fn key(&self, version: &str) -> String {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let lines: Vec<_> = self.text.lines().map(str::trim).collect();
        format!(
            "{version}-{:016x}",
            hasher.hash_one((lines, std::env::consts::ARCH))
        )
    }
}

impl Environments {
    pub(crate) fn new(config: PythonConfig) -> Self {
        Self {
            config,
            builds: Mutex::default(),
        }
    }

    /// The interpreter of the model in `directory`, with its packages. Cancel safe: a build that is
    /// abandoned leaves nothing behind that is used.
    ///
    /// # Errors
    /// `InvalidInput` when the interpreter is missing or too old, or the packages cannot be
    /// installed.
    pub(crate) async fn interpreter(
        &self,
        directory: &Path,
        named: Option<&str>,
    ) -> Result<PathBuf, PredictError> {
        let runtime = RuntimeFile::of(directory)?;
        runtime.check_machine().await?;
        if let Some(named) = named {
            let path = named_interpreter(named);
            self.check_version(&path, directory).await?;
            return Ok(path);
        }
        for own in [".venv", "venv"] {
            let path = directory.join(own).join("bin/python");
            if path.exists() {
                self.check_version(&path, directory).await?;
                return Ok(path);
            }
        }
        let base = &self.config.interpreter;
        let version = self.check_version(base, directory).await?;
        let further = runtime.python_packages();
        let Some(requirements) = Requirements::of(directory, further)? else {
            return Ok(base.clone());
        };
        self.built(&requirements, &version, directory).await
    }

    async fn built(
        &self,
        requirements: &Requirements,
        version: &str,
        directory: &Path,
    ) -> Result<PathBuf, PredictError> {
        let key = requirements.key(version);
        let place = self.config.environments.join(&key);
        let lock = self.builds.lock().entry(key).or_default().clone();
        let _building = lock.lock().await;
        let python = place.join("bin/python");
        if python.exists() {
            return Ok(python);
        }
        let unwritable = |error: std::io::Error| {
            let message = "the directory for Python environments cannot be written; set \
                           'python.environments_dir'";
            PredictError::new(ErrorCode::Unavailable, message).with_source(error)
        };
        tokio::fs::create_dir_all(self.config.environments.join(CACHE))
            .await
            .map_err(unwritable)?;
        let aside = tempfile::Builder::new()
            .prefix(".building-")
            .tempdir_in(&self.config.environments)
            .map_err(unwritable)?;
        let file = aside.path().join("volley-requirements.txt");
        std::fs::write(&file, &requirements.text).map_err(unwritable)?;
        self.install(aside.path(), &file, directory).await?;
        match std::fs::rename(aside.path().join(BUILT), &place) {
            Err(error) if !python.exists() => Err(unwritable(error)),
            _ => Ok(python),
        }
    }

    /// Creates an environment in `aside` and installs the packages of `file`, whose relative paths
    /// start at the model's `directory`.
    async fn install(
        &self,
        aside: &Path,
        file: &Path,
        directory: &Path,
    ) -> Result<(), PredictError> {
        let base = &self.config.interpreter;
        let uv = find("uv");
        tracing::info!(packages = %file.display(), uv = uv.is_some(), "building a Python environment");
        let started = tokio::time::Instant::now();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let place = aside.join(BUILT);
        let (place_text, base_text) = (text(&place), text(base));
        let create = match &uv {
            Some(_) => vec!["venv", "--quiet", "--python", &base_text],
            None => vec!["-m", "venv"],
        };
        let mut create: Vec<String> = create.into_iter().map(str::to_owned).collect();
        create.extend(["--clear".to_owned(), place_text]);
        let creator = uv.as_deref().unwrap_or(base);
        self.run(creator, create, directory, aside).await?;
        let python = place.join("bin/python");
        let python_text = text(&python);
        let install = match &uv {
            Some(_) => vec!["pip", "install", "--python", &python_text],
            None => vec!["-m", "pip", "install", "--disable-pip-version-check"],
        };
        let mut install: Vec<String> = install.into_iter().map(str::to_owned).collect();
        let wheels = [Some(directory.join("wheels")), self.config.wheels.clone()];
        for wheels in wheels
            .into_iter()
            .flatten()
            .filter(|wheels| wheels.is_dir())
        {
            install.extend(["--find-links".to_owned(), text(&wheels)]);
        }
        if self.config.offline {
            install.push("--no-index".to_owned());
        }
        install.extend(["-r".to_owned(), text(file)]);
        let installer = uv.as_deref().unwrap_or(&python);
        let installed = self.run(installer, install, directory, aside).await;
        tracing::info!(
            seconds = started.elapsed().as_secs(),
            ok = installed.is_ok(),
            "Python environment built"
        );
        installed
    }

    /// A program that runs code of a model or its packages: it reaches what models reach, and may
    /// write to `writable`.
    fn command(
        &self,
        program: &Path,
        arguments: Vec<String>,
        directory: &Path,
        writable: Vec<PathBuf>,
    ) -> std::io::Result<Command> {
        let environments = &self.config.environments;
        let entries = std::fs::read_dir(environments)
            .into_iter()
            .flatten()
            .flatten();
        let hosts = entries.filter(|it| it.file_name().to_string_lossy().starts_with(HOSTS));
        let mut hidden = self.config.hidden.clone();
        hidden.extend(hosts.map(|entry| entry.path()));
        let order = Order {
            interpreter: program.to_owned(),
            arguments,
            limits: Limits {
                memory: self.config.process_memory,
                tasks: u64::MAX,
                files: MAX_FILES,
            },
            reach: Reach {
                sandbox: Sandbox::None,
                hidden,
                read_only: vec![environments.clone()],
                writable,
                model: directory.to_owned(),
            },
            temporary: PathBuf::new(),
            cgroup: None,
            outlives: true,
        };
        let mut command = Command::new(&self.config.keeper.path);
        command
            .args(&self.config.keeper.arguments)
            .arg("run")
            .arg(serde_json::to_string(&order)?)
            .current_dir(directory)
            .env_clear()
            .envs(inherited())
            .envs(installer_variables())
            // Models cannot write to these, unlike to those of the worker's user.
            .env("UV_CACHE_DIR", environments.join(CACHE).join("uv"))
            .env("PIP_CACHE_DIR", environments.join(CACHE).join("pip"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        Ok(command)
    }

    /// Runs an installer; its output goes to the log.
    async fn run(
        &self,
        program: &Path,
        arguments: Vec<String>,
        directory: &Path,
        aside: &Path,
    ) -> Result<(), PredictError> {
        let cache = self.config.environments.join(CACHE);
        let output = self
            .command(program, arguments, directory, vec![aside.to_owned(), cache])
            .map_err(|error| PredictError::internal("the installer cannot be described", error))?
            .output();
        let failed = |message: String| {
            PredictError::invalid(format!(
                "the packages of the model cannot be installed: {message}"
            ))
            .with_origin(ErrorOrigin::Model)
        };
        let output = tokio::time::timeout(INSTALL_TIMEOUT, output)
            .await
            .map_err(|_| failed("the installer did not end within 30 minutes".to_owned()))?
            .map_err(|error| failed(format!("the installer cannot be started: {error}")))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        for line in errors
            .lines()
            .rev()
            .take(50)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            tracing::info!(text = line, "Python installer");
        }
        if output.status.success() {
            return Ok(());
        }
        let mut lines = errors
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let told = lines
            .clone()
            .find(|line| line.starts_with("ERROR:") || line.starts_with("error:"));
        let told = told.or_else(|| lines.next_back()).unwrap_or("no output");
        Err(failed(told.chars().take(300).collect()))
    }

    /// The version of an interpreter, such as `3.12`.
    ///
    /// # Errors
    /// `InvalidInput` when it cannot be started or is too old.
    async fn check_version(
        &self,
        interpreter: &Path,
        directory: &Path,
    ) -> Result<String, PredictError> {
        let name = interpreter
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let program = "import sys; print('%d.%d' % sys.version_info[:2])";
        let missing = || {
            PredictError::invalid(format!(
                "the Python interpreter '{name}' cannot be started on this worker; install it, or set \
                 'python.interpreter' or the parameter 'python'"
            ))
        };
        let arguments = ["-I", "-c", program].map(str::to_owned).to_vec();
        let output = self
            .command(interpreter, arguments, directory, Vec::new())
            .map_err(|error| missing().with_source(error))?
            .output();
        let output = tokio::time::timeout(VERSION_TIMEOUT, output)
            .await
            .map_err(|_| missing())?
            .map_err(|error| missing().with_source(error))?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let numbers = version.split_once('.');
        let numbers = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match numbers {
            Some(numbers) if MIN_VERSION <= numbers => Ok(version),
            Some(_) => Err(PredictError::invalid(format!(
                "the Python interpreter '{name}' has version {version}; Volley supports {}.{} and later",
                MIN_VERSION.0, MIN_VERSION.1
            ))),
            None => Err(missing()),
        }
    }
}

fn installer_variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_str().unwrap_or_default();
        let mut prefixes = INSTALLER_PREFIXES.iter();
        INSTALLER_VARIABLES.contains(&name) || prefixes.any(|prefix| name.starts_with(prefix))
    })
}

/// The path of an interpreter that is named by its path or its version.
fn named_interpreter(named: &str) -> PathBuf {
    match named.starts_with(|first: char| first.is_ascii_digit()) {
        true => PathBuf::from(format!("python{named}")),
        false => PathBuf::from(named),
    }
}

/// The program of that name in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|directory| directory.join(name));
    found.into_iter().find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_from_either_file_and_their_key_from_their_lines() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Requirements::of(directory.path(), &[]).unwrap(), None);
        let project = "[project]\nname = \"m\"\ndependencies = [\"six==1.16.0\"]\n";
        std::fs::write(directory.path().join("pyproject.toml"), project).unwrap();
        let found = Requirements::of(directory.path(), &[]).unwrap().unwrap();
        assert_eq!(found.text, "six==1.16.0");
        std::fs::write(directory.path().join("requirements.txt"), "# none\n\n").unwrap();
        assert_eq!(Requirements::of(directory.path(), &[]).unwrap(), None);
        let further = ["seven".to_owned()];
        let both = Requirements::of(directory.path(), &further)
            .unwrap()
            .unwrap();
        assert_eq!(both.text.lines().last(), Some("seven"));
        let spaced = Requirements {
            text: "six==1.16.0  \n".to_owned(),
        };
        assert_eq!(spaced.key("3.11"), found.key("3.11"));
        assert_ne!(found.key("3.12"), found.key("3.11"));
    }
}
