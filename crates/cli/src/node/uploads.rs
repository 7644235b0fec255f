//! Storage for models that are uploaded in requests.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use volley_artifacts::upload;
use volley_gateway::{ModelFile, ModelStore};
use volley_types::PredictError;
use volley_types::registry::{ModelUrl, Sha256};

/// Stores each model in a directory below this URL.
struct Uploads(ModelUrl);

/// A store below `url`.
pub(crate) fn store(url: ModelUrl) -> Arc<dyn ModelStore> {
    Arc::new(Uploads(url))
}

#[async_trait]
impl ModelStore for Uploads {
    async fn keep(&self, files: Vec<ModelFile>) -> Result<(ModelUrl, Sha256), PredictError> {
        upload::put(&self.0, &files).await
    }
}

/// The `file:` URL of a directory on this machine.
///
/// # Errors
/// `InvalidInput` when the path is not absolute.
pub(crate) fn url_of(directory: &Path) -> Result<ModelUrl, PredictError> {
    let mut url = "file://".to_owned();
    for byte in directory.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' | b'~' => url.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => url.push(char::from(*byte)),
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    ModelUrl::parse(&(url + "/"))
}

#[cfg(test)]
mod tests;
