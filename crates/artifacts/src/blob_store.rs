//! Reads and writes single files in object stores, such as backups of a cluster.
//!
//! Access to buckets is configured by the environment of this machine, for example `AWS_REGION` or
//! `GOOGLE_SERVICE_ACCOUNT`. URLs contain no credentials.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::{ObjectStoreExt, PutMode, PutOptions, PutPayload};
use volley_types::registry::ModelUrl;
use volley_types::{ErrorCode, PredictError};

use crate::store::{self, ObjectLocation};
use crate::{ArtifactConfig, failure};

/// Writes a file to `url`, completely or not at all. Dropping the future may or may not write the
/// file.
///
/// # Errors
/// `InvalidInput` for an invalid URL; `Conflict` when the object exists and `overwrite` is false;
/// `Unavailable`, `UpstreamFailed` or `PermissionDenied` from the store.
pub async fn put(url: &str, bytes: Vec<u8>, overwrite: bool) -> Result<(), PredictError> {
    let place = open(url).await?;
    let options = PutOptions::from(if overwrite {
        PutMode::Overwrite
    } else {
        PutMode::Create
    });
    let payload = PutPayload::from(Bytes::from(bytes));
    let put = place.store.put_opts(&place.path, payload, options).await;
    match put {
        Ok(_) => Ok(()),
        Err(object_store::Error::AlreadyExists { .. }) => Err(PredictError::new(
            ErrorCode::Conflict,
            "an object already exists at this URL",
        )),
        Err(error) => Err(failure::of_store(error)),
    }
}

/// Reads the file at `url`, of at most `limit` bytes. Cancel safe.
///
/// # Errors
/// As [`put`]; `NotFound` when the file does not exist; `TooLarge` when it exceeds `limit`.
pub async fn get(url: &str, limit: usize) -> Result<Vec<u8>, PredictError> {
    let place = open(url).await?;
    let found = place.store.get(&place.path).await;
    let mut pieces = found.map_err(failure::of_store)?.into_stream();
    let mut bytes = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(failure::of_store)?;
        if limit < bytes.len() + piece.len() {
            let message = format!("the file is over the limit of {limit} bytes");
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

async fn open(url: &str) -> Result<ObjectLocation, PredictError> {
    let (folder, name) = split(url)?;
    let folder = ModelUrl::parse(folder)?;
    let opened =
        tokio::task::spawn_blocking(move || store::open(&folder, &ArtifactConfig::default()));
    let place = opened
        .await
        .map_err(|error| PredictError::internal("opening the store failed", error))??;
    Ok(ObjectLocation {
        path: place.path.join(name),
        store: place.store,
    })
}

/// Splits a URL into its folder, including the final slash, and the file name.
fn split(url: &str) -> Result<(&str, &str), PredictError> {
    let slash = url.rfind('/').map(|slash| url.split_at(slash + 1));
    let plain = |name: &str| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    slash.filter(|(_, name)| plain(name)).ok_or_else(|| {
        PredictError::invalid(
            "the URL must end in a file name of letters, digits, '.', '_' and '-': \
             s3://bucket/folder/name.backup",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_put_once_and_read_back_within_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}/registry.backup", folder.path().display());
        put(&url, b"all of it".to_vec(), false).await.unwrap();
        let again = put(&url, b"other".to_vec(), false).await.unwrap_err();
        assert_eq!(again.code, ErrorCode::Conflict);
        assert_eq!(get(&url, 9).await.unwrap(), b"all of it");
        assert_eq!(get(&url, 8).await.unwrap_err().code, ErrorCode::TooLarge);
        put(&url, b"other".to_vec(), true).await.unwrap();
        assert_eq!(get(&url, 9).await.unwrap(), b"other");
        let missing = get(&format!("{url}2"), 9).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
    }

    #[tokio::test]
    async fn a_url_names_a_file() {
        for bad in [
            "",
            "/",
            "s3://bucket/",
            "s3://bucket/a b",
            "nowhere",
            "ftp://host/x",
        ] {
            let refused = get(bad, 1).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::InvalidInput, "{bad}");
        }
    }
}
