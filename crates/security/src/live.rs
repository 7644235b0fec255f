//! Values built from files and reloaded when the files change, so that certificates can be renewed
//! under load.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use volley_types::{ErrorCode, PredictError};

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: usize = 1 << 20;

type Build<T> = dyn Fn(&[Vec<u8>]) -> Result<T, PredictError> + Send + Sync;

/// A value that is built from files and reloaded when they change. Invalid files keep the previous
/// value.
pub struct Live<T> {
    files: Vec<PathBuf>,
    build: Box<Build<T>>,
    current: ArcSwap<T>,
    /// Hash of the files of `current`.
    seen: Mutex<Vec<u8>>,
}

impl<T: Send + Sync + 'static> Live<T> {
    /// Reads `files` and builds a `T` from their contents.
    ///
    /// # Errors
    /// `InvalidInput` when a file cannot be read, `TooLarge` when a file exceeds 1 MiB, and the
    /// errors of `build`.
    pub fn load(
        files: Vec<PathBuf>,
        build: impl Fn(&[Vec<u8>]) -> Result<T, PredictError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, PredictError> {
        let contents = read(&files)?;
        let current = ArcSwap::from_pointee(build(&contents)?);
        Ok(Arc::new(Self {
            files,
            build: Box::new(build),
            current,
            seen: Mutex::new(hash(&contents)),
        }))
    }

    /// The latest valid value.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Reads the files and uses their new contents if they are valid. Blocks on disk reads. Returns
    /// whether the files have changed.
    ///
    /// # Errors
    /// As for [`Live::load`]; the previous value stays in use.
    pub fn refresh(&self) -> Result<bool, PredictError> {
        let contents = read(&self.files)?;
        let found = hash(&contents);
        let mut seen = self.seen.lock();
        if *seen == found {
            return Ok(false);
        }
        self.current.store(Arc::new((self.build)(&contents)?));
        *seen = found;
        Ok(true)
    }

    /// Calls [`Live::refresh`] every `interval`, forever, and logs the results. `what` names the
    /// files in the log. Cancel safe.
    pub async fn keep_fresh(self: Arc<Self>, what: &'static str, interval: Duration) {
        let mut tick = tokio::time::interval(interval);
        let mut complained = false;
        loop {
            tick.tick().await;
            let live = self.clone();
            let refreshed = tokio::task::spawn_blocking(move || live.refresh()).await;
            match refreshed {
                Ok(Ok(true)) => tracing::info!(what, "security files reloaded"),
                Ok(Ok(false)) => {}
                // A renewal often has several writes, so an incomplete state is logged only once.
                Ok(Err(_)) if complained => continue,
                Ok(Err(error)) => {
                    complained = true;
                    tracing::error!(
                        what,
                        error = error.chain(),
                        "security files not reloaded; the previous ones stay in use"
                    );
                    continue;
                }
                Err(error) => tracing::error!(what, error = %error, "security files not checked"),
            }
            complained = false;
        }
    }
}

impl<T> std::fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, PredictError> {
    let contents = files.iter().map(|path| {
        let unreadable = |error: std::io::Error| {
            PredictError::invalid("a certificate, key or authority file cannot be read")
                .with_source(format!("{}: {error}", path.display()))
        };
        let content = read_bounded(path).map_err(unreadable)?;
        if MAX_FILE_BYTES < content.len() {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                "a certificate, key or authority file is over 1 MiB",
            ));
        }
        Ok(content)
    });
    contents.collect()
}

/// The content of a file. At most one byte more than the limit is read.
fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut file = File::open(path)?.take(MAX_FILE_BYTES as u64 + 1);
    file.read_to_end(&mut content)?;
    Ok(content)
}

fn hash(contents: &[Vec<u8>]) -> Vec<u8> {
    let all = contents.iter().flat_map(|content| {
        let hash = digest(&SHA256, content);
        hash.as_ref().to_vec()
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_limit_is_not_read_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        // A sparse file of 1 TiB does not fit into memory.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let refused = Live::load(vec![path.clone()], |_| Ok(())).unwrap_err();
        assert_eq!(refused.code, ErrorCode::TooLarge);
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let live = Live::load(vec![path], |contents| Ok(contents[0].len())).unwrap();
        assert_eq!(*live.current(), MAX_FILE_BYTES);
    }
}
