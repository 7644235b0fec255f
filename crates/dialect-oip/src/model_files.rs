//! Where the files of models are kept that come with a request.

use async_trait::async_trait;
use bytes::Bytes;
use volley_types::PredictError;
use volley_types::registry::{ModelUrl, Sha256};

/// A file with its path in a model's directory.
pub type ModelFile = (String, Bytes);

/// A place that workers fetch models from.
#[async_trait]
pub trait ModelStore: Send + Sync {
    /// Keeps the files of a model, each with its path in the model's directory. Returns where the
    /// directory is, and the hash of its manifest. The same files have the same place.
    ///
    /// # Errors
    /// `InvalidInput` for a path that climbs; `Unavailable` and `PermissionDenied` from the store.
    async fn keep(&self, files: Vec<ModelFile>) -> Result<(ModelUrl, Sha256), PredictError>;
}
