//! The process of one model, started by a worker.

use anyhow::Context;
use volley_backend_onnx::OnnxLoader;
use volley_model_host::runtime;

use crate::backends::{self, HostSettings};

/// Loads the model that the worker at the other end of standard input wants, and serves it until
/// the worker closes that.
pub(crate) async fn run() -> anyhow::Result<()> {
    let commission = runtime::commission().await;
    let commission = commission.context("'volley model-host' is for workers to run")?;
    let HostSettings { library, mut onnx } = commission.settings()?;
    // Models take the GPUs in turn; the worker counts, as this process sees one model only.
    let gpus = u64::from(onnx.gpus.max(1));
    onnx.gpu += i32::try_from(commission.turn() % gpus)?;
    onnx.gpus = 1;
    let loader = OnnxLoader::new(backends::runtime(library.as_deref()), onnx);
    Ok(commission.serve(&loader).await?)
}
