//! Unpacks archives into directories. Before anything is written, the whole archive is checked:
//! only regular files and folders, no path that leaves the directory, and limits on number and
//! size.

mod tarball;
mod zipped;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use volley_types::{ErrorCode, PredictError};

use crate::cache::Cache;
use crate::cancel::Cancel;
use crate::failure;
use crate::manifest::{MAX_FILES, relative};

const BLOCK: usize = 256 << 10;
/// Bytes written between two checks of the free disk space.
const LOOK_EVERY: u64 = 64 << 20;

/// The format of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Archive {
    Zip,
    TarGz,
}

/// Returns the unpacked size of an archive in bytes, after checking all of its headers.
///
/// # Errors
/// `InvalidInput` for a malformed archive or a forbidden entry; `TooLarge` for too many entries or
/// bytes; `Cancelled`.
pub(crate) fn measure(
    archive: Archive,
    file: &Path,
    max_bytes: u64,
    stop: &Cancel,
) -> Result<u64, PredictError> {
    let mut survey = Survey::new(max_bytes);
    match archive {
        Archive::Zip => zipped::measure(file, &mut survey, stop)?,
        Archive::TarGz => tarball::measure(file, &mut survey, stop)?,
    }
    if survey.files == 0 {
        return Err(PredictError::invalid("the model's archive holds no files"));
    }
    Ok(survey.bytes)
}

/// Unpacks an archive into the new directory `into`.
///
/// # Errors
/// As [`measure`]; `Unavailable` for errors of the disk.
pub(crate) fn unpack(
    archive: Archive,
    file: &Path,
    into: &Path,
    max_bytes: u64,
    cache: &Cache,
    stop: &Cancel,
) -> Result<(), PredictError> {
    fs::create_dir(into).map_err(failure::of_disk)?;
    let mut writer = Writer {
        into,
        survey: Survey::new(max_bytes),
        cache,
        stop,
        since_look: 0,
        block: vec![0; BLOCK],
    };
    match archive {
        Archive::Zip => zipped::unpack(file, &mut writer),
        Archive::TarGz => tarball::unpack(file, &mut writer),
    }
}

/// The directory of the model: `root`, or its only entry if that is a folder.
pub(crate) fn model_root(root: &Path) -> io::Result<PathBuf> {
    let mut entries = fs::read_dir(root)?;
    let only = match (entries.next().transpose()?, entries.next()) {
        (Some(only), None) if only.file_type()?.is_dir() => only.path(),
        _ => root.to_path_buf(),
    };
    Ok(only)
}

/// The path of an archive entry; `None` for entries that are skipped.
fn entry_path(name: &str) -> Result<Option<PathBuf>, PredictError> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let name = name.strip_suffix('/').unwrap_or(name);
    // Entries that some archivers add.
    let is_extra = name == "__MACOSX"
        || name.starts_with("__MACOSX/")
        || name.rsplit('/').next() == Some(".DS_Store");
    if name.is_empty() || name == "." || is_extra {
        return Ok(None);
    }
    relative(name).map(Some)
}

fn malformed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> PredictError {
    PredictError::invalid("the model's archive is malformed or cut off").with_source(error)
}

fn not_plain() -> PredictError {
    PredictError::invalid(
        "the model's archive holds a link or a special file; only plain files and folders are \
         unpacked",
    )
}

/// Counts the contents of an archive.
struct Survey {
    max_bytes: u64,
    files: usize,
    entries: usize,
    bytes: u64,
    seen: BTreeSet<PathBuf>,
}

impl Survey {
    fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            files: 0,
            entries: 0,
            bytes: 0,
            seen: BTreeSet::new(),
        }
    }

    /// Counts an entry, including skipped ones.
    fn entry(&mut self) -> Result<(), PredictError> {
        self.entries += 1;
        if self.entries > MAX_FILES {
            let message = format!("the model's archive has more than {MAX_FILES} entries");
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, bytes: u64) -> Result<(), PredictError> {
        self.files += 1;
        self.grow(bytes)?;
        if !self.seen.insert(path.to_path_buf()) {
            let message = "the model's archive holds a file twice";
            return Err(PredictError::invalid(message));
        }
        Ok(())
    }

    fn grow(&mut self, bytes: u64) -> Result<(), PredictError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.max_bytes {
            let message = format!(
                "the model's archive unpacks to more than artifacts.max_model_size, {}",
                self.max_bytes
            );
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        Ok(())
    }
}

/// Writes the contents of an archive.
struct Writer<'a> {
    into: &'a Path,
    survey: Survey,
    cache: &'a Cache,
    stop: &'a Cancel,
    since_look: u64,
    block: Vec<u8>,
}

impl Writer<'_> {
    fn folder(&mut self, name: &str) -> Result<(), PredictError> {
        self.survey.entry()?;
        if let Some(path) = entry_path(name)? {
            fs::create_dir_all(self.into.join(path)).map_err(clash)?;
        }
        Ok(())
    }

    /// Writes one file. Counts the bytes that are actually read, not the size in the header.
    fn file(&mut self, name: &str, from: &mut impl Read) -> Result<(), PredictError> {
        self.survey.entry()?;
        let Some(path) = entry_path(name)? else {
            return Ok(());
        };
        self.survey.file(&path, 0)?;
        let target = self.into.join(&path);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(clash)?;
        }
        let options = OpenOptions::new().write(true).create_new(true).open(target);
        let mut file = options.map_err(clash)?;
        loop {
            self.stop.check()?;
            let read = from.read(&mut self.block).map_err(malformed)?;
            if read == 0 {
                break;
            }
            self.survey.grow(read as u64)?;
            self.since_look += read as u64;
            if self.since_look > LOOK_EVERY {
                self.since_look = 0;
                self.cache.check_free()?;
            }
            file.write_all(&self.block[..read])
                .map_err(failure::of_disk)?;
        }
        file.sync_all().map_err(failure::of_disk)
    }
}

/// A file in place of a folder, or the reverse, is a defect of the archive.
fn clash(error: io::Error) -> PredictError {
    match error.kind() {
        io::ErrorKind::AlreadyExists
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory => malformed(error),
        _ => failure::of_disk(error),
    }
}

#[cfg(test)]
mod tests;
