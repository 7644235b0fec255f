//! Administration of the cluster: membership, drains, backups and metrics.

use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{CALL_TIMEOUT, Client, ClientError, DrainInfo, checked, segment};

/// Time limit of a membership change, which waits until a new member has caught up.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of a backup: enough for the largest registry over a slow connection.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(600);

impl Client {
    /// Adds the coordinator `id` at the internal `address` (`host:port`). Returns the members.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn join(&self, id: u64, address: &str) -> Result<Value, ClientError> {
        let body = json!({ "id": id, "address": address });
        let path = "/_volley/nodes/join";
        self.call_within(Some(CHANGE_TIMEOUT), Method::POST, path, Some(&body))
            .await
    }

    /// Removes the coordinator `id`. Returns the members.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn leave(&self, id: u64) -> Result<Value, ClientError> {
        let path = format!("/_volley/nodes/{id}/leave");
        self.call_within(Some(CHANGE_TIMEOUT), Method::POST, &path, None)
            .await
    }

    /// Replaces the coordinator `old` by `id` at an internal `address`. Returns the members.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn replace(&self, old: u64, id: u64, address: &str) -> Result<Value, ClientError> {
        let body = json!({ "id": id, "address": address });
        let path = format!("/_volley/nodes/{old}/replace");
        self.call_within(Some(CHANGE_TIMEOUT), Method::POST, &path, Some(&body))
            .await
    }

    /// Transfers the leadership to the coordinator `to`, or to the most up-to-date one. Returns the
    /// new leader.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<Value, ClientError> {
        let body = to.map_or_else(|| json!({}), |to| json!({ "to": to }));
        self.call(Method::POST, "/_volley/leader/transfer", Some(&body))
            .await
    }

    /// Drains a worker, or the coordinator with this number. `kind` is `worker` or `coordinator`;
    /// it is needed only if both have this id. With `force`, replicas are unloaded even if no other
    /// worker can load them. Returns immediately; [`Status::drains`](crate::Status::drains) shows
    /// the progress.
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

    /// Returns a drained node to service.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn undrain(&self, node: &str, kind: Option<&str>) -> Result<DrainInfo, ClientError> {
        let body = kind.map_or_else(|| json!({}), |kind| json!({ "kind": kind }));
        let path = format!("/_volley/nodes/{}/undrain", segment(node));
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// Returns a backup of the registry, of at most `limit` bytes.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::TooLarge`] when the backup is larger than `limit`.
    pub async fn backup(&self, limit: usize) -> Result<Vec<u8>, ClientError> {
        let work = async {
            let mut response =
                checked(self.send(Method::GET, "/_volley/backup", None).await?).await?;
            let mut backup = Vec::new();
            while let Some(piece) = response.chunk().await.map_err(ClientError::Broken)? {
                if limit < backup.len() + piece.len() {
                    return Err(ClientError::TooLarge);
                }
                backup.extend_from_slice(&piece);
            }
            Ok(backup)
        };
        tokio::time::timeout(BACKUP_TIMEOUT, work)
            .await
            .map_err(|_| ClientError::Timeout)?
    }

    /// The clock of the first reachable coordinator: the header `Date` of a response, in whole
    /// seconds. `None` if the header is missing.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn date(&self) -> Result<Option<String>, ClientError> {
        let response = self.health("/_volley/health/live").await?;
        let date = response.headers().get("date");
        Ok(date.and_then(|date| date.to_str().ok()).map(str::to_owned))
    }

    /// The metrics of the first reachable coordinator in the OpenMetrics text format.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let work = async {
            let response = checked(self.send(Method::GET, "/metrics", None).await?).await?;
            response.text().await.map_err(ClientError::Broken)
        };
        tokio::time::timeout(CALL_TIMEOUT, work)
            .await
            .map_err(|_| ClientError::Timeout)?
    }

    /// The head of a response, whatever its status.
    pub(crate) async fn health(&self, path: &str) -> Result<Response, ClientError> {
        tokio::time::timeout(CALL_TIMEOUT, self.send(Method::GET, path, None))
            .await
            .map_err(|_| ClientError::Timeout)?
    }
}
