//! The backend for local models on ONNX Runtime: recognition, loading, inspection and versions of
//! model directories. The kinds of models are separate crates: `volley-onnx-tensors`,
//! `volley-onnx-text` and `volley-onnx-generate`.
//!
//! Reading order: [`OnnxLoader`] (the implementation of `BackendLoader`), `served` (several
//! versions in one replica), [`describe`] (inspection without loading).

mod inspect;
mod loader;
mod served;

pub use crate::inspect::{Description, describe, device};
pub use crate::loader::{OnnxLoader, resolve_device};
pub use volley_model_directory::triton::ensemble;
pub use volley_onnx_runtime::{Device, OnnxConfig, Runtime};
use volley_types::registry::{BackendInfo, BackendName, SourceKind};

/// The description of this backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::ONNX,
    summary: "runs a model directory with ONNX Runtime",
    source: SourceKind::Files,
    takes_model_config: true,
};
