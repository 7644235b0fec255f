//! Local models on ONNX Runtime: tensors in and out, text encoders, and streamed text generation
//! with a KV cache. The only crate that names `ort`.
//!
//! Reading order: [`Runtime`] (the shared library), `loader`, `layout`, `graph`
//! (what a file says of itself), `session`, `columns` and
//! `tensors` (Arrow ⇄ ONNX), `encode` (text encoders), `generate` (the decode loop), [`bare`] (the loop that the decode
//! loop is measured against).

pub mod bare;
mod columns;
mod config;
mod encode;
mod generate;
mod graph;
mod inspect;
mod layout;
mod loader;
mod overrides;
mod registered;
mod runtime;
mod session;
mod tensors;
mod triton;
mod watch;
mod wire;

pub use crate::config::{Device, OnnxConfig};
pub use crate::inspect::{Description, describe, device};
pub use crate::loader::{OnnxLoader, settle};
pub use crate::runtime::Runtime;
