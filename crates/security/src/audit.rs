//! The audit trail: who changed what, and what came of it. One JSON object a line, appended and
//! synced, each with the hash of the one before it: a line that is changed, removed or put in
//! breaks the chain. It holds no prompt and no key.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use volley_types::{ErrorCode, PredictError};

use crate::key::hex;
use crate::now_ms;

/// What comes before the first line.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// The file begins anew past this many bytes; the old one is kept under its first number.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The longest line that is read.
const MAX_LINE_BYTES: usize = 64 << 10;

/// What was done, to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its name, for example `model.deploy`.
    pub name: &'static str,
    /// What it was done to.
    pub target: String,
}

/// One line, its own hash aside.
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

/// The trail of one node. Cloning gives another handle to the same file.
#[derive(Clone, Debug)]
pub struct AuditLog(Arc<Mutex<Trail>>);

#[derive(Debug)]
struct Trail {
    path: PathBuf,
    file: File,
    head: Head,
    bytes: u64,
    max_bytes: u64,
}

/// The end of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of the last line; 0 when there is none.
    pub seq: u64,
    /// Its hash.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            seq: 0,
            hash: GENESIS.to_owned(),
        }
    }
}

impl AuditLog {
    /// Opens the trail at `path`, or begins one. A last line that was not written to its end is
    /// cut off: what it tells of was never acknowledged.
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
        let (head, bytes) = verify_lines(BufReader::new(&file))?;
        if bytes < file.metadata().map_err(unusable)?.len() {
            tracing::warn!("the last line of the audit trail was torn and is cut off");
            file.set_len(bytes).map_err(unusable)?;
        }
        file.seek(SeekFrom::End(0)).map_err(unusable)?;
        Ok(Self(Arc::new(Mutex::new(Trail {
            path: path.to_path_buf(),
            file,
            head,
            bytes,
            max_bytes,
        }))))
    }

    /// Adds a line and syncs it to the disk. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be written.
    pub fn append(&self, who: &str, action: &Action, result: &str) -> Result<(), PredictError> {
        let mut trail = self.0.lock();
        if trail.max_bytes <= trail.bytes {
            trail.begin_anew().map_err(unusable)?;
        }
        trail.append(who, action, result).map_err(unusable)
    }

    /// As [`AuditLog::append`], on a thread that may block.
    ///
    /// # Cancel safety
    /// The line is written even when the future is dropped.
    ///
    /// # Errors
    /// As [`AuditLog::append`].
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

impl Trail {
    fn append(&mut self, who: &str, action: &Action, result: &str) -> std::io::Result<()> {
        let line = Line {
            seq: self.head.seq + 1,
            time_ms: now_ms(),
            who: who.to_owned(),
            action: action.name.to_owned(),
            target: action.target.clone(),
            result: result.to_owned(),
            prev: self.head.hash.clone(),
        };
        let body = serde_json::to_string(&line)?;
        let hash = hex(digest(&SHA256, body.as_bytes()).as_ref());
        // The hash is put behind what it covers, inside the same object.
        let text = format!("{},\"hash\":\"{hash}\"}}\n", &body[..body.len() - 1]);
        let written = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // What may stand there of the line must not come before the next one.
            self.file.set_len(self.bytes)?;
            self.file.seek(SeekFrom::End(0))?;
            return Err(error);
        }
        self.bytes += text.len() as u64;
        self.head = Head {
            seq: line.seq,
            hash,
        };
        Ok(())
    }

    fn begin_anew(&mut self) -> std::io::Result<()> {
        let kept = self
            .path
            .with_extension(format!("until-{}.jsonl", self.head.seq));
        std::fs::rename(&self.path, kept)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        self.file = options.open(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

/// Checks a whole file and gives its end.
///
/// # Errors
/// `Conflict` when the chain is broken, and where; `Unavailable` when it cannot be read.
pub fn verify(path: &Path) -> Result<Head, PredictError> {
    let file = File::open(path).map_err(unusable)?;
    verify_lines(BufReader::new(file)).map(|(head, _)| head)
}

/// The head, and the length of all whole lines in bytes.
fn verify_lines(mut lines: impl BufRead) -> Result<(Head, u64), PredictError> {
    let mut head: Option<Head> = None;
    let (mut bytes, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut lines, MAX_LINE_BYTES as u64);
        limited.read_until(b'\n', &mut line).map_err(unusable)?;
        if line.last() != Some(&b'\n') {
            if line.len() == MAX_LINE_BYTES {
                return Err(broken(head.unwrap_or_default().seq + 1));
            }
            return Ok((head.unwrap_or_default(), bytes));
        }
        head = Some(verify_line(&line, head.as_ref())?);
        bytes += line.len() as u64;
    }
}

/// Checks a line against the one before it. A file that goes on from an older one begins with
/// any number.
fn verify_line(line: &[u8], before: Option<&Head>) -> Result<Head, PredictError> {
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
        None => parsed.seq != 1 || parsed.prev == GENESIS,
    };
    if !follows || hex(digest(&SHA256, body.as_bytes()).as_ref()) != hash {
        return Err(broken(at));
    }
    Ok(Head {
        seq: parsed.seq,
        hash: hash.to_owned(),
    })
}

fn broken(line: u64) -> PredictError {
    PredictError::new(
        ErrorCode::Conflict,
        format!(
            "the audit trail is broken at entry {line}: it was changed by something else; keep \
             the file as evidence, and move it away to begin a new one"
        ),
    )
}

fn unusable(error: impl std::error::Error + Send + Sync + 'static) -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the audit trail cannot be read or written; look at this node's disk",
    )
    .with_source(error)
}

#[cfg(test)]
mod tests;
