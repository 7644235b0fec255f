//! The models that can be called, and their calls.

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
    /// Rows of one call; the cluster works on a large call piece by piece.
    pub rows_per_call: usize,
    /// How long one call may take.
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

/// A cluster as SQL sees it: its models as functions, as they were when it was connected.
#[derive(Debug)]
pub struct SqlCluster {
    client: FlightClient,
    config: ClusterConfig,
    functions: BTreeMap<String, FunctionModel>,
}

impl SqlCluster {
    /// Asks the node behind `client` for its models.
    ///
    /// # Errors
    /// What the node says: that it cannot be reached, or wants a key.
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

    /// The models, in the order of their names.
    pub fn functions(&self) -> impl Iterator<Item = &FunctionType> {
        self.functions.values().map(|it| &it.function)
    }

    /// What the model of this name takes and gives. `name` may have a version, which does not count
    /// here, and options, which may choose the result.
    ///
    /// # Errors
    /// A planning error that names the models that there are, or says what is wrong with an option.
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

    /// One value for each row. Dropping the future stops the work behind it.
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
