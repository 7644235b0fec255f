//! Opens the object store of a URL.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use volley_types::registry::{ModelUrl, ModelUrlScheme};
use volley_types::{ErrorCode, PredictError};

use crate::ArtifactConfig;
use crate::http_client::ClientFactory;

/// Retries must end before the credentials of the request expire.
const RETRY_TIMEOUT: Duration = Duration::from_secs(180);

/// A store, and the path of a model in it.
pub(crate) struct ObjectLocation {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: ObjectPath,
}

/// Opens the store of a URL. Blocks while it creates clients.
pub(crate) fn open(
    url: &ModelUrl,
    config: &ArtifactConfig,
) -> Result<ObjectLocation, PredictError> {
    let path = ObjectPath::from_url_path(url.path()).map_err(|error| {
        PredictError::invalid("the model's URL has a malformed path").with_source(error)
    })?;
    let store = build(url, config)?;
    Ok(ObjectLocation { store, path })
}

/// Checks that the configuration allows a URL.
///
/// # Errors
/// `PermissionDenied`.
pub(crate) fn check_allowed(url: &ModelUrl, config: &ArtifactConfig) -> Result<(), PredictError> {
    let is_local = url.scheme() == ModelUrlScheme::File;
    let listed = |allow: &Vec<ModelUrl>| allow.iter().any(|prefix| url.is_below(prefix));
    if is_local || config.allow.as_ref().is_none_or(listed) {
        return Ok(());
    }
    let origin = format!("{}://{}/", url.scheme().as_str(), url.authority());
    Err(PredictError::new(
        ErrorCode::PermissionDenied,
        format!(
            "this worker may not fetch from this origin; allow it in the worker's configuration: \
             artifacts.allowed_urls = [\"{origin}\"]"
        ),
    ))
}

fn build(url: &ModelUrl, config: &ArtifactConfig) -> Result<Arc<dyn ObjectStore>, PredictError> {
    let retry = RetryConfig {
        max_retries: config.retries,
        retry_timeout: RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    let caller = ClientFactory::new(url, config)?;
    let bucket = url.authority();
    let chosen = |prefix: &'static str| {
        let options = config.options.iter();
        options.filter(move |(key, _)| key.starts_with(prefix))
    };
    let wrong = |error: object_store::Error| {
        PredictError::invalid(
            "the model's store cannot be set up: a setting in the worker's environment or in \
             artifacts.options is missing or wrong",
        )
        .with_source(error)
    };
    // The three builders have the same methods, but no common trait.
    macro_rules! bucket {
        ($builder:ty, $prefix:literal, $named:ident) => {{
            let mut store = <$builder>::from_env();
            for (key, value) in chosen($prefix) {
                store = store.with_config(key.parse().map_err(wrong)?, value);
            }
            let store = store
                .$named(bucket)
                .with_retry(retry)
                .with_http_connector(caller);
            Arc::new(store.build().map_err(wrong)?)
        }};
    }
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        ModelUrlScheme::File => Arc::new(LocalFileSystem::new()),
        ModelUrlScheme::Http | ModelUrlScheme::Https => {
            let origin = format!("{}://{bucket}/", url.scheme().as_str());
            let allow_http = url.scheme() == ModelUrlScheme::Http;
            let store = HttpBuilder::new()
                .with_url(origin)
                .with_client_options(ClientOptions::new().with_allow_http(allow_http))
                .with_retry(retry)
                .with_http_connector(caller);
            Arc::new(store.build().map_err(wrong)?)
        }
        ModelUrlScheme::S3 => bucket!(AmazonS3Builder, "aws_", with_bucket_name),
        ModelUrlScheme::Gcs => bucket!(GoogleCloudStorageBuilder, "google_", with_bucket_name),
        ModelUrlScheme::Azure => bucket!(MicrosoftAzureBuilder, "azure_", with_container_name),
    };
    Ok(store)
}
