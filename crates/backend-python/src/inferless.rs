//! Inferless' list of what a model needs: `inferless-runtime-config.yaml`.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;
use volley_types::PredictError;

/// Names of the file; the first one that exists counts.
const FILES: [&str; 2] = ["inferless-runtime-config.yaml", "inferless-runtime.yaml"];
/// Largest file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// How long a query of this machine may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// What a model needs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuntimeFile {
    #[serde(default)]
    build: Option<Build>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Build {
    #[serde(default)]
    cuda_version: Option<Version>,
    #[serde(default)]
    system_packages: Option<Vec<String>>,
    #[serde(default)]
    python_packages: Option<Vec<String>>,
    #[serde(default)]
    run: Option<Vec<String>>,
}

/// A version; without quotes YAML reads `12.1` as a number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Version {
    Number(f64),
    Text(String),
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl RuntimeFile {
    /// The file of the model in `directory`; empty without one.
    ///
    /// # Errors
    /// `InvalidInput` when the file is not valid, has an unknown key, or commands to run.
    pub(crate) fn of(directory: &Path) -> Result<Self, PredictError> {
        let found = FILES.iter().find(|name| directory.join(name).exists());
        let Some(name) = found else {
            return Ok(Self::default());
        };
        let path = directory.join(name);
        let unreadable = || PredictError::invalid(format!("'{name}' of the model cannot be read"));
        let size = path.metadata().map_err(|_| unreadable())?.len();
        if MAX_BYTES < size {
            return Err(unreadable().with_source("it has more than 1 MiB"));
        }
        let text =
            std::fs::read_to_string(&path).map_err(|error| unreadable().with_source(error))?;
        Self::parse(&text, name)
    }

    fn parse(text: &str, name: &str) -> Result<Self, PredictError> {
        if text.lines().all(|line| line.trim().is_empty()) {
            return Ok(Self::default());
        }
        let file: Self = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default();
            PredictError::invalid(format!(
                "'{name}' of the model is not valid: {first}; it may have 'build' with \
                 'python_packages', 'system_packages' and 'cuda_version'"
            ))
        })?;
        let build = file.build.as_ref();
        if let Some(command) = build.and_then(|build| build.run.as_ref()?.first()) {
            return Err(PredictError::invalid(format!(
                "'build.run' in '{name}' is not supported: run its commands on the worker, or in \
                 its image, and remove the key; the first one is '{command}'"
            )));
        }
        Ok(file)
    }

    /// Packages for the environment, as lines of a `requirements.txt`.
    pub(crate) fn python_packages(&self) -> &[String] {
        let build = self.build.as_ref();
        build
            .and_then(|build| build.python_packages.as_deref())
            .unwrap_or_default()
    }

    /// Checks that this machine has what the file names.
    ///
    /// # Errors
    /// `InvalidInput` with the packages that are missing and the command that installs them; when
    /// the driver of the GPUs is too old.
    pub(crate) async fn check_machine(&self) -> Result<(), PredictError> {
        let Some(build) = &self.build else {
            return Ok(());
        };
        if let Some(packages) = &build.system_packages {
            check_packages(packages).await?;
        }
        match &build.cuda_version {
            Some(version) => check_cuda(version).await,
            None => Ok(()),
        }
    }
}

/// Checks that Debian's packages are installed; a package may be `name=version`.
async fn check_packages(packages: &[String]) -> Result<(), PredictError> {
    let mut missing = Vec::new();
    for package in packages {
        let (name, version) = match package.split_once('=') {
            Some((name, version)) => (name, Some(version)),
            None => (package.as_str(), None),
        };
        if !is_package_name(name) {
            let message = format!("'build.system_packages': '{package}' is no name of a package");
            return Err(PredictError::invalid(message));
        }
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat", "${db:Status-Abbrev} ${Version}"]);
        let Some(output) = output_of(query.arg("--").arg(name)).await else {
            return Err(PredictError::invalid(format!(
                "the model needs the system packages {}, and this worker has no dpkg to check \
                 them; install them, and remove 'build.system_packages'",
                packages.join(", ")
            )));
        };
        let mut fields = output.split_ascii_whitespace();
        let is_installed = fields.next().is_some_and(|status| status.starts_with("ii"));
        let found = fields.next();
        if !is_installed || version.is_some_and(|version| found != Some(version)) {
            missing.push(package.as_str());
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" ");
    Err(PredictError::invalid(format!(
        "the model needs system packages that this worker does not have; install them with \
         'apt-get install {missing}'"
    )))
}

fn is_package_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.bytes().next().is_some_and(is_part)
        && name
            .bytes()
            .all(|byte| is_part(byte) || b"+-.:".contains(&byte))
}

/// Checks that the driver runs programs of that version of CUDA. A worker without GPUs runs the
/// model on its CPUs.
async fn check_cuda(version: &Version) -> Result<(), PredictError> {
    let Some(printed) = output_of(&mut Command::new("nvidia-smi")).await else {
        tracing::warn!(cuda = %version, "model for CUDA is loaded on a worker without GPUs");
        return Ok(());
    };
    let Some(driver) = driver_version(&printed) else {
        return Ok(());
    };
    let major = |text: &str| text.split('.').next().and_then(|it| it.parse::<u32>().ok());
    let wanted = version.to_string();
    match (major(&wanted), major(driver)) {
        (None, _) => Err(PredictError::invalid(format!(
            "'build.cuda_version' is '{wanted}'; it must be a version such as '12.1'"
        ))),
        (Some(wanted_major), Some(driver_major)) if driver_major < wanted_major => {
            Err(PredictError::invalid(format!(
                "the model needs CUDA {wanted}, and the driver of this worker supports {driver}; \
                 update the driver"
            )))
        }
        _ => Ok(()),
    }
}

/// The version of CUDA in the table that `nvidia-smi` prints.
fn driver_version(printed: &str) -> Option<&str> {
    let (_, rest) = printed.split_once("CUDA Version:")?;
    rest.split_ascii_whitespace().next()
}

/// What a program of this machine prints; `None` when it cannot be run.
async fn output_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(QUERY_TIMEOUT, output)
        .await
        .ok()?
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_file_is_read() {
        let text = "build:\n  cuda_version: 12.1\n  system_packages:\n    - \"libssl-dev\"\n  \
                    python_packages:\n    - \"accelerate==0.29.3\"\n    - git+https://x.example/y\n";
        let file = RuntimeFile::parse(text, FILES[0]).unwrap();
        assert_eq!(
            file.python_packages(),
            ["accelerate==0.29.3", "git+https://x.example/y"]
        );
        let build = file.build.unwrap();
        assert_eq!(build.cuda_version.unwrap().to_string(), "12.1");
        assert_eq!(build.system_packages.unwrap(), ["libssl-dev"]);
        let quoted = RuntimeFile::parse("build:\n  cuda_version: \"12.1.1\"\n", FILES[0]);
        let version = quoted.unwrap().build.unwrap().cuda_version.unwrap();
        assert_eq!(version.to_string(), "12.1.1");
        assert_eq!(
            RuntimeFile::parse("\n", FILES[1]).unwrap(),
            RuntimeFile::default()
        );
    }

    #[test]
    fn a_key_that_is_not_known_and_commands_are_named() {
        for (text, expected) in [
            ("build:\n  python_package: []\n", "python_package"),
            ("builds: {}\n", "builds"),
            ("build:\n  run:\n    - make install\n", "make install"),
            ("build: [\n", "not valid"),
        ] {
            let error = RuntimeFile::parse(text, FILES[0]).unwrap_err();
            assert!(error.message.contains(expected), "{error}");
            assert!(error.message.contains(FILES[0]), "{error}");
        }
    }

    #[tokio::test]
    async fn system_packages_that_are_missing_are_named_with_their_command() {
        let file = |package: &str| {
            let text = format!("build:\n  system_packages: ['{package}']\n");
            RuntimeFile::parse(&text, FILES[0]).unwrap()
        };
        let error = file("volley-no-such-package").check_machine().await;
        let message = error.unwrap_err().message;
        assert!(message.contains("volley-no-such-package"), "{message}");
        let error = file("--help").check_machine().await.unwrap_err();
        assert!(error.message.contains("no name of a package"), "{error}");
        if Path::new("/usr/bin/dpkg-query").exists() {
            file("dpkg").check_machine().await.unwrap();
            let error = file("dpkg=0").check_machine().await.unwrap_err();
            assert!(error.message.contains("apt-get install dpkg=0"), "{error}");
        }
    }

    #[test]
    fn the_version_is_in_the_table_of_the_driver() {
        let table = "| NVIDIA-SMI 550.54    Driver Version: 550.54    CUDA Version: 12.4     |";
        assert_eq!(driver_version(table), Some("12.4"));
        assert_eq!(driver_version("no devices"), None);
    }
}
