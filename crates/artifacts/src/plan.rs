//! Lists the files of a model, with their sizes, before any of them is downloaded.

use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, ObjectMeta};
use volley_types::registry::{ModelUrl, ModelUrlKind, ModelUrlScheme, Sha256};
use volley_types::{ErrorCode, PredictError};

use crate::failure;
use crate::fetch::FileRequest;
use crate::hash::sha256 as hash;
use crate::manifest::{self, MANIFEST, MAX_FILES, MAX_MANIFEST_BYTES, relative};
use crate::store::ObjectLocation;
use crate::unpack::Archive;

/// File name of an archive until it is unpacked.
pub(crate) const ARCHIVE_FILE: &str = "archive";

/// The files of a model, and how they are packed.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) files: Vec<FileRequest>,
    pub(crate) archive: Option<Archive>,
}

impl Plan {
    /// Total bytes to download.
    pub(crate) fn bytes(&self) -> u64 {
        let sizes = self.files.iter().map(|file| file.bytes);
        sizes.fold(0, u64::saturating_add)
    }
}

/// Queries the store and creates the plan. Cancel safe.
pub(crate) async fn make(
    place: &ObjectLocation,
    url: &ModelUrl,
    sha256: Option<Sha256>,
) -> Result<Plan, PredictError> {
    let archive = match url.kind() {
        ModelUrlKind::Zip => Some(Archive::Zip),
        ModelUrlKind::TarGz => Some(Archive::TarGz),
        ModelUrlKind::Directory | ModelUrlKind::Graph => None,
    };
    let files = if url.kind() == ModelUrlKind::Directory {
        directory(place, url, sha256).await?
    } else {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = place.store.get_opts(&place.path, options).await;
        let meta = found.map_err(failure::of_store)?.meta;
        let path = match archive {
            Some(_) => PathBuf::from(ARCHIVE_FILE),
            None => relative(meta.location.filename().unwrap_or_default())?,
        };
        vec![FileRequest {
            location: place.path.clone(),
            path,
            bytes: meta.size,
            etag: meta.e_tag,
            sha256,
        }]
    };
    Ok(Plan { files, archive })
}

/// Uses the manifest; without a manifest, the store's listing.
async fn directory(
    place: &ObjectLocation,
    url: &ModelUrl,
    sha256: Option<Sha256>,
) -> Result<Vec<FileRequest>, PredictError> {
    let manifest = place.path.clone().join(MANIFEST);
    match small_object(place, &manifest).await {
        Ok(text) => {
            if sha256.is_some_and(|expected| expected != hash(&text)) {
                return Err(failure::wrong_hash());
            }
            from_manifest(place, &text)
        }
        Err(error) if error.code != ErrorCode::NotFound => Err(error),
        Err(_) if sha256.is_some() => Err(PredictError::invalid(format!(
            "the hash of a directory is that of its {MANIFEST}, which is missing there; `volley \
             model manifest` makes one"
        ))),
        Err(_) if has_no_listing(url) => Err(PredictError::new(
            ErrorCode::NotFound,
            format!(
                "the model's directory has no {MANIFEST}; HTTP has no directory listing and needs \
                 this file; `volley model manifest` makes one"
            ),
        )),
        Err(_) => from_listing(place).await,
    }
}

fn has_no_listing(url: &ModelUrl) -> bool {
    matches!(url.scheme(), ModelUrlScheme::Http | ModelUrlScheme::Https)
}

fn from_manifest(place: &ObjectLocation, text: &[u8]) -> Result<Vec<FileRequest>, PredictError> {
    let wanted = |entry: manifest::ManifestEntry| {
        let mut location = place.path.clone();
        location.extend(entry.path.split('/'));
        Ok(FileRequest {
            location,
            path: relative(&entry.path)?,
            bytes: entry.bytes,
            etag: None,
            sha256: Some(entry.sha256),
        })
    };
    manifest::parse(text)?.into_iter().map(wanted).collect()
}

async fn from_listing(place: &ObjectLocation) -> Result<Vec<FileRequest>, PredictError> {
    let listed = place.store.list(Some(&place.path)).take(MAX_FILES + 1);
    let listed: Vec<_> = listed.try_collect().await.map_err(failure::of_store)?;
    if listed.len() > MAX_FILES {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!("the model's directory has more than {MAX_FILES} files"),
        ));
    }
    let files = listed
        .into_iter()
        .filter_map(|meta| from_meta(place, meta).transpose());
    let files = files.collect::<Result<Vec<_>, _>>()?;
    if files.is_empty() {
        return Err(PredictError::new(
            ErrorCode::NotFound,
            "no object exists below the model's URL",
        ));
    }
    Ok(files)
}

/// Returns `None` for objects that only mark a folder.
fn from_meta(
    place: &ObjectLocation,
    meta: ObjectMeta,
) -> Result<Option<FileRequest>, PredictError> {
    let Some(parts) = meta.location.prefix_match(&place.path) else {
        return Ok(None);
    };
    let parts: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    Ok(Some(FileRequest {
        path: relative(&parts.join("/"))?,
        location: meta.location,
        bytes: meta.size,
        etag: meta.e_tag,
        sha256: None,
    }))
}

async fn small_object(
    place: &ObjectLocation,
    location: &ObjectPath,
) -> Result<Bytes, PredictError> {
    let options = GetOptions::default();
    let found = place.store.get_opts(location, options).await;
    let mut stream = found.map_err(failure::of_store)?.into_stream();
    let mut text = BytesMut::new();
    while let Some(piece) = stream.next().await {
        text.extend_from_slice(&piece.map_err(failure::of_store)?);
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("the model's {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes"),
            ));
        }
    }
    Ok(text.freeze())
}
