//! Several versions of one model in one replica: each request selects a version by its name.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use volley_backend::Backend;
use volley_types::signature::{ModelMetadata, SERVED_VERSION};
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, ParamValue, Predict, PredictError, PredictRequest,
    Signature,
};

/// A loaded version.
pub(crate) type LoadedVersion = Arc<dyn Backend>;

/// Combines versions into one backend. The last version is the default.
///
/// # Errors
/// None at present; versions with different columns are rejected by `signature`.
pub(crate) fn versions(
    mut versions: Vec<(Option<String>, LoadedVersion)>,
) -> Result<LoadedVersion, PredictError> {
    if let [(None, _)] = versions.as_slice()
        && let Some((_, only)) = versions.pop()
    {
        return Ok(only);
    }
    let named = versions
        .into_iter()
        .filter_map(|(name, model)| Some((name?, model)));
    let versions: Vec<(String, LoadedVersion)> = named.collect();
    Ok(Arc::new(Versions { versions }))
}

/// The version in MLServer's `model-settings.json` beside the model.
pub(crate) fn own_version(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path.join("model-settings.json")).ok()?;
    let settings: Value = serde_json::from_str(&text).ok()?;
    let version = settings.get("parameters")?.get("version")?.as_str()?;
    (!version.is_empty()).then(|| version.to_owned())
}

struct Versions {
    /// Never empty.
    versions: Vec<(String, LoadedVersion)>,
}

impl Versions {
    fn of(&self, asked: Option<&str>) -> Result<&LoadedVersion, PredictError> {
        let found = match asked {
            None => self.versions.last(),
            Some(asked) => self.versions.iter().find(|(name, _)| name == asked),
        };
        found.map(|(_, model)| model).ok_or_else(|| {
            let message = "this version of the model is not loaded";
            PredictError::new(ErrorCode::NotFound, message)
        })
    }
}

impl Backend for Versions {
    fn capacity(&self) -> usize {
        self.versions
            .iter()
            .map(|(_, model)| model.capacity())
            .sum()
    }

    fn memory_bytes(&self) -> u64 {
        self.versions
            .iter()
            .map(|(_, model)| model.memory_bytes())
            .sum()
    }
}

#[async_trait]
impl Predict for Versions {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let asked = request.parameters.remove(SERVED_VERSION);
        let asked = asked.map(|asked| match asked {
            ParamValue::Text(name) => name,
            ParamValue::Int(number) => number.to_string(),
            ParamValue::Bool(_) | ParamValue::Float(_) | ParamValue::Json(_) => String::new(),
        });
        self.of(asked.as_deref())?.predict(request).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        let signature = self.of(None)?.signature(model).await?;
        for (name, other) in &self.versions {
            if !other.signature(model).await?.stands_for(&signature) {
                return Err(PredictError::invalid(format!(
                    "version {name} of the model has other input or output columns than the \
                     newest; serve it under a separate name, or leave it out of 'version_policy'"
                )));
            }
        }
        let served = ModelMetadata {
            versions: self.versions.iter().map(|(name, _)| name.clone()).collect(),
            ..ModelMetadata::of(&signature)
        };
        Ok(served.on(signature))
    }

    async fn models(&self) -> Vec<ModelName> {
        match self.of(None) {
            Ok(model) => model.models().await,
            Err(_) => Vec::new(),
        }
    }
}
