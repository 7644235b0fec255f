//! Local models on ONNX Runtime, as a backend: what a directory is served as, and the loading,
//! inspection and versions of it. The kinds of models are crates of their own:
//! `volley-onnx-tensors`, `volley-onnx-text` and `volley-onnx-generate`.
//!
//! Reading order: [`OnnxLoader`] (the seam of backends), `served` (versions side by side),
//! [`describe`] (what was recognised, without loading).

mod inspect;
mod loader;
mod served;

pub use crate::inspect::{Description, describe, device};
pub use crate::loader::{OnnxLoader, resolve_device};
pub use volley_model_directory::triton::ensemble;
pub use volley_onnx_runtime::{Device, OnnxConfig, Runtime};
use volley_types::registry::{BackendInfo, BackendName, SourceKind};

/// This backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::ONNX,
    summary: "runs a model directory with ONNX Runtime",
    source: SourceKind::Files,
    takes_model_config: true,
};
