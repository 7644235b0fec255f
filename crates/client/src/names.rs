//! Names that stand for models: aliases and pipelines.

use reqwest::Method;
use serde_json::Value;

use crate::{Client, ClientError, segment};

impl Client {
    /// All aliases, or the one of this name.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn aliases(&self, name: Option<&str>) -> Result<Value, ClientError> {
        self.call(Method::GET, &path("aliases", name, None), None)
            .await
    }

    /// Creates or switches an alias in one write; `body` as the REST interface takes it. With a
    /// `revision`, only if the alias is still at that one (0: if there is none).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_alias(
        &self,
        name: &str,
        body: &Value,
        revision: Option<u64>,
    ) -> Result<Value, ClientError> {
        let path = path("aliases", Some(name), revision);
        self.call(Method::PUT, &path, Some(body)).await
    }

    /// Deletes an alias; with a `revision`, only if it is still at that one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_alias(&self, name: &str, revision: Option<u64>) -> Result<(), ClientError> {
        let path = path("aliases", Some(name), revision);
        self.call::<Value>(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// All pipelines, or the one of this name.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn pipelines(&self, name: Option<&str>) -> Result<Value, ClientError> {
        self.call(Method::GET, &path("pipelines", name, None), None)
            .await
    }

    /// Creates or replaces a pipeline; `body` as the REST interface takes it. With a `revision`,
    /// only if the pipeline is still at that one (0: if there is none).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_pipeline(
        &self,
        name: &str,
        body: &Value,
        revision: Option<u64>,
    ) -> Result<Value, ClientError> {
        let path = path("pipelines", Some(name), revision);
        self.call(Method::PUT, &path, Some(body)).await
    }

    /// Deletes a pipeline; with a `revision`, only if it is still at that one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_pipeline(
        &self,
        name: &str,
        revision: Option<u64>,
    ) -> Result<(), ClientError> {
        let path = path("pipelines", Some(name), revision);
        self.call::<Value>(Method::DELETE, &path, None).await?;
        Ok(())
    }
}

/// The path of all things of a kind, or of one; for a write at a revision.
fn path(kind: &str, name: Option<&str>, revision: Option<u64>) -> String {
    let name = name.map_or_else(String::new, |name| format!("/{}", segment(name)));
    let query = revision.map_or_else(String::new, |at| format!("?revision={at}"));
    format!("/_volley/{kind}{name}{query}")
}
