//! Loads with a configuration or files, which replace those of the repository.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};
use volley_types::registry::{
    BackendName, ModelEntry, ModelSource, ModelVersionSpec, RegistryCommand, RegistryState,
};
use volley_types::{ErrorCode, ModelName, ModelVersion, ParamValue, Parameters, PredictError};

use super::ensemble::{self, MAX_CONFIG_BYTES, SCHEDULING};
use super::tensors::printable;
use crate::model_files::ModelFile;
use volley_http_edge::body::UniqueJson;

/// Parameter of a version with its configuration. Only loads set it.
const TRITON_CONFIG: &str = "triton_config";
/// Prefix of the path of a file.
const FILE: &str = "file:";
/// Maximum number of files of a load.
const MAX_FILES: usize = 1_000;
/// Maximum length of a path, and of a part of one, in bytes.
const MAX_PATH: usize = 1_024;
const MAX_PART: usize = 255;

/// A parameter of a load.
pub(super) enum LoadParameter {
    Text(String),
    Bytes(Bytes),
    Other,
}

impl LoadParameter {
    /// Parses a parameter in JSON, in which the bytes of files are base64.
    ///
    /// # Errors
    /// `InvalidInput` naming a file that is not valid base64.
    pub(super) fn json(name: &str, value: &Value) -> Result<Self, PredictError> {
        match value.as_str() {
            Some(text) if name.starts_with(FILE) => {
                let bytes = STANDARD.decode(text).map_err(|error| {
                    wrong(name, "must be the file's bytes in base64").with_source(error)
                })?;
                Ok(Self::Bytes(bytes.into()))
            }
            Some(text) => Ok(Self::Text(text.to_owned())),
            None => Ok(Self::Other),
        }
    }
}

/// The contents of a load.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Configuration in Triton's format.
    pub(super) config: Option<Map<String, Value>>,
    pub(super) files: Vec<ModelFile>,
}

fn wrong(name: &str, what: &str) -> PredictError {
    PredictError::invalid(format!("load parameter '{}' {what}", printable(name)))
}

impl Load {
    /// Parses the parameters of a load.
    ///
    /// # Errors
    /// `InvalidInput` naming the parameter that is unknown or malformed; `TooLarge` over the size
    /// limits.
    pub(super) fn read(
        given: impl IntoIterator<Item = (String, LoadParameter)>,
    ) -> Result<Self, PredictError> {
        let mut load = Self::default();
        for (name, value) in given {
            match (name.strip_prefix(FILE), value) {
                (Some(path), LoadParameter::Bytes(bytes)) => {
                    if !is_inside(path) {
                        let what = "has a path that is absolute, malformed or contains '..'; \
                                    write it relative to the model's directory, as \
                                    'file:1/model.onnx'";
                        return Err(wrong(&name, what));
                    }
                    load.files.push((path.to_owned(), bytes));
                }
                (Some(_), _) => return Err(wrong(&name, "must be the bytes of a file")),
                (None, LoadParameter::Text(text)) if name == "config" => {
                    load.config = Some(read(&text)?)
                }
                (None, _) if name == "config" => return Err(wrong(&name, "must be a text")),
                (None, _) => {
                    let what = "is not known; the parameters are 'config' and 'file:<path>'";
                    return Err(wrong(&name, what));
                }
            }
        }
        load.check()?;
        Ok(load)
    }

    fn check(&self) -> Result<(), PredictError> {
        if self.files.is_empty() {
            return Ok(());
        }
        if self.config.is_none() {
            return Err(PredictError::invalid(
                "load parameter 'config' is missing: files in a load replace the model's \
                 directory, so its configuration must come with them ('{}' for the defaults)",
            ));
        }
        if self.is_ensemble() {
            return Err(PredictError::invalid(
                "an ensemble has no files; load the models of its steps with their files",
            ));
        }
        if MAX_FILES < self.files.len() {
            let message = format!("a load has at most {MAX_FILES} files");
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        let paths = || self.files.iter().map(|(path, _)| path);
        let below = |path: &str, other: &str| {
            let rest = other.strip_prefix(path);
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        match paths().find(|path| paths().any(|other| below(path, other))) {
            Some(path) => Err(wrong(
                &format!("{FILE}{path}"),
                "is a file, and also the folder of another file",
            )),
            None => Ok(()),
        }
    }

    /// Whether the configuration is that of an ensemble.
    pub(super) fn is_ensemble(&self) -> bool {
        let config = self.config.iter();
        let mut fields = config.flat_map(Map::keys);
        fields.any(|field| field == SCHEDULING || field == "ensembleScheduling")
    }
}

/// Whether a path stays within the model's directory.
fn is_inside(path: &str) -> bool {
    let is_part = |part: &str| {
        let is_odd = |c: char| c.is_control() || c == '\\';
        !matches!(part, "" | "." | "..") && part.len() <= MAX_PART && !part.contains(is_odd)
    };
    path.len() <= MAX_PATH && path.split('/').count() <= 16 && path.split('/').all(is_part)
}

fn read(text: &str) -> Result<Map<String, Value>, PredictError> {
    if MAX_CONFIG_BYTES < text.len() {
        return Err(ensemble::too_large());
    }
    let malformed = match serde_json::from_str(text) {
        Ok(UniqueJson(Value::Object(config))) => return Ok(config),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    let mut message = "load parameter 'config' must be a JSON object".to_owned();
    if let Some(error) = malformed {
        message.push_str(&format!(": {error}"));
    }
    Err(PredictError::invalid(message))
}

/// Whether a version was created by a load, and is not from the repository.
fn is_loaded(spec: &ModelVersionSpec) -> bool {
    spec.parameters.get(TRITON_CONFIG).is_some()
}

/// The newest version from the repository.
fn own(entry: &ModelEntry) -> Option<&ModelVersionSpec> {
    entry.versions.values().rfind(|spec| !is_loaded(spec))
}

/// The version that a load without parameters deploys.
///
/// # Errors
/// `NotFound` for an unknown model, and for one that only has versions from loads.
pub(super) fn own_version(
    registry: &RegistryState,
    model: &ModelName,
) -> Result<ModelVersion, PredictError> {
    let entry = registry.models.get(model).ok_or_else(|| unknown(model))?;
    let own = own(entry).map(|spec| spec.version);
    own.ok_or_else(|| {
        let message = format!(
            "model '{model}' is not in a repository: its files came with a load; send the files \
             with this load, or register the model"
        );
        PredictError::new(ErrorCode::NotFound, message)
    })
}

fn unknown(model: &ModelName) -> PredictError {
    let message = format!("no model '{model}' is registered");
    PredictError::new(ErrorCode::NotFound, message)
}

/// The version that a load deploys.
#[derive(Debug)]
pub(super) enum Version {
    /// An existing version.
    There(ModelVersion),
    /// A version that must be registered first.
    New(Box<RegistryCommand>),
}

/// Whether a model is loaded from a directory or from fetched files.
fn has_files(source: &ModelSource) -> bool {
    match source {
        ModelSource::Path(_) | ModelSource::Url { .. } => true,
        ModelSource::None | ModelSource::Connector(_) => false,
    }
}

/// The version of a model with this configuration and, if `files` are stored somewhere, with these
/// files in place of the repository's.
///
/// # Errors
/// `NotFound` for an unknown model without files; `InvalidInput` for a model that cannot have a
/// configuration.
pub(super) fn version(
    registry: &RegistryState,
    model: &ModelName,
    config: &Map<String, Value>,
    files: Option<ModelSource>,
) -> Result<Version, PredictError> {
    let entry = registry.models.get(model);
    let mut spec = match files {
        Some(source) => ModelVersionSpec {
            version: ModelVersion(0),
            backend: BackendName::ONNX,
            source,
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: volley_dialect_kit::clock::now_ms(),
        },
        None => {
            let entry = entry.ok_or_else(|| unknown(model))?;
            let newest = own(entry).or_else(|| entry.versions.values().next_back());
            let newest = newest.filter(|spec| has_files(&spec.source));
            newest.cloned().ok_or_else(|| {
                PredictError::invalid(format!(
                    "model '{model}' has no configuration: it is not loaded from files"
                ))
            })?
        }
    };
    let text = ParamValue::Json(Value::Object(config.clone()).to_string());
    spec.parameters.set(TRITON_CONFIG, text)?;
    let same = |there: &&ModelVersionSpec| {
        there.backend == spec.backend
            && there.source == spec.source
            && there.parameters == spec.parameters
    };
    let versions = entry
        .into_iter()
        .flat_map(|entry| entry.versions.values().rev());
    Ok(match versions.into_iter().find(same) {
        Some(there) => Version::There(there.version),
        None => Version::New(Box::new(RegistryCommand::RegisterModel(
            model.clone(),
            spec,
        ))),
    })
}

#[cfg(test)]
mod tests;
