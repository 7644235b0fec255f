//! The process of one model, started by a worker.

use anyhow::Context;
use volley_model_host::runtime;

/// Reads the model's configuration from standard input, loads the model, and serves it until the
/// worker closes standard input.
pub(crate) async fn run() -> anyhow::Result<()> {
    let config = runtime::receive_config().await;
    let config = config.context("'volley model-host' is started by workers only")?;
    let loader = volley_backends::host_loader(config.settings()?, config.turn())?;
    Ok(config.serve(&loader).await?)
}
