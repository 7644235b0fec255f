//! Names that resolve to models: aliases and pipelines.

use reqwest::Method;
use serde_json::Value;

use crate::{Client, ClientError, segment};

impl Client {
    /// All aliases, or the alias `name`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn aliases(&self, name: Option<&str>) -> Result<Value, ClientError> {
        self.call(Method::GET, &path("aliases", name, None), None)
            .await
    }

    /// Creates or replaces an alias atomically. `body` has the form of the REST interface. With
    /// `revision`, only if the alias still has that revision (0: only if it does not exist).
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

    /// Deletes an alias. With `revision`, only if it still has that revision.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_alias(&self, name: &str, revision: Option<u64>) -> Result<(), ClientError> {
        let path = path("aliases", Some(name), revision);
        self.call::<Value>(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// All pipelines, or the pipeline `name`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn pipelines(&self, name: Option<&str>) -> Result<Value, ClientError> {
        self.call(Method::GET, &path("pipelines", name, None), None)
            .await
    }

    /// Creates or replaces a pipeline. `body` has the form of the REST interface. With `revision`,
    /// only if the pipeline still has that revision (0: only if it does not exist).
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

    /// Deletes a pipeline. With `revision`, only if it still has that revision.
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

/// The path of all objects of a kind or of one object, with the expected revision of a write.
fn path(kind: &str, name: Option<&str>, revision: Option<u64>) -> String {
    let name = name.map_or_else(String::new, |name| format!("/{}", segment(name)));
    let query = revision.map_or_else(String::new, |at| format!("?revision={at}"));
    format!("/_volley/{kind}{name}{query}")
}
