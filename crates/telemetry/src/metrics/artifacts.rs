//! Metrics of fetched models.

use volley_types::ErrorCode;

use super::{CodeLabel, Families, Metrics};

impl Metrics {
    /// Counts bytes that were received while fetching models.
    pub fn fetched_bytes(&self, bytes: u64) {
        self.0.artifact_bytes.inc_by(bytes);
    }

    /// Counts a completed fetch of a model by its error; `None` for success.
    pub fn fetched(&self, error: Option<ErrorCode>) {
        let code = error.map_or("ok", ErrorCode::as_str);
        let label = CodeLabel { code };
        self.0.artifact_fetches.get_or_create(&label).inc();
    }

    /// Sets the size of this worker's cache of fetched models, in bytes.
    pub fn set_artifact_cache_bytes(&self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.0.artifact_cache_bytes.set(bytes);
    }
}

impl Families {
    pub(super) fn register_artifacts(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "artifact_bytes",
            "Bytes of models that were fetched from URLs",
            self.artifact_bytes.clone(),
        );
        registry.register(
            "artifact_fetches",
            "Fetches of models that ended. A model in the cache is not fetched",
            self.artifact_fetches.clone(),
        );
        registry.register(
            "artifact_cache_bytes",
            "Bytes of fetched models in the cache at the last scan",
            self.artifact_cache_bytes.clone(),
        );
    }
}
