//! Common setup of the tests.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use tempfile::TempDir;
use volley_artifacts::{ArtifactConfig, ArtifactRequest, Artifacts, Lease};
use volley_backend::LoadProgress;
use volley_telemetry::Metrics;
use volley_types::PredictError;
use volley_types::registry::{ModelUrl, Sha256};

/// A worker's fetcher with its own cache.
pub(crate) struct Bench {
    pub(crate) artifacts: Artifacts,
    pub(crate) metrics: Metrics,
    pub(crate) progress: LoadProgress,
    pub(crate) config: ArtifactConfig,
    folder: TempDir,
}

impl Bench {
    /// A fetcher with short timeouts, modified by `change`.
    pub(crate) fn new(change: impl FnOnce(&mut ArtifactConfig)) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let mut config = ArtifactConfig {
            cache_dir: Some(folder.path().join("cache")),
            min_free_bytes: 1,
            stall_timeout: Duration::from_secs(1),
            retries: 0,
            ..ArtifactConfig::default()
        };
        change(&mut config);
        let metrics = Metrics::new();
        Self {
            artifacts: Artifacts::new(config.clone(), metrics.clone()).unwrap(),
            metrics,
            progress: LoadProgress::default(),
            config,
            folder,
        }
    }

    /// The fetcher after a restart of its process.
    pub(crate) fn restarted(&self) -> Artifacts {
        Artifacts::new(self.config.clone(), Metrics::new()).unwrap()
    }

    /// A temporary folder that is deleted with the bench.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) async fn fetch(&self, url: &str) -> Result<Lease, PredictError> {
        let wanted = wanted(url, None);
        self.artifacts.fetch(&wanted, &self.progress).await
    }

    pub(crate) async fn fetch_hashed(
        &self,
        url: &str,
        sha256: Sha256,
    ) -> Result<Lease, PredictError> {
        let wanted = wanted(url, Some(sha256));
        self.artifacts.fetch(&wanted, &self.progress).await
    }

    /// All paths in the cache whose name has this ending.
    pub(crate) fn cached(&self, ending: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.config.cache_dir.as_ref().unwrap()).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(ending))
            .collect()
    }
}

pub(crate) fn wanted(url: &str, sha256: Option<Sha256>) -> ArtifactRequest {
    ArtifactRequest {
        url: ModelUrl::parse(url).unwrap(),
        sha256,
        identity: "m:1@0".to_owned(),
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> Sha256 {
    Sha256(digest(&SHA256, bytes).as_ref().try_into().unwrap())
}

/// Bytes that differ by position.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at * 31 % 251) as u8).collect()
}

/// A zip of these files.
pub(crate) fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A gzipped tar of these files.
pub(crate) fn tarball(files: &[(&str, &[u8])]) -> Vec<u8> {
    let gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

/// The files below a directory.
pub(crate) fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap();
                let name = name.to_string_lossy().into_owned();
                found.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    found
}
