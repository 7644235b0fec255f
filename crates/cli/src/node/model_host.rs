//! The process of one model, started by a worker.

use anyhow::Context;
use volley_model_host::runtime;

/// Loads the model that the worker names on standard input, and serves it until the worker closes
/// standard input.
pub(crate) async fn run() -> anyhow::Result<()> {
    let commission = runtime::commission().await;
    let commission = commission.context("'volley model-host' is for workers to run")?;
    let loader = volley_backends::host_loader(commission.settings()?, commission.turn())?;
    Ok(commission.serve(&loader).await?)
}
