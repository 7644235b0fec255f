//! Writes the files of an uploaded model to a store from which workers fetch it.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, ObjectStoreExt, PutPayload};
use volley_types::PredictError;
use volley_types::registry::{ModelUrl, ModelUrlKind, ModelUrlScheme, Sha256};

use crate::hash::sha256;
use crate::manifest::{self, MANIFEST, ManifestEntry};
use crate::store::{self, ObjectLocation};
use crate::{ArtifactConfig, failure};

/// Maximum number of concurrent uploads of one model's files.
const FILES_AT_ONCE: usize = 4;

/// Checks that `url` is a directory in a writable store.
///
/// # Errors
/// `InvalidInput` with the reason.
pub fn check(url: &ModelUrl) -> Result<(), PredictError> {
    let what = match (url.kind(), url.scheme()) {
        (_, ModelUrlScheme::Http | ModelUrlScheme::Https) => {
            "is an HTTP server and cannot be written to; use file, s3, gs or az"
        }
        (ModelUrlKind::Directory, _) => return Ok(()),
        _ => "must end in '/'",
    };
    Err(PredictError::invalid(format!("'{url}' {what}")))
}

/// Writes the files of a model, each with its path in the model's directory, to a new directory
/// below `store`. Its name is the hash of the manifest, so the same files are written only once.
/// Returns the directory's URL and the hash of its manifest, which is written last.
///
/// Access to buckets is configured by the environment of this machine, for example `AWS_REGION` or
/// `GOOGLE_SERVICE_ACCOUNT`.
///
/// # Cancel safety
/// Dropping the future leaves files without a manifest. The next call overwrites them.
///
/// # Errors
/// `InvalidInput` for a path that leaves the directory; `Unavailable`, `UpstreamFailed` or
/// `PermissionDenied` from the store.
pub async fn put(
    store: &ModelUrl,
    files: &[(String, Bytes)],
) -> Result<(ModelUrl, Sha256), PredictError> {
    let entries = files.iter().map(|(path, bytes)| {
        manifest::relative(path)?;
        if path == MANIFEST {
            return Err(PredictError::invalid(format!(
                "a model that comes with a request has no {MANIFEST}; it is made of its files"
            )));
        }
        Ok(ManifestEntry {
            path: path.clone(),
            bytes: bytes.len() as u64,
            sha256: sha256(bytes),
        })
    });
    let mut entries: Vec<_> = entries.collect::<Result<_, PredictError>>()?;
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let text = manifest::write(entries)?;
    let hash = sha256(text.as_bytes());
    let url = ModelUrl::parse(&format!("{store}{hash}/"))?;
    let opening = url.clone();
    let open = move || store::open(&opening, &ArtifactConfig::default());
    let place = tokio::task::spawn_blocking(open).await;
    let place = place.map_err(failure::of_task)??;
    let manifest = place.path.clone().join(MANIFEST);
    if is_there(&place, &manifest).await? {
        return Ok((url, hash));
    }
    let puts = files.iter().map(|(path, bytes)| {
        let mut location = place.path.clone();
        location.extend(path.split('/'));
        let store = place.store.clone();
        let payload = PutPayload::from(bytes.clone());
        async move {
            let put = store.put(&location, payload).await;
            put.map(|_| ()).map_err(failure::of_store)
        }
    });
    futures::stream::iter(puts.collect::<Vec<_>>())
        .buffer_unordered(FILES_AT_ONCE)
        .try_collect::<()>()
        .await?;
    let put = place.store.put(&manifest, PutPayload::from(text)).await;
    put.map_err(failure::of_store)?;
    Ok((url, hash))
}

async fn is_there(place: &ObjectLocation, location: &ObjectPath) -> Result<bool, PredictError> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    match place.store.get_opts(location, options).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(failure::of_store(error)),
    }
}

#[cfg(test)]
mod tests {
    use volley_backend::LoadProgress;
    use volley_telemetry::Metrics;
    use volley_types::ErrorCode;

    use super::*;
    use crate::{ArtifactRequest, Artifacts};

    fn files(bytes: &'static [u8]) -> Vec<(String, Bytes)> {
        vec![
            ("1/model.onnx".to_owned(), Bytes::from_static(bytes)),
            ("labels of it.txt".to_owned(), Bytes::from_static(b"a\nb\n")),
        ]
    }

    #[tokio::test]
    async fn a_worker_fetches_what_was_put_and_the_same_files_are_put_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display();
        let store = ModelUrl::parse(&format!("file://{root}/store/")).unwrap();
        check(&store).unwrap();
        let (url, hash) = put(&store, &files(b"graph")).await.unwrap();
        let again = put(&store, &files(b"graph")).await.unwrap();
        assert_eq!(again, (url.clone(), hash));
        let other = put(&store, &files(b"another")).await.unwrap();
        assert_ne!(other.0, url);

        let config = ArtifactConfig {
            cache_dir: Some(folder.path().join("cache")),
            min_free_bytes: 0,
            ..ArtifactConfig::default()
        };
        let artifacts = Artifacts::new(config, Metrics::new()).unwrap();
        let wanted = ArtifactRequest {
            url,
            sha256: Some(hash),
            identity: String::new(),
        };
        let lease = artifacts.fetch(&wanted, &LoadProgress::default()).await;
        let lease = lease.unwrap();
        let read = |path: &str| std::fs::read(lease.path().join(path)).unwrap();
        assert_eq!(read("1/model.onnx"), b"graph");
        assert_eq!(read("labels of it.txt"), b"a\nb\n");
    }

    #[tokio::test]
    async fn what_climbs_is_put_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let store = ModelUrl::parse(&format!("file://{}/", folder.path().display())).unwrap();
        let files = [("../out".to_owned(), Bytes::from_static(b"x"))];
        let error = put(&store, &files).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        for bad in ["https://host/models/", "s3://bucket/a.zip"] {
            assert!(check(&ModelUrl::parse(bad).unwrap()).is_err(), "{bad}");
        }
    }
}
