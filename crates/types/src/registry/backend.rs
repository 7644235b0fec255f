//! Backends, which run models on a worker.

use std::sync::Arc;

use volley_base::nearest::nearest;

use crate::error::PredictError;
use crate::registry::short_name::short_name;

short_name!(
    /// The name of a backend: 1 to 31 lower-case letters, digits and `_`.
    ///
    /// The registry accepts any name. Each worker decides which names it can load, so a version
    /// with a new backend can share a cluster with versions that lack it.
    BackendName,
    "a backend's name"
);

impl BackendName {
    /// ONNX Runtime on this worker.
    pub const ONNX: Self = Self::from_static("onnx");
    /// A remote model through a connector.
    pub const REMOTE: Self = Self::from_static("remote");
    /// Streams its prompt back in words, without a model.
    pub const TEXT: Self = Self::from_static("text");
    /// Scripted behaviours for tests and drills.
    pub const FAKE: Self = Self::from_static("fake");
}

/// Source from which a backend loads a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// Nothing: the backend is the model.
    None,
    /// A directory on the workers, or files that they fetch.
    Files,
    /// A connector.
    Connector,
}

/// Description of a backend for the rest of Volley.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Its name, the `function_name` of a registration.
    pub name: BackendName,
    /// One phrase for help texts, without a full stop.
    pub summary: &'static str,
    /// Source of its models.
    pub source: SourceKind,
    /// Whether OpenSearch's `model_config` describes its models.
    pub takes_model_config: bool,
}

/// The backends that this binary was built with.
#[derive(Clone, Debug, Default)]
pub struct BackendList(Arc<[&'static BackendInfo]>);

impl BackendList {
    /// A list of these backends.
    #[must_use]
    pub fn new(backends: impl IntoIterator<Item = &'static BackendInfo>) -> Self {
        Self(backends.into_iter().collect())
    }

    /// Looks up a backend by name.
    ///
    /// # Errors
    /// `InvalidInput` with the nearest name and all names.
    pub fn find(&self, name: &str) -> Result<&'static BackendInfo, PredictError> {
        let found = self.0.iter().find(|backend| backend.name.as_str() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = self.0.iter().map(|backend| backend.name.as_str()).collect();
            let hint = nearest(name, names.iter().copied());
            let hint = hint.map(|near| format!("; did you mean '{near}'? This"));
            let written: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            PredictError::invalid(format!(
                "the backend '{written}' does not exist{} coordinator's version has {}",
                hint.as_deref().unwrap_or("; this"),
                names.join(", ")
            ))
        })
    }

    /// Source of the models of backend `name`; `None` for a backend of another version.
    #[must_use]
    pub fn source(&self, name: BackendName) -> Option<SourceKind> {
        let found = self.0.iter().find(|backend| backend.name == name);
        found.map(|backend| backend.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONNX: BackendInfo = BackendInfo {
        name: BackendName::ONNX,
        summary: "ONNX Runtime",
        source: SourceKind::Files,
        takes_model_config: true,
    };

    #[test]
    fn an_unknown_backend_is_rejected_with_the_nearest_and_all_names() {
        let list = BackendList::new([&ONNX]);
        assert_eq!(list.find("onnx").unwrap(), &ONNX);
        let error = list.find("onx").unwrap_err();
        assert!(error.message.contains("did you mean 'onnx'?"), "{error}");
        assert_eq!(list.source(BackendName::from_static("python")), None);
    }
}
