//! Fetches models from URLs into the cache directory of this worker.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;
use volley_backend::LoadProgress;
use volley_telemetry::Metrics;
use volley_types::registry::{ModelUrl, Sha256};
use volley_types::{ErrorCode, PredictError};

use crate::ArtifactConfig;
use crate::cache::{Cache, CacheLimits, Key, Lock, Record};
use crate::cancel::Cancel;
use crate::failure;
use crate::fetch::{self, FileRequest, Work};
use crate::hash::sha256;
use crate::plan::{self, ARCHIVE_FILE, Plan};
use crate::progress::Progress;
use crate::store;
use crate::unpack::{self, Archive};

/// Interval of checks for a model that another fetch writes.
const LOOK: Duration = Duration::from_millis(100);

/// A request for a model.
#[derive(Clone, Debug)]
pub struct ArtifactRequest {
    /// URL of the model.
    pub url: ModelUrl,
    /// SHA-256 of the archive or graph, or of the manifest of a directory.
    pub sha256: Option<Sha256>,
    /// Identity of the model version. Models with a hash are shared between all requests for the
    /// same URL and hash. A model without a hash may change behind its URL, so it is fetched once
    /// for each identity.
    pub identity: String,
}

/// A lease of a fetched model. Its directory is not changed or evicted until the lease is dropped.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    _lock: Lock,
}

impl Lease {
    /// The model's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Fetches and caches models. Clones share their state.
#[derive(Clone)]
pub struct Artifacts(Arc<Inner>);

struct Inner {
    config: ArtifactConfig,
    files: Semaphore,
    metrics: Metrics,
    /// Opened by the first fetch, because most workers never fetch a model.
    cache: parking_lot::Mutex<Option<Cache>>,
}

impl Artifacts {
    /// Creates a fetcher that records its fetches in `metrics`. Does not access the disk.
    ///
    /// # Errors
    /// As [`ArtifactConfig::check`].
    pub fn new(config: ArtifactConfig, metrics: Metrics) -> Result<Self, PredictError> {
        config.check()?;
        Ok(Self(Arc::new(Inner {
            files: Semaphore::new(config.concurrent_files.max(1)),
            config,
            metrics,
            cache: parking_lot::Mutex::new(None),
        })))
    }

    /// Returns the directory of a model, and fetches the model if it is not cached. Concurrent
    /// calls for one model cause one fetch, even from several processes that share the cache.
    ///
    /// # Cancel safety
    /// Dropping the future stops the fetch. Received bytes are kept, and the next fetch resumes
    /// from them.
    ///
    /// # Errors
    /// - `PermissionDenied` when the configuration does not allow the URL, or the store rejects the
    ///   worker's credentials
    /// - `NotFound` when the model does not exist
    /// - `InvalidInput` for a wrong hash or a malformed archive
    /// - `TooLarge` when the model exceeds a configured size
    /// - `Unavailable` when the disk or the cache is full
    /// - `UpstreamFailed` when the store is unreachable or fails; `UpstreamIncomplete` when it ends
    ///   a file early
    /// - `DeadlineExceeded` after `timeout`
    pub async fn fetch(
        &self,
        wanted: &ArtifactRequest,
        progress: &LoadProgress,
    ) -> Result<Lease, PredictError> {
        let Inner {
            config, metrics, ..
        } = &*self.0;
        store::check_allowed(&wanted.url, config)?;
        let cache = self.cache()?;
        let got = self.get(&cache, wanted, progress);
        let got = tokio::time::timeout(config.timeout, got).await;
        let got = got.unwrap_or_else(|_| {
            Err(PredictError::new(
                ErrorCode::DeadlineExceeded,
                "the model was not fetched within artifacts.timeout; the next attempt resumes \
                 from the bytes received so far",
            ))
        });
        if let Err(error) = &got {
            metrics.fetched(Some(error.code));
        }
        got
    }

    fn cache(&self) -> Result<Cache, PredictError> {
        let mut cache = self.0.cache.lock();
        if let Some(cache) = &*cache {
            return Ok(cache.clone());
        }
        let config = &self.0.config;
        let root = config.cache_dir.clone().ok_or_else(|| {
            PredictError::invalid(
                "this worker has no directory to keep models in: set artifacts.cache_dir",
            )
        })?;
        let limits = CacheLimits {
            cache_bytes: config.cache_bytes,
            min_free_bytes: config.min_free_bytes,
        };
        let opened = Cache::open(root, limits, self.0.metrics.clone())?;
        *cache = Some(opened.clone());
        Ok(opened)
    }

    async fn get(
        &self,
        cache: &Cache,
        wanted: &ArtifactRequest,
        progress: &LoadProgress,
    ) -> Result<Lease, PredictError> {
        let key = key(wanted);
        let path = cache.entry(&key);
        loop {
            if path.exists() {
                if let Some(lock) = cache.try_read(&key)?
                    && path.exists()
                {
                    return Ok(Lease { path, _lock: lock });
                }
            } else if let Some(lock) = cache.try_write(&key)? {
                // Another fetch may have written it between the check and the lock.
                if !path.exists() {
                    let job = Job {
                        cache: cache.clone(),
                        key: key.clone(),
                        lock: Arc::new(lock),
                        stop: Cancel::default(),
                        max_bytes: self.0.config.max_model_bytes,
                    };
                    self.bring(job, wanted, progress).await?;
                }
                continue;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Fetches a model. The job holds the write lock.
    async fn bring(
        &self,
        job: Job,
        wanted: &ArtifactRequest,
        progress: &LoadProgress,
    ) -> Result<(), PredictError> {
        let began = Instant::now();
        let _stops = job.stop.on_drop();
        let (url, config) = (wanted.url.clone(), self.0.config.clone());
        let place = job.run(move |_| store::open(&url, &config)).await?;
        let plan = plan::make(&place, &wanted.url, wanted.sha256).await?;
        let bytes = plan.bytes();
        self.check_size(bytes)?;
        let _room = job.reserve(bytes).await?;
        let (metrics, name) = (self.0.metrics.clone(), wanted.url.as_str());
        tracing::info!(
            model = name,
            bytes,
            files = plan.files.len(),
            "model download started"
        );
        let progress = Progress::begin(name, bytes, progress.clone(), metrics);
        let partial = job.cache.partial(&job.key);
        let work = Work {
            store: place.store.clone(),
            files: partial.join("files"),
            pieces: partial.join("pieces"),
            progress: Arc::new(progress),
            lock: job.lock.clone(),
            stop: job.stop.clone(),
        };
        fs::create_dir_all(&work.files).map_err(failure::of_disk)?;
        fs::create_dir_all(&work.pieces).map_err(failure::of_disk)?;
        if let Err(error) = self.files(&work, &plan).await {
            return Err(job.give_up(error));
        }
        if let Some(archive) = plan.archive {
            job.unpack(archive, bytes).await?;
        }
        job.commit(wanted, plan.archive.is_some()).await?;
        self.0.metrics.fetched(None);
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(model = name, bytes, took_ms, "model download finished");
        Ok(())
    }

    fn check_size(&self, bytes: u64) -> Result<(), PredictError> {
        let most = self.0.config.max_model_bytes;
        if bytes > most {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("the model has {bytes} bytes, artifacts.max_model_size is {most}"),
            ));
        }
        Ok(())
    }

    async fn files(&self, work: &Work, plan: &Plan) -> Result<(), PredictError> {
        let fetches: Vec<_> = plan
            .files
            .iter()
            .map(|wanted| self.file(work, wanted).boxed())
            .collect();
        futures::stream::iter(fetches)
            .buffer_unordered(self.0.config.concurrent_files.max(1))
            .try_collect()
            .await
    }

    async fn file(&self, work: &Work, wanted: &FileRequest) -> Result<(), PredictError> {
        let permit = self.0.files.acquire().await;
        let closed = |error| PredictError::internal("the limit of concurrent files", error);
        let _permit = permit.map_err(closed)?;
        fetch::file(work, wanted).await
    }
}

/// The parts of a fetch that run on blocking threads.
#[derive(Clone)]
struct Job {
    cache: Cache,
    key: Key,
    lock: Arc<Lock>,
    stop: Cancel,
    max_bytes: u64,
}

impl Job {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, PredictError> + Send + 'static,
    ) -> Result<T, PredictError> {
        // The clone keeps the write lock until the work ends, even if the load is dropped.
        let job = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&job)).await;
        done.map_err(failure::of_task)?
    }

    async fn reserve(&self, bytes: u64) -> Result<crate::cache::Reservation, PredictError> {
        self.run(move |job| job.cache.reserve(&job.key, bytes))
            .await
    }

    /// Deletes the partial download if a retry would fail in the same way.
    fn give_up(&self, error: PredictError) -> PredictError {
        if matches!(error.code, ErrorCode::InvalidInput | ErrorCode::TooLarge) {
            let partial = self.cache.partial(&self.key);
            if let Err(left) = fs::remove_dir_all(partial) {
                tracing::warn!(error = %left, "partial model download not deleted");
            }
        }
        error
    }

    async fn unpack(&self, archive: Archive, bytes: u64) -> Result<(), PredictError> {
        let unpack = move |job: &Self| {
            let partial = job.cache.partial(&job.key);
            let file = partial.join("files").join(ARCHIVE_FILE);
            let inside = unpack::measure(archive, &file, job.max_bytes, &job.stop)?;
            let _room = job.cache.reserve(&job.key, bytes.saturating_add(inside))?;
            let into = partial.join("unpacked");
            match fs::remove_dir_all(&into) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failure::of_disk(error));
                }
                Ok(()) | Err(_) => {}
            }
            unpack::unpack(archive, &file, &into, job.max_bytes, &job.cache, &job.stop)
        };
        self.run(move |job| unpack(job).map_err(|error| job.give_up(error)))
            .await
    }

    async fn commit(&self, wanted: &ArtifactRequest, is_archive: bool) -> Result<(), PredictError> {
        let (url, sha256) = (wanted.url.to_string(), wanted.sha256);
        let commit = move |job: &Self| {
            let partial = job.cache.partial(&job.key);
            let from = if is_archive {
                unpack::model_root(&partial.join("unpacked")).map_err(failure::of_disk)?
            } else {
                partial.join("files")
            };
            let record = Record {
                url,
                sha256: sha256.map(|hash| hash.to_string()),
                bytes: crate::cache::tree_bytes(&from).map_err(failure::of_disk)?,
            };
            let commit = job.cache.commit(&job.key, &from, &record);
            commit.map_err(failure::of_disk)
        };
        self.run(commit).await
    }
}

/// The cache key. The hash is part of it, so a different hash means a different model.
fn key(wanted: &ArtifactRequest) -> Key {
    let what = match wanted.sha256 {
        Some(hash) => format!("sha256\n{hash}"),
        None => format!("identity\n{}", wanted.identity),
    };
    let text = format!("{}\n{what}", wanted.url);
    Key(sha256(text.as_bytes()).to_string())
}
