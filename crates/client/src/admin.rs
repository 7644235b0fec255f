//! What changes the cluster itself.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{Client, ClientError, DrainInfo, checked, segment};

/// A membership change waits until a newcomer has caught up.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// A backup of the largest registry, over a slow line.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(600);

impl Client {
    /// Adds the coordinator `id` at an internal address.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn join(&self, id: u64, address: &str) -> Result<Value, ClientError> {
        let body = json!({ "id": id, "address": address });
        let path = "/_volley/nodes/join";
        self.call_within(Some(CHANGE_TIMEOUT), Method::POST, path, Some(&body))
            .await
    }

    /// Removes the coordinator `id`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn leave(&self, id: u64) -> Result<Value, ClientError> {
        let path = format!("/_volley/nodes/{id}/leave");
        self.call_within(Some(CHANGE_TIMEOUT), Method::POST, &path, None)
            .await
    }

    /// Puts the coordinator `id`, at an internal address, in the place of `old`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn replace(&self, old: u64, id: u64, address: &str) -> Result<Value, ClientError> {
        let body = json!({ "id": id, "address": address });
        let path = format!("/_volley/nodes/{old}/replace");
        self.call_within(Some(CHANGE_TIMEOUT), Method::POST, &path, Some(&body))
            .await
    }

    /// Makes the coordinator `to` the leader, or whoever is furthest; gives who leads now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<Value, ClientError> {
        let body = to.map_or_else(|| json!({}), |to| json!({ "to": to }));
        self.call(Method::POST, "/_volley/leader/transfer", Some(&body))
            .await
    }

    /// Takes a worker, or the coordinator of that number, out of work; `kind` is `worker` or
    /// `coordinator`, where both have the id. With `force` a worker's replicas go even where no
    /// other worker can take them. Returns at once: [`Status::drains`](crate::Status::drains) tells how far it is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn drain(
        &self,
        node: &str,
        kind: Option<&str>,
        force: bool,
    ) -> Result<DrainInfo, ClientError> {
        let mut body = json!({ "force": force });
        if let Some(kind) = kind {
            body["kind"] = kind.into();
        }
        let path = format!("/_volley/nodes/{}/drain", segment(node));
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// Puts a node to work again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn undrain(&self, node: &str, kind: Option<&str>) -> Result<DrainInfo, ClientError> {
        let body = kind.map_or_else(|| json!({}), |kind| json!({ "kind": kind }));
        let path = format!("/_volley/nodes/{}/undrain", segment(node));
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// The registry as a backup, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Incomplete`] when it is larger than that.
    pub async fn backup(&self, limit: usize) -> Result<Vec<u8>, ClientError> {
        let work = async {
            let mut response =
                checked(self.send(Method::GET, "/_volley/backup", None).await?).await?;
            let mut backup = Vec::new();
            while let Some(piece) = response.chunk().await.map_err(ClientError::Broken)? {
                if limit < backup.len() + piece.len() {
                    return Err(ClientError::Incomplete);
                }
                backup.extend_from_slice(&piece);
            }
            Ok(backup)
        };
        tokio::time::timeout(BACKUP_TIMEOUT, work)
            .await
            .map_err(|_| ClientError::Timeout)?
    }

    /// The clock of the first coordinator that can be reached: the `Date` of an answer, to the
    /// second.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn date(&self) -> Result<Option<String>, ClientError> {
        let response = self.send(Method::GET, "/_volley/health/live", None).await?;
        let date = response.headers().get("date");
        Ok(date.and_then(|date| date.to_str().ok()).map(str::to_owned))
    }

    /// The metrics of the first coordinator that can be reached, as OpenMetrics text.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let work = async {
            let response = checked(self.send(Method::GET, "/metrics", None).await?).await?;
            response.text().await.map_err(ClientError::Broken)
        };
        tokio::time::timeout(crate::CALL_TIMEOUT, work)
            .await
            .map_err(|_| ClientError::Timeout)?
    }
}
