//! Downloads one object into one file: resumable, with a hash and progress.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use object_store::path::Path as ObjectPath;
use object_store::{GetOptions, GetRange, ObjectStore};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use volley_types::registry::Sha256;
use volley_types::{ErrorCode, PredictError};

use crate::cache::Lock;
use crate::cancel::Cancel;
use crate::failure;
use crate::hash::{Hasher, sha256};
use crate::progress::Progress;

/// Maximum number of received chunks that wait for the disk.
const PIECES: usize = 32;
/// Wait before an interrupted download is resumed.
const PAUSE: Duration = Duration::from_millis(250);
const BLOCK: usize = 1 << 20;

/// A file of a model that is to be downloaded.
#[derive(Clone, Debug)]
pub(crate) struct FileRequest {
    /// Path in the store.
    pub(crate) location: ObjectPath,
    /// Path relative to the model's directory.
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// Identifies the content at this path, if the store provides it.
    pub(crate) etag: Option<String>,
    pub(crate) sha256: Option<Sha256>,
}

/// The context that all files of one model share.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Directory of complete files.
    pub(crate) files: PathBuf,
    /// Directory of partial files.
    pub(crate) pieces: PathBuf,
    pub(crate) progress: Arc<Progress>,
    /// Held by every writer, even when the load is dropped.
    pub(crate) lock: Arc<Lock>,
    pub(crate) stop: Cancel,
}

/// Metadata of a partial file.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
struct Tag {
    etag: Option<String>,
    bytes: u64,
}

/// The reason for which an attempt ended.
enum FetchError {
    /// The connection broke; `bytes` bytes have been received in total.
    Off { bytes: u64, error: PredictError },
    /// The partial file does not fit the object in the store.
    Stale,
    /// A permanent error.
    Failed(PredictError),
}

/// Downloads one file. Resumes the partial file of an earlier attempt if an ETag or a hash proves
/// that the content is the same.
///
/// # Cancel safety
/// Received bytes are kept, and the next call resumes from them.
pub(crate) async fn file(work: &Work, wanted: &FileRequest) -> Result<(), PredictError> {
    let target = work.files.join(&wanted.path);
    let slot = Slot::of(&work.pieces, wanted);
    if slot.is_done(&target, wanted) {
        work.progress.skip(wanted.bytes);
        return Ok(());
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(failure::of_disk)?;
    }
    let mut had = 0;
    let digest = loop {
        match attempt(work, wanted, &slot).await {
            Ok(digest) => break digest,
            Err(FetchError::Stale) => {
                slot.clear().map_err(failure::of_disk)?;
                had = 0;
            }
            // Retry as long as each attempt receives more bytes than the previous one.
            Err(FetchError::Off { bytes, error }) if bytes > had => {
                tracing::warn!(
                    bytes,
                    error = error.chain(),
                    "model download interrupted; resuming"
                );
                had = bytes;
                tokio::time::sleep(PAUSE).await;
            }
            Err(FetchError::Off { error, .. } | FetchError::Failed(error)) => return Err(error),
        }
    };
    if wanted.sha256.is_some_and(|expected| expected != digest) {
        slot.clear().map_err(failure::of_disk)?;
        return Err(failure::wrong_hash());
    }
    fs::rename(&slot.part, &target).map_err(failure::of_disk)
}

async fn attempt(work: &Work, wanted: &FileRequest, slot: &Slot) -> Result<Sha256, FetchError> {
    let failed = |error| FetchError::Failed(failure::of_disk(error));
    let tag = slot.tag();
    let can_resume = tag.as_ref().is_some_and(|tag| tag.fits(wanted));
    if !can_resume {
        slot.clear().map_err(failed)?;
    }
    let sink = open_sink(work, slot).await.map_err(FetchError::Failed)?;
    let offset = sink.bytes;
    if offset > wanted.bytes {
        return Err(FetchError::Stale);
    }
    work.progress.skip(offset);
    if offset == wanted.bytes && offset > 0 {
        return close(sink).await.map_err(FetchError::Failed);
    }
    let options = GetOptions {
        range: (offset > 0).then_some(GetRange::Offset(offset)),
        if_match: tag.filter(|_| offset > 0).and_then(|tag| tag.etag),
        ..GetOptions::default()
    };
    let answer = match work.store.get_opts(&wanted.location, options).await {
        Ok(answer) => answer,
        Err(error) => {
            work.progress.take_back(offset);
            return Err(refused(error, offset));
        }
    };
    if answer.meta.size != wanted.bytes {
        return Err(FetchError::Failed(changed()));
    }
    if offset == 0 {
        let tag = Tag {
            etag: answer.meta.e_tag.clone(),
            bytes: wanted.bytes,
        };
        slot.write_tag(&tag).map_err(failed)?;
    }
    pour(work, answer, sink, wanted.bytes).await
}

/// Writes the object into the file.
async fn pour(
    work: &Work,
    answer: object_store::GetResult,
    sink: Sink,
    whole: u64,
) -> Result<Sha256, FetchError> {
    let mut arrived = sink.bytes;
    let (sender, receiver) = mpsc::channel(PIECES);
    let lock = work.lock.clone();
    let writer = tokio::task::spawn_blocking(move || {
        let _lock = lock;
        write(sink, receiver)
    });
    let mut stream = answer.into_stream();
    let mut broken = None;
    while let Some(piece) = stream.next().await {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        arrived += piece.len() as u64;
        if arrived > whole {
            return Err(FetchError::Failed(changed()));
        }
        work.progress.add(piece.len() as u64);
        if sender.send(piece).await.is_err() {
            // The disk failed; the writer returns the error.
            break;
        }
    }
    drop(sender);
    let joined = writer.await.map_err(failure::of_task);
    let digest = joined
        .map_err(FetchError::Failed)?
        .map_err(|error| FetchError::Failed(failure::of_disk(error)))?;
    if broken.is_none() && arrived == whole {
        return Ok(digest);
    }
    work.progress.take_back(arrived);
    let error = broken.map_or_else(ended_early, failure::of_store);
    Err(FetchError::Off {
        bytes: arrived,
        error,
    })
}

fn refused(error: object_store::Error, offset: u64) -> FetchError {
    let is_stale = matches!(
        error,
        object_store::Error::Precondition { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotModified { .. }
    );
    if offset > 0 && is_stale {
        return FetchError::Stale;
    }
    // The store's client has already retried.
    FetchError::Failed(failure::of_store(error))
}

fn changed() -> PredictError {
    PredictError::new(
        ErrorCode::UpstreamFailed,
        "a file of the model does not have the expected size; was it changed during the download?",
    )
}

fn ended_early() -> PredictError {
    PredictError::new(
        ErrorCode::UpstreamIncomplete,
        "the model's store ended a file too early; the bytes received so far are kept",
    )
}

/// The paths of one partial file and its metadata.
struct Slot {
    part: PathBuf,
    tag: PathBuf,
}

impl Slot {
    fn of(pieces: &Path, wanted: &FileRequest) -> Self {
        let name = sha256(wanted.path.to_string_lossy().as_bytes()).to_string();
        Self {
            part: pieces.join(format!("{name}.part")),
            tag: pieces.join(format!("{name}.tag")),
        }
    }

    fn tag(&self) -> Option<Tag> {
        serde_json::from_slice(&fs::read(&self.tag).ok()?).ok()
    }

    fn write_tag(&self, tag: &Tag) -> io::Result<()> {
        fs::write(&self.tag, serde_json::to_vec(tag)?)
    }

    /// Whether an earlier attempt downloaded the complete file. Only verified files are moved to
    /// `target`.
    fn is_done(&self, target: &Path, wanted: &FileRequest) -> bool {
        let has_size = fs::metadata(target).is_ok_and(|found| found.len() == wanted.bytes);
        has_size && self.tag().is_some_and(|tag| tag.fits(wanted))
    }

    fn clear(&self) -> io::Result<()> {
        for path in [&self.part, &self.tag] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Tag {
    /// Whether a file with this tag is a prefix of the requested file.
    fn fits(&self, wanted: &FileRequest) -> bool {
        let is_same = match (&self.etag, &wanted.etag) {
            (Some(held), Some(there)) => held == there,
            (Some(_), None) => true,
            (None, _) => wanted.sha256.is_some(),
        };
        is_same && self.bytes == wanted.bytes
    }
}

/// A partial file, and the hash of its content.
struct Sink {
    file: File,
    hasher: Hasher,
    bytes: u64,
}

/// Opens the partial file of an earlier attempt, or creates it, and hashes its content.
async fn open_sink(work: &Work, slot: &Slot) -> Result<Sink, PredictError> {
    let (path, lock, stop) = (slot.part.clone(), work.lock.clone(), work.stop.clone());
    let open = move || {
        let _lock = lock;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(failure::of_disk)?;
        let (mut hasher, mut bytes, mut block) = (Hasher::new(), 0, vec![0; BLOCK]);
        loop {
            stop.check()?;
            let read = file.read(&mut block).map_err(failure::of_disk)?;
            if read == 0 {
                break;
            }
            hasher.update(&block[..read]);
            bytes += read as u64;
        }
        file.seek(SeekFrom::Start(bytes))
            .map_err(failure::of_disk)?;
        Ok(Sink {
            file,
            hasher,
            bytes,
        })
    };
    let opened = tokio::task::spawn_blocking(open).await;
    opened.map_err(failure::of_task)?
}

async fn close(sink: Sink) -> Result<Sha256, PredictError> {
    let close = move || sink.file.sync_all().map(|()| sink.hasher.finish());
    let closed = tokio::task::spawn_blocking(close).await;
    closed.map_err(failure::of_task)?.map_err(failure::of_disk)
}

/// Writes chunks until the channel is closed, then returns the hash of the file.
fn write(mut sink: Sink, mut pieces: mpsc::Receiver<Bytes>) -> io::Result<Sha256> {
    while let Some(piece) = pieces.blocking_recv() {
        sink.hasher.update(&piece);
        sink.file.write_all(&piece)?;
    }
    sink.file.sync_all()?;
    Ok(sink.hasher.finish())
}
