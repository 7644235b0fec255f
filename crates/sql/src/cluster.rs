//! The models of a cluster as SQL functions, and their calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::ArrayRef;
use datafusion::error::{DataFusionError, Result};
use volley_flight::client::{FlightClient, FunctionModel, FunctionType};
use volley_types::PredictError;

/// Limits of a [`SqlCluster`].
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Maximum number of rows in one call. The cluster processes a larger call in parts.
    pub rows_per_call: usize,
    /// Time limit of one call.
    pub call_timeout: Duration,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            rows_per_call: 4096,
            call_timeout: Duration::from_secs(600),
        }
    }
}

/// The models of a cluster as SQL functions, as of the time of connecting.
#[derive(Debug)]
pub struct SqlCluster {
    client: FlightClient,
    config: ClusterConfig,
    functions: BTreeMap<String, FunctionModel>,
}

impl SqlCluster {
    /// Reads the list of models from the node behind `client`. Cancel safe.
    ///
    /// # Errors
    /// The error of the node, for example `Unavailable` when it cannot be reached or
    /// `Unauthenticated` without a key.
    pub async fn connect(
        client: FlightClient,
        config: ClusterConfig,
    ) -> std::result::Result<Arc<Self>, PredictError> {
        let functions = client.function_models().await?.into_iter();
        let named = functions.map(|it| (it.function.name.clone(), it));
        Ok(Arc::new(Self {
            client,
            config,
            functions: named.collect(),
        }))
    }

    /// The functions, ordered by model name.
    pub fn functions(&self) -> impl Iterator<Item = &FunctionType> {
        self.functions.values().map(|it| &it.function)
    }

    /// The arguments and the result of a model. `name` may contain a version, which has no effect
    /// here, and options, which may select the result.
    ///
    /// # Errors
    /// A planning error for an unknown model, with the known models, or for an invalid option.
    pub(crate) fn function(&self, name: &str) -> Result<FunctionType> {
        let model = name.split(['?', ':']).next().unwrap_or(name);
        let found = self.functions.get(model).ok_or_else(|| {
            let models: Vec<_> = self.functions.keys().map(String::as_str).collect();
            DataFusionError::Plan(format!(
                "SQL cannot call a model '{model}'; the available models are: {}",
                models.join(", ")
            ))
        })?;
        if !name.contains('?') {
            return Ok(found.function.clone());
        }
        let named = found.named(name);
        named.map_err(|error| DataFusionError::Plan(error.message))
    }

    pub(crate) fn rows_per_call(&self) -> usize {
        self.config.rows_per_call.max(1)
    }

    /// Calls a model and returns one value for each row. Dropping the future cancels the call.
    pub(crate) async fn call(
        &self,
        name: &str,
        arguments: Vec<ArrayRef>,
        rows: usize,
    ) -> Result<ArrayRef> {
        let timeout = self.config.call_timeout;
        let values = self.client.call(name, arguments, rows, timeout).await;
        values.map_err(|error| {
            tracing::debug!(model = name, error = %error.chain(), "SQL model call failed");
            DataFusionError::External(Box::new(error))
        })
    }
}
