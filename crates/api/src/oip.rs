//! The Open Inference Protocol, version 2, over REST (`/v2`): as KServe, MLServer and Triton speak
//! it, with tensors in JSON or in binary form behind it; and over gRPC.

mod binary;
mod classes;
mod config;
mod describe;
mod events;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod generate;
pub(crate) mod grpc;
pub(crate) mod infer;
pub(crate) mod infer_stream;
pub(crate) mod models;
mod outputs;
mod raw;
mod repository;
mod routes;
pub(crate) mod statistics;
mod tensors;
#[cfg(test)]
mod tests;
mod texts;

use serde::Deserialize;
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, ModelVersion, PredictError, Signature,
};

use crate::app::App;

pub(crate) use routes::routes;

/// The model in a route's path.
#[derive(Debug, Deserialize)]
pub(crate) struct Named {
    model: String,
    #[serde(default)]
    version: Option<String>,
}

impl Named {
    fn reference(&self) -> Result<ModelRef, PredictError> {
        let version = self.version.as_deref().map(|version| {
            let number = version.parse().ok().map(ModelVersion);
            number.ok_or_else(|| PredictError::invalid("a model's version is a number"))
        });
        Ok(ModelRef {
            name: ModelName::new(self.model.clone())?,
            version: version.transpose()?,
        })
    }
}

/// The version that answers, else `otherwise`.
fn answering_version(chunks: &ChunkStream, otherwise: String) -> String {
    let version = chunks.answered_by().and_then(|model| model.version);
    version.map_or(otherwise, |version| version.to_string())
}

/// A model that answers now: its version and what it does.
struct Found {
    model: ModelRef,
    version: String,
    signature: Signature,
}

impl Found {
    async fn find(app: &App, named: &Named) -> Result<Self, PredictError> {
        let model = named.reference()?;
        let signature = app.control.signature(&model).await?;
        let registry = app.control.registry();
        let entry = registry.models.get(&model.name);
        let deployment = entry.and_then(|entry| entry.deployment.as_ref());
        let deployed = deployment.map(|deployment| deployment.version);
        // The version of what a name stands for is known once it has answered.
        let stands_for_others = registry.stands_for_others(&model.name);
        let told = model
            .version
            .or(deployed)
            .or(stands_for_others.then_some(ModelVersion(1)));
        let version = told.ok_or_else(|| {
            let message = format!("model '{}' is not deployed", model.name);
            PredictError::new(ErrorCode::NotDeployed, message)
        })?;
        Ok(Self {
            version: version.0.to_string(),
            model,
            signature,
        })
    }
}
