//! The audit log: changes with their caller and result. Each line is a JSON object with the hash of
//! the previous line, and is synced when appended. A changed, removed or inserted line breaks the
//! chain. The log contains no prompts and no keys.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use volley_types::{ErrorCode, PredictError};

use crate::key::hex;
use crate::now_ms;

/// The previous hash of the first line.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Size in bytes at which a new file is started. The full file is kept and named after its last
/// entry.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum length of a line that is read, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum length of a target in characters; escaped, it stays far below the line limit.
const MAX_TARGET: usize = 4_096;

/// An action and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The name, for example `model.deploy`.
    pub name: &'static str,
    /// The target.
    pub target: String,
}

/// One line without its own hash.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    seq: u64,
    time_ms: u64,
    who: String,
    action: String,
    target: String,
    result: String,
    prev: String,
}

/// The audit log of one node. Clones share the file.
#[derive(Clone, Debug)]
pub struct AuditLog(Arc<Mutex<AuditChain>>);

#[derive(Debug)]
struct AuditChain {
    path: PathBuf,
    file: File,
    head: ChainHead,
    bytes: u64,
    max_bytes: u64,
}

/// The end of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainHead {
    /// The number of the last line; 0 for an empty log.
    pub seq: u64,
    /// The hash of the last line, in hexadecimal.
    pub hash: String,
}

impl Default for ChainHead {
    fn default() -> Self {
        Self {
            seq: 0,
            hash: GENESIS.to_owned(),
        }
    }
}

/// The result of [`verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainReport {
    /// The end of the chain.
    pub head: ChainHead,
    /// The files of the chain, oldest first.
    pub files: Vec<PathBuf>,
    /// The chain head before the first entry, if no local file contains it.
    pub behind: Option<ChainHead>,
    /// Whether the last line is incomplete: it is being written, was truncated by a crash, or was
    /// changed.
    pub torn: bool,
}

/// The lines of one file.
struct Lines {
    /// The chain head before the first entry.
    behind: ChainHead,
    /// The chain head after the last entry.
    head: ChainHead,
    /// The length of all complete lines in bytes.
    bytes: u64,
    /// Whether bytes follow the last complete line.
    torn: bool,
}

impl AuditLog {
    /// Opens or creates the audit log at `path`, and continues from older files in the same
    /// directory. An incomplete last line is truncated, because its action was never acknowledged.
    ///
    /// # Errors
    /// `Unavailable` when the file cannot be used, `Conflict` when its chain is broken.
    pub fn open(path: &Path) -> Result<Self, PredictError> {
        Self::open_with(path, MAX_FILE_BYTES)
    }

    fn open_with(path: &Path, max_bytes: u64) -> Result<Self, PredictError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(unusable)?;
        sync_folder(path).map_err(unusable)?;
        let Lines {
            behind,
            head,
            bytes,
            torn,
        } = verify_lines(BufReader::new(&file))?;
        let (head, behind) = match bytes {
            // The previous file was full, and no entry was written since.
            0 => match newest_kept(path)? {
                Some(seq) => {
                    let kept = verify_file(&kept_as(path, seq))?.head;
                    (kept.clone(), kept)
                }
                None => (head, behind),
            },
            _ => (head, behind),
        };
        let before = follow(path, &behind)?;
        if before.is_none() && behind.seq != 0 {
            tracing::warn!(
                entry = behind.seq,
                hash = behind.hash,
                "audit log continues from an entry that no local file contains"
            );
        }
        if torn {
            tracing::warn!("incomplete last line of the audit log truncated");
            file.set_len(bytes).map_err(unusable)?;
        }
        file.seek(SeekFrom::End(0)).map_err(unusable)?;
        Ok(Self(Arc::new(Mutex::new(AuditChain {
            path: path.to_path_buf(),
            file,
            head,
            bytes,
            max_bytes,
        }))))
    }

    /// Appends a line. Blocks until the disk has synced it.
    ///
    /// # Errors
    /// `Unavailable` when the line cannot be written.
    pub fn append(&self, who: &str, action: &Action, result: &str) -> Result<(), PredictError> {
        let mut trail = self.0.lock();
        if trail.max_bytes <= trail.bytes {
            trail.begin_anew().map_err(unusable)?;
        }
        trail.append(who, action, result).map_err(unusable)
    }

    /// Like [`AuditLog::append`], on a blocking thread.
    ///
    /// # Cancel safety
    /// The line is written even if the future is dropped.
    ///
    /// # Errors
    /// As for [`AuditLog::append`].
    pub async fn record(
        &self,
        who: &str,
        action: Action,
        result: String,
    ) -> Result<(), PredictError> {
        let (log, who) = (self.clone(), who.to_owned());
        let written = tokio::task::spawn_blocking(move || log.append(&who, &action, &result));
        written.await.map_err(unusable)?
    }
}

impl AuditChain {
    fn append(&mut self, who: &str, action: &Action, result: &str) -> std::io::Result<()> {
        let line = Line {
            seq: self.head.seq + 1,
            time_ms: now_ms(),
            who: who.to_owned(),
            action: action.name.to_owned(),
            target: action.target.chars().take(MAX_TARGET).collect(),
            result: result.to_owned(),
            prev: self.head.hash.clone(),
        };
        let body = serde_json::to_string(&line)?;
        let hash = hex(digest(&SHA256, body.as_bytes()).as_ref());
        // The hash follows the fields that it covers, in the same object.
        let text = format!("{},\"hash\":\"{hash}\"}}\n", &body[..body.len() - 1]);
        let written = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A partial line must not remain before the next one.
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::End(0))?;
            return Err(error);
        }
        self.bytes += text.len() as u64;
        self.head = ChainHead {
            seq: line.seq,
            hash,
        };
        Ok(())
    }

    fn begin_anew(&mut self) -> std::io::Result<()> {
        let kept = kept_as(&self.path, self.head.seq);
        match std::fs::rename(&self.path, &kept) {
            // An earlier attempt failed after the rename.
            Err(error) if error.kind() == ErrorKind::NotFound && kept.exists() => {}
            renamed => renamed?,
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        self.file = options.open(&self.path)?;
        self.bytes = 0;
        sync_folder(&self.path)
    }
}

/// Syncs the directory, so that the file at `path` survives a power failure.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Verifies the chain that ends in the file at `path`, including the older files in its directory.
///
/// # Errors
/// `Conflict` with the position when the chain is broken, `Unavailable` when a file cannot be read.
pub fn verify(path: &Path) -> Result<ChainReport, PredictError> {
    let Lines {
        mut behind,
        head,
        torn,
        ..
    } = verify_file(path)?;
    let mut files = vec![path.to_path_buf()];
    while let Some((file, before)) = follow(path, &behind)? {
        files.insert(0, file);
        behind = before;
    }
    Ok(ChainReport {
        head,
        files,
        behind: (behind.seq != 0).then_some(behind),
        torn,
    })
}

/// The complete file that ends with `head`, and the chain head before its first entry. `None` if
/// the file does not exist.
fn follow(path: &Path, head: &ChainHead) -> Result<Option<(PathBuf, ChainHead)>, PredictError> {
    let kept = kept_as(path, head.seq);
    if head.seq == 0 || !kept.exists() {
        return Ok(None);
    }
    let lines = verify_file(&kept)?;
    match lines.head == *head {
        true => Ok(Some((kept, lines.behind))),
        false => Err(broken(head.seq + 1)),
    }
}

/// The path of the full file that ends with entry `seq`.
fn kept_as(path: &Path, seq: u64) -> PathBuf {
    path.with_extension(format!("until-{seq}.jsonl"))
}

/// The number of the last entry in the newest full file beside `path`.
fn newest_kept(path: &Path) -> Result<Option<u64>, PredictError> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut newest = None;
    for entry in std::fs::read_dir(folder_of(path)).map_err(unusable)? {
        let name = entry.map_err(unusable)?.file_name();
        let name = name.to_string_lossy();
        let rest = name.strip_prefix(&*stem);
        let seq = rest.and_then(|rest| rest.strip_prefix(".until-")?.strip_suffix(".jsonl"));
        newest = newest.max(seq.and_then(|seq| seq.parse().ok()));
    }
    Ok(newest)
}

fn verify_file(path: &Path) -> Result<Lines, PredictError> {
    verify_lines(BufReader::new(File::open(path).map_err(unusable)?))
}

fn verify_lines(mut lines: impl BufRead) -> Result<Lines, PredictError> {
    let mut behind: Option<ChainHead> = None;
    let mut head: Option<ChainHead> = None;
    let (mut bytes, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut lines, MAX_LINE_BYTES as u64);
        limited.read_until(b'\n', &mut line).map_err(unusable)?;
        if line.last() != Some(&b'\n') {
            if line.len() == MAX_LINE_BYTES {
                return Err(broken(head.unwrap_or_default().seq + 1));
            }
            return Ok(Lines {
                behind: behind.unwrap_or_default(),
                head: head.unwrap_or_default(),
                bytes,
                torn: !line.is_empty(),
            });
        }
        let (before, this) = verify_line(&line, head.as_ref())?;
        behind.get_or_insert(before);
        head = Some(this);
        bytes += line.len() as u64;
    }
}

/// Verifies a line against the previous one. Returns the chain heads before and after the line. The
/// first line of a file that continues an older one may have any number.
fn verify_line(
    line: &[u8],
    before: Option<&ChainHead>,
) -> Result<(ChainHead, ChainHead), PredictError> {
    let at = before.map_or(1, |head| head.seq + 1);
    let text = std::str::from_utf8(line).map_err(|_| broken(at))?;
    let (body, hash) = text
        .trim_end()
        .rsplit_once(",\"hash\":\"")
        .ok_or_else(|| broken(at))?;
    let hash = hash.strip_suffix("\"}").ok_or_else(|| broken(at))?;
    let body = format!("{body}}}");
    let parsed: Line = serde_json::from_str(&body).map_err(|_| broken(at))?;
    let follows = match before {
        Some(head) => parsed.seq == head.seq + 1 && parsed.prev == head.hash,
        None => parsed.seq != 0 && (parsed.seq == 1) == (parsed.prev == GENESIS),
    };
    if !follows || hex(digest(&SHA256, body.as_bytes()).as_ref()) != hash {
        return Err(broken(at));
    }
    let behind = ChainHead {
        seq: parsed.seq - 1,
        hash: parsed.prev,
    };
    let head = ChainHead {
        seq: parsed.seq,
        hash: hash.to_owned(),
    };
    Ok((behind, head))
}

fn broken(line: u64) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!(
            "the audit log is broken at entry {line}: another program changed it; keep the file \
             as evidence, and move it away to start a new log"
        ),
    )
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the audit log cannot be read or written; check this node's disk",
    )
    .with_source(error)
}

#[cfg(test)]
mod tests;
