//! Connectors, as they are made.

use reqwest::Method;
use serde_json::Value;

use crate::{Client, ClientError, ML};

/// A connector that was made.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub struct NewConnector {
    /// Its id.
    pub connector_id: String,
    /// What may keep it from working: workers that lack its credential, or that nobody was there
    /// to check it.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Client {
    /// As [`Client::create_connector`]. With `test`, its server is called once, and the connector
    /// is not made where that fails.
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
