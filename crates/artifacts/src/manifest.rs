//! `volley-model.json`: the manifest of a model's directory, with the size and hash of each file.
//! HTTP needs it because it has no directory listing. With other stores it is optional and makes a
//! directory verifiable.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use volley_types::PredictError;
use volley_types::registry::Sha256;

use crate::hash::Hasher;

/// File name of the manifest in the directory that it describes.
pub const MANIFEST: &str = "volley-model.json";
/// Maximum size of a manifest in bytes.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// Maximum number of files of one model.
pub(crate) const MAX_FILES: usize = 10_000;

const MAX_NAME_BYTES: usize = 255;
const MAX_PATH_BYTES: usize = 1_024;
const MAX_DEPTH: usize = 16;
const BLOCK: usize = 1 << 20;

/// One file of a model's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestEntry {
    /// Path relative to the directory, separated by `/`.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: Sha256,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Document {
    files: Vec<Record>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    path: String,
    bytes: u64,
    sha256: String,
}

/// Parses and validates a manifest.
///
/// # Errors
/// `InvalidInput`.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<ManifestEntry>, PredictError> {
    let wrong = |what: &str| PredictError::invalid(format!("the model's {MANIFEST} {what}"));
    let document: Document = serde_json::from_slice(text).map_err(|error| {
        wrong("is malformed; `volley model manifest` makes one").with_source(error)
    })?;
    if document.files.is_empty() {
        return Err(wrong("lists no files"));
    }
    if document.files.len() > MAX_FILES {
        return Err(wrong("lists too many files"));
    }
    let mut seen = BTreeSet::new();
    let mut entries = Vec::with_capacity(document.files.len());
    for record in document.files {
        relative(&record.path)?;
        if record.path == MANIFEST || !seen.insert(record.path.clone()) {
            return Err(wrong("lists a file twice, or itself"));
        }
        entries.push(ManifestEntry {
            sha256: record.sha256.parse()?,
            path: record.path,
            bytes: record.bytes,
        });
    }
    Ok(entries)
}

/// Converts the path of a file in a model's directory. Rejects paths that leave the directory.
pub(crate) fn relative(path: &str) -> Result<PathBuf, PredictError> {
    let is_part = |part: &str| {
        let is_odd = |c: char| c.is_control() || c == '\\';
        !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME_BYTES && !part.contains(is_odd)
    };
    let fits = path.len() <= MAX_PATH_BYTES && path.split('/').count() <= MAX_DEPTH;
    if fits && path.split('/').all(is_part) {
        Ok(path.split('/').collect())
    } else {
        Err(PredictError::invalid(
            "a file of the model has a path that is absolute, contains '..', or is too long",
        ))
    }
}

/// Creates the manifest of a local directory, as JSON text. Rejects links. Blocks on the disk.
///
/// # Errors
/// `InvalidInput` when the directory cannot be read, contains a link, is empty, or has too many
/// files.
pub fn describe(directory: &Path) -> Result<String, PredictError> {
    let unreadable = |error| {
        PredictError::invalid("the directory cannot be read, or holds a link").with_source(error)
    };
    let mut files = Vec::new();
    let mut folders = vec![(directory.to_path_buf(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().into_string();
            let name = name.map_err(|_| PredictError::invalid("a file's name is not UTF-8"))?;
            let path = format!("{prefix}{name}");
            relative(&path)?;
            let kind = entry.file_type().map_err(unreadable)?;
            if kind.is_dir() {
                folders.push((entry.path(), format!("{path}/")));
            } else if !kind.is_file() {
                let error = std::io::Error::other(format!("{path} is not a plain file"));
                return Err(unreadable(error));
            } else if path != MANIFEST {
                let (bytes, sha256) = hash_file(&entry.path()).map_err(unreadable)?;
                let sha256 = sha256.to_string();
                files.push(Record {
                    path,
                    bytes,
                    sha256,
                });
            }
        }
    }
    if files.is_empty() || files.len() > MAX_FILES {
        return Err(PredictError::invalid(format!(
            "a model has between 1 and {MAX_FILES} files; this directory has {}",
            files.len()
        )));
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    to_text(files)
}

/// The text of a manifest with these files.
pub(crate) fn write(entries: Vec<ManifestEntry>) -> Result<String, PredictError> {
    let record = |entry: ManifestEntry| Record {
        path: entry.path,
        bytes: entry.bytes,
        sha256: entry.sha256.to_string(),
    };
    to_text(entries.into_iter().map(record).collect())
}

fn to_text(files: Vec<Record>) -> Result<String, PredictError> {
    serde_json::to_string_pretty(&Document { files })
        .map(|text| text + "\n")
        .map_err(|error| PredictError::internal("the manifest could not be written", error))
}

fn hash_file(path: &Path) -> std::io::Result<(u64, Sha256)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut bytes, mut block) = (Hasher::new(), 0, vec![0; BLOCK]);
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok((bytes, hasher.finish()));
        }
        hasher.update(&block[..read]);
        bytes += read as u64;
    }
}

#[cfg(test)]
mod tests;
