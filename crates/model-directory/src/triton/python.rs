//! Models of Triton's Python backend: what a worker needs before it starts their code. The model's
//! process reads the rest of the configuration as JSON.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use volley_types::PredictError;

use super::fields::{messages, number, string, word};
use super::text::{self, Message, Value};
use super::versions::{Versions, order};
use super::{FILE, json, wrong};

/// The backend's name in `config.pbtxt`.
const BACKEND: &str = "python";
/// The usual name of the model's file.
const MODEL: &str = "model.py";
/// The usual name of a graph of ONNX Runtime.
const GRAPH: &str = "model.onnx";
/// The parameter with the path of a Python environment.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";
/// Stands for the model's directory in that path.
const DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// A model of Triton's Python backend.
#[derive(Clone, Debug, PartialEq)]
pub struct PythonRepository {
    /// The configuration as an object with the field names of `config.pbtxt`; empty without one.
    pub config: Map<String, Json>,
    /// Name of the folder with the version to serve.
    pub version: String,
    /// Number of instances, if declared.
    pub instances: Option<usize>,
    /// The interpreter of the environment that the configuration names.
    pub interpreter: Option<PathBuf>,
}

/// Reads a directory of a repository; `None` if it is not a model of the Python backend. `given` is
/// a configuration in JSON that replaces the file, `version` the name of the version to serve
/// instead of the one that the configuration selects.
///
/// # Errors
/// `InvalidInput` when the configuration is malformed, the version does not exist, or several
/// versions are selected.
pub fn read(
    directory: &Path,
    given: Option<&str>,
    version: Option<&str>,
) -> Result<Option<PythonRepository>, PredictError> {
    let Some(message) = configuration(directory, given)? else {
        return Ok(None);
    };
    let found = || -> Result<_, String> {
        let file = string(&message, "default_model_filename")?;
        let file = file.filter(|file| !file.is_empty());
        let there = folders(directory, file.as_deref().unwrap_or(MODEL));
        Ok(PythonRepository {
            config: json::to_json(&message),
            version: chosen(&message, there, version)?,
            instances: instances(&message)?,
            interpreter: interpreter(&message, directory)?,
        })
    };
    found().map(Some).map_err(wrong)
}

/// Whether a directory looks like a model of the Python backend, even one with mistakes.
pub fn is_python(directory: &Path) -> bool {
    match configuration(directory, None) {
        Ok(found) => found.is_some(),
        Err(_) => !folders(directory, MODEL).is_empty(),
    }
}

/// The configuration of a model of the Python backend, empty if it has none.
fn configuration(directory: &Path, given: Option<&str>) -> Result<Option<Message>, PredictError> {
    let message = match (given, std::fs::read_to_string(directory.join(FILE))) {
        (Some(given), _) => parsed(given).map(Some),
        (None, Ok(text)) => text::parse(&text).map(Some),
        (None, Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        (None, Err(_)) => Err("the file cannot be read as text".to_owned()),
    };
    let message = message.map_err(wrong)?;
    // Code beside a graph may belong to its export.
    let has_graph = || !folders(directory, GRAPH).is_empty();
    let has_model = || !folders(directory, MODEL).is_empty() && !has_graph();
    let Some(message) = message else {
        let found = has_model() && !has_code(directory);
        return Ok(found.then(Message::default));
    };
    let text = |field| string(&message, field).map_err(wrong);
    let backend = text("backend")?.filter(|name| !name.is_empty());
    let platform = text("platform")?.filter(|name| !name.is_empty());
    let is_python = match (backend, platform) {
        (Some(backend), _) => backend == BACKEND,
        (None, Some(_)) => false,
        (None, None) => has_model(),
    };
    Ok(is_python.then_some(message))
}

fn parsed(given: &str) -> Result<Message, String> {
    let object: Map<String, Json> =
        serde_json::from_str(given).map_err(|error| format!("not valid JSON: {error}"))?;
    json::from_json(&object, 0)
}

/// Whether the directory itself has Python files.
fn has_code(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|path| path.extension().is_some_and(|ending| ending == "py"))
}

/// The names of the versions that have `file`, the highest last.
fn folders(directory: &Path, file: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.parse::<u64>().is_ok() && directory.join(name).join(file).is_file())
        .collect();
    names.sort_by(|a, b| order(a, b));
    names
}

/// The version to serve.
fn chosen(message: &Message, there: Vec<String>, named: Option<&str>) -> Result<String, String> {
    if there.is_empty() {
        return Err(
            "the model has no folder of a version with its file, such as 1/model.py".into(),
        );
    }
    if let Some(named) = named {
        return match there.iter().any(|name| name == named) {
            true => Ok(named.to_owned()),
            false => Err(format!(
                "the parameter 'model_version' is {named}; the model has the versions {}",
                there.join(", ")
            )),
        };
    }
    let mut served = Versions::read(message)?.of(&there)?;
    match (served.pop(), served.is_empty()) {
        (Some(last), true) => Ok(last),
        (Some(last), false) => Err(format!(
            "'version_policy' selects the versions {}, {last}, and a Python model serves one; \
             register each with the parameter 'model_version'",
            served.join(", ")
        )),
        (None, _) => Err("'version_policy' selects no version".to_owned()),
    }
}

/// The number of instances: on GPUs, `count` is that of each.
fn instances(message: &Message) -> Result<Option<usize>, String> {
    let groups = messages(message, "instance_group")?;
    let mut total = 0_usize;
    for group in &groups {
        let count: usize = number(group, "count")?.unwrap_or(1);
        let kind = word(group, "kind")?;
        let gpus = match kind.as_deref() {
            None | Some("KIND_AUTO" | "KIND_GPU") => group.all("gpus").count(),
            Some(_) => 0,
        };
        total = total.saturating_add(count.max(1).saturating_mul(gpus.max(1)));
    }
    Ok((!groups.is_empty()).then_some(total))
}

/// The interpreter of `EXECUTION_ENV_PATH`.
fn interpreter(message: &Message, directory: &Path) -> Result<Option<PathBuf>, String> {
    let Some(path) = parameter(message, ENVIRONMENT)? else {
        return Ok(None);
    };
    let path = path.replace(DIRECTORY, &directory.to_string_lossy());
    let interpreter = directory.join(path).join("bin/python");
    match interpreter.is_file() {
        true => Ok(Some(interpreter)),
        false => Err(format!(
            "'{ENVIRONMENT}' must name a directory with bin/python; unpack an archive of \
             conda-pack, or remove the parameter and put a requirements.txt beside {FILE}"
        )),
    }
}

/// A parameter of the model.
fn parameter(message: &Message, name: &str) -> Result<Option<String>, String> {
    for entry in messages(message, "parameters")? {
        if string(entry, "key")?.as_deref() != Some(name) {
            continue;
        }
        if let Some(Value::Message(value)) = entry.last("value") {
            return string(value, "string_value");
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with these versions and this configuration.
    fn model(versions: &[&str], config: Option<&str>) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for version in versions {
            std::fs::create_dir(directory.path().join(version)).unwrap();
            std::fs::write(directory.path().join(version).join(MODEL), "").unwrap();
        }
        if let Some(config) = config {
            std::fs::write(directory.path().join(FILE), config).unwrap();
        }
        directory
    }

    fn of_files(
        versions: &[&str],
        config: Option<&str>,
    ) -> Result<Option<PythonRepository>, String> {
        let directory = model(versions, config);
        super::read(directory.path(), None, None).map_err(|error| error.message.to_string())
    }

    #[test]
    fn a_model_is_recognised_by_its_backend_or_its_file() {
        let found = |versions: &[&str], config| of_files(versions, config).unwrap().is_some();
        assert!(found(&["1"], Some("backend: 'python'")));
        assert!(found(&["1"], Some("max_batch_size: 8")));
        assert!(found(&["1"], None));
        assert!(!found(&[], None));
        assert!(!found(&["1"], Some("backend: 'onnxruntime'")));
        assert!(!found(&["1"], Some("platform: 'ensemble'")));
        let both = model(&["1"], Some("max_batch_size: 8"));
        std::fs::write(both.path().join("1").join(GRAPH), "").unwrap();
        assert!(!is_python(both.path()));
        let directory = model(&["1"], None);
        std::fs::write(directory.path().join("app.py"), "").unwrap();
        assert!(!is_python(directory.path()), "code of its own comes first");
        let wrong = model(&["1"], Some("backend: 'python"));
        assert!(is_python(wrong.path()));
    }

    #[test]
    fn the_version_is_the_highest_or_the_one_that_is_named() {
        let config = "backend: 'python' instance_group [ { count: 2 kind: KIND_CPU },
                      { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] } ]";
        let directory = model(&["2", "10"], Some(config));
        let of = |version| super::read(directory.path(), None, version);
        let found = of(None).unwrap().unwrap();
        assert_eq!((found.version.as_str(), found.instances), ("10", Some(6)));
        assert_eq!(of(Some("2")).unwrap().unwrap().version, "2");
        let error = of(Some("3")).unwrap_err();
        assert!(error.message.contains("the versions 2, 10"), "{error}");
        let given = "{\"backend\":\"python\",\"maxBatchSize\":4,\"versionPolicy\":{\"specific\":{\"versions\":[2]}}}";
        let found = super::read(directory.path(), Some(given), None)
            .unwrap()
            .unwrap();
        assert_eq!(found.version, "2");
        assert_eq!(found.config["max_batch_size"], 4);
    }

    #[test]
    fn what_cannot_be_served_is_named() {
        for (versions, config, expected) in [
            (vec![], "backend: 'python'", "no folder of a version"),
            (vec!["1"], "backend: 'python", "line 1"),
            (
                vec!["1", "2"],
                "backend: 'python' version_policy { all {} }",
                "the versions 1, 2, and a Python model serves one",
            ),
            (
                vec!["1"],
                "backend: 'python' parameters { key: 'EXECUTION_ENV_PATH'
                 value: { string_value: '$$TRITON_MODEL_DIRECTORY/env.tar.gz' } }",
                "must name a directory with bin/python",
            ),
        ] {
            let error = of_files(&versions, Some(config)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_unpacked_environment_is_the_interpreter() {
        let config = "backend: 'python' parameters { key: 'EXECUTION_ENV_PATH'
                      value: { string_value: '$$TRITON_MODEL_DIRECTORY/env' } }";
        let directory = model(&["1"], Some(config));
        std::fs::create_dir_all(directory.path().join("env/bin")).unwrap();
        std::fs::write(directory.path().join("env/bin/python"), "").unwrap();
        let found = super::read(directory.path(), None, None).unwrap().unwrap();
        assert_eq!(
            found.interpreter,
            Some(directory.path().join("env/bin/python"))
        );
    }
}
