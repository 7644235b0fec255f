//! The store for files of models that a load contains.

use async_trait::async_trait;
use bytes::Bytes;
use volley_types::PredictError;
use volley_types::registry::{ModelUrl, Sha256};

/// A file with its path in a model's directory.
pub type ModelFile = (String, Bytes);

/// A store that workers can fetch models from.
#[async_trait]
pub trait ModelStore: Send + Sync {
    /// Stores the files of a model, each with its path in the model's directory. Returns the URL of
    /// the directory and the hash of its manifest. Storing the same files again returns the same
    /// URL.
    ///
    /// `InvalidInput` for a path outside of the directory; `Unavailable` and `PermissionDenied`
    /// from the store.
    ///
    /// # Cancel safety
    /// Not cancel safe: some files may have been written. A repeated call stores them at the same
    /// URL.
    async fn keep(&self, files: Vec<ModelFile>) -> Result<(ModelUrl, Sha256), PredictError>;
}
