//! Models of Triton repositories: the version, the configuration and the processes of a model.

use std::path::{Path, PathBuf};

use volley_model_directory::triton::python::{self, PythonRepository};
use volley_types::PredictError;

use crate::frame::TritonSource;
use crate::settings::{Settings, checked};

/// The parameter with the name of the version to serve.
const VERSION: &str = "model_version";
/// The parameter with a configuration in JSON, which replaces `config.pbtxt`.
const CONFIG: &str = "triton_config";
/// The interface of such models.
const INTERFACE: &str = "triton";

/// The model of `directory`, if it lies in a Triton repository. Removes the parameters that choose
/// the version and the configuration from those of the model.
///
/// # Errors
/// `InvalidInput` when the configuration is malformed, or the version does not exist.
pub(crate) fn find(
    directory: &Path,
    settings: &mut Settings,
) -> Result<Option<PythonRepository>, PredictError> {
    let is_named = settings.interface == INTERFACE;
    let is_open = settings.interface == "auto" && !settings.own.contains_key("file");
    if !is_named && !is_open {
        return Ok(None);
    }
    let text = |name: &str| {
        let value = settings.own.get(name)?;
        Some(
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
        )
    };
    let (version, config) = (text(VERSION), text(CONFIG));
    let found = python::read(directory, config.as_deref(), version.as_deref())?;
    if found.is_none() && is_named {
        return Err(PredictError::invalid(
            "the directory has no model of Triton's Python backend; it needs a folder of a \
             version, such as 1/model.py, and usually a config.pbtxt with backend: \"python\"",
        ));
    }
    if found.is_some() {
        for name in [VERSION, CONFIG] {
            settings.own.remove(name);
        }
    }
    Ok(found)
}

/// The number of processes of a replica.
///
/// # Errors
/// `InvalidInput` when the model's files set too many.
pub(crate) fn instances(
    settings: &Settings,
    repository: Option<&PythonRepository>,
) -> Result<usize, PredictError> {
    let declared = repository.and_then(|repository| repository.instances);
    match (settings.instances, declared) {
        (Some(count), _) => Ok(count),
        (None, Some(count)) => checked(
            count,
            "the number of instances in 'instance_group' of config.pbtxt",
        ),
        (None, None) => Ok(1),
    }
}

/// The interpreter that is named for a model: a path or a version.
pub(crate) fn interpreter(
    settings: &Settings,
    repository: Option<&PythonRepository>,
) -> Option<String> {
    let own = || {
        let path: &PathBuf = repository?.interpreter.as_ref()?;
        Some(path.to_string_lossy().into_owned())
    };
    settings.python.clone().or_else(own)
}

/// What the process `instance` of a replica gets of the model.
pub(crate) fn source(repository: &PythonRepository, instance: usize) -> TritonSource {
    TritonSource {
        config: repository.config.clone(),
        version: repository.version.clone(),
        instance,
    }
}
