//! Creation of connectors.

use reqwest::Method;
use serde_json::Value;

use crate::{Client, ClientError, ML};

/// A created connector.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct NewConnector {
    /// The id of the connector.
    pub connector_id: String,
    /// Problems that may prevent it from working: workers without its credential, or no worker to
    /// check it.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Client {
    /// Like [`Client::create_connector`], with warnings. With `test`, its server is called once,
    /// and the connector is not created if the call fails.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn new_connector(
        &self,
        body: &Value,
        test: bool,
    ) -> Result<NewConnector, ClientError> {
        let path = format!("{ML}/connectors/_create?test={test}");
        self.call(Method::POST, &path, Some(body)).await
    }
}
