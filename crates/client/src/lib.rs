//! The Rust SDK for the REST interface of a Volley cluster: typed calls, streamed generations, and
//! classified errors.
//!
//! ```no_run
//! # async fn example() -> Result<(), volley_client::ClientError> {
//! use futures::TryStreamExt;
//! let client = volley_client::Client::new(&["http://127.0.0.1:8420"])?;
//! let mut chunks = client.stream("storyteller", &serde_json::json!({ "prompt": "Once" })).await?;
//! while let Some(text) = chunks.try_next().await? {
//!     eprint!("{text}");
//! }
//! # Ok(())
//! # }
//! ```

mod admin;
mod connectors;
mod error;
mod names;
mod status;
mod stream;

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

pub use crate::connectors::NewConnector;
pub use crate::error::ClientError;
pub use crate::status::{
    CoordinatorInfo, DrainInfo, GpuInfo, ModelInfo, ModelSummary, NodeInfo, PlacementInfo,
    ReplicaInfo, Status, Unplaced, WorkerInfo,
};
pub use crate::stream::TextStream;

/// Time limit of calls other than predictions.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ML: &str = "/_plugins/_ml";

/// A client of one cluster. Clones share their connections.
///
/// All futures may be dropped. The result of a dropped write is unknown: the cluster may still
/// apply it.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    bases: Vec<Url>,
    key: Option<HeaderValue>,
}

/// Fetches `url` without following redirects. Time limit: 30 s.
///
/// # Errors
/// [`ClientError`]; [`ClientError::TooLarge`] for more than `max_bytes` bytes.
pub async fn fetch(url: &str, max_bytes: usize) -> Result<Vec<u8>, ClientError> {
    let url = Url::parse(url).map_err(|_| ClientError::Url(url.to_owned()))?;
    let http = builder().build().map_err(ClientError::Setup)?;
    let sent = http.get(url).timeout(CALL_TIMEOUT).send().await;
    let answered = sent.and_then(Response::error_for_status);
    let mut response = answered.map_err(ClientError::Broken)?;
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ClientError::Broken)? {
        body.extend_from_slice(&chunk);
        if max_bytes < body.len() {
            return Err(ClientError::TooLarge);
        }
    }
    Ok(body)
}

/// The response to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct RegisterResponse {
    /// The id of the model, which is its name.
    pub model_id: String,
    /// The new version.
    pub model_version: String,
    /// The id of the task, which is complete as soon as the version exists.
    pub task_id: String,
}

impl Client {
    /// A client of the coordinators at `bases`, for example `http://127.0.0.1:8420`. A call goes to
    /// the first one that is reachable.
    ///
    /// # Errors
    /// [`ClientError::Url`] when a base is not a URL, or when there is none.
    pub fn new<S: AsRef<str>>(bases: &[S]) -> Result<Self, ClientError> {
        let parse = |base: &S| {
            let base = base.as_ref();
            let url = Url::parse(base).map_err(|_| ClientError::Url(base.to_owned()))?;
            if url.has_host() {
                Ok(url)
            } else {
                Err(ClientError::Url(base.to_owned()))
            }
        };
        let bases = bases.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if bases.is_empty() {
            return Err(ClientError::Url(String::new()));
        }
        let http = builder().build().map_err(ClientError::Setup)?;
        Ok(Self {
            http,
            bases,
            key: None,
        })
    }

    /// Trusts only the CA certificates in `pem`.
    ///
    /// # Errors
    /// [`ClientError::Setup`] when they are not usable.
    pub fn with_authority(mut self, pem: &[u8]) -> Result<Self, ClientError> {
        let authorities = reqwest::Certificate::from_pem_bundle(pem);
        let trusting = builder().tls_certs_only(authorities.map_err(ClientError::Setup)?);
        self.http = trusting.build().map_err(ClientError::Setup)?;
        Ok(self)
    }

    /// Sends an API key with every call.
    ///
    /// # Errors
    /// [`ClientError::Key`] when the key contains characters that are not allowed in a header.
    pub fn with_key(mut self, key: &str) -> Result<Self, ClientError> {
        let value = format!("Bearer {}", key.trim());
        let mut value = HeaderValue::from_str(&value).map_err(|_| ClientError::Key)?;
        value.set_sensitive(true);
        self.key = Some(value);
        Ok(self)
    }

    /// Whether the first reachable coordinator accepts requests.
    ///
    /// # Errors
    /// [`ClientError::Connect`] when no coordinator is reachable, [`ClientError::Timeout`] when it
    /// does not respond.
    pub async fn ready(&self) -> Result<bool, ClientError> {
        let response = self.health("/_volley/health/ready").await?;
        Ok(response.status().is_success())
    }

    /// The status of the cluster: nodes, roles, leader, replicas and load.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.call(Method::GET, "/_volley/status", None).await
    }

    /// Registers the next version of a model. `body` has the form of the REST interface.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn register(&self, body: &Value) -> Result<RegisterResponse, ClientError> {
        self.call(Method::POST, &format!("{ML}/models/_register"), Some(body))
            .await
    }

    /// Registers a version of the text model, which splits words and needs no files.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn register_text_model(&self, name: &str) -> Result<RegisterResponse, ClientError> {
        self.register(&json!({ "name": name, "function_name": "text" }))
            .await
    }

    /// Deploys a model (`name` or `name:version`) on `replicas` workers. Returns immediately;
    /// [`Client::model`] shows the progress.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn deploy(&self, model: &str, replicas: u32) -> Result<(), ClientError> {
        self.deploy_with(model, &json!({ "replicas": replicas }))
            .await
    }

    /// Like [`Client::deploy`], but workers may evict the model while it is idle. The next request
    /// then waits until it is reloaded.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn deploy_overcommitted(
        &self,
        model: &str,
        replicas: u32,
    ) -> Result<(), ClientError> {
        self.deploy_with(model, &json!({ "replicas": replicas, "overcommit": true }))
            .await
    }

    /// Like [`Client::deploy`], with all fields of a deployment (docs/reference/rest.md).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn deploy_with(&self, model: &str, body: &Value) -> Result<(), ClientError> {
        self.call::<Value>(Method::POST, &model_path(model, "/_deploy"), Some(body))
            .await?;
        Ok(())
    }

    /// Controls the rollout of a model. `action` is `pause`, `resume` or `rollback`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn rollout(&self, model: &str, action: &str) -> Result<Value, ClientError> {
        let path = model_path(model, &format!("/_{action}"));
        self.call::<Value>(Method::POST, &path, None).await
    }

    /// Removes a model's deployment.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn undeploy(&self, model: &str) -> Result<(), ClientError> {
        self.call::<Value>(Method::POST, &model_path(model, "/_undeploy"), None)
            .await?;
        Ok(())
    }

    /// Deletes a model with all its versions.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete(&self, model: &str) -> Result<(), ClientError> {
        self.call::<Value>(Method::DELETE, &model_path(model, ""), None)
            .await?;
        Ok(())
    }

    /// One model.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn model(&self, model: &str) -> Result<ModelInfo, ClientError> {
        self.call(Method::GET, &model_path(model, ""), None).await
    }

    /// All models.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn models(&self) -> Result<Vec<ModelInfo>, ClientError> {
        let found: status::Hits = self
            .call(Method::GET, &format!("{ML}/models/_search"), None)
            .await?;
        Ok(found.into_models())
    }

    /// Creates a connector and returns its id. `body` has the form of the REST interface.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_connector(&self, body: &Value) -> Result<String, ClientError> {
        let created = self.new_connector(body, false).await?;
        Ok(created.connector_id)
    }

    /// Returns one connector, or all of them.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn connectors(&self, id: Option<&str>) -> Result<Value, ClientError> {
        let path = id.map_or_else(|| "_search".to_owned(), segment);
        self.call(Method::GET, &format!("{ML}/connectors/{path}"), None)
            .await
    }

    /// Deletes a connector.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_connector(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("{ML}/connectors/{}", segment(id));
        self.call::<Value>(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// Creates an API key. `body` has the form of the REST interface. Only this response contains
    /// the text of the key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_key(&self, body: &Value) -> Result<Value, ClientError> {
        self.call(Method::POST, "/_volley/keys", Some(body)).await
    }

    /// All API keys, without their texts.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn keys(&self) -> Result<Value, ClientError> {
        self.call(Method::GET, "/_volley/keys", None).await
    }

    /// Creates a new secret for a key. The old one stays valid for `grace`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn rotate_key(&self, id: &str, grace: Duration) -> Result<Value, ClientError> {
        let path = format!("/_volley/keys/{}/_rotate", segment(id));
        let body = json!({ "grace_s": grace.as_secs() });
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// Replaces the limits of a key. Limits that are missing in `limits` are removed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn limit_key(&self, id: &str, limits: &Value) -> Result<Value, ClientError> {
        let path = format!("/_volley/keys/{}/_limit", segment(id));
        let body = json!({ "limits": limits });
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// Stores a sealed secret. Replaces a secret with the same name.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_secret(&self, name: &str, value: &str) -> Result<Value, ClientError> {
        let path = format!("/_volley/secrets/{}", segment(name));
        let body = json!({ "value": value });
        self.call(Method::POST, &path, Some(&body)).await
    }

    /// The names of all secrets.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn secrets(&self) -> Result<Value, ClientError> {
        self.call(Method::GET, "/_volley/secrets", None).await
    }

    /// Deletes a secret.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_secret(&self, name: &str) -> Result<(), ClientError> {
        let path = format!("/_volley/secrets/{}", segment(name));
        self.call::<Value>(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// Re-encrypts the keys of all secrets with the newest master key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn rewrap_secrets(&self) -> Result<Value, ClientError> {
        let body = json!({});
        self.call(Method::POST, "/_volley/secrets/_rewrap", Some(&body))
            .await
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn revoke_key(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/_volley/keys/{}", segment(id));
        self.call::<Value>(Method::DELETE, &path, None).await?;
        Ok(())
    }

    /// A complete prediction. `body` has the form of `_predict`. No time limit on this side.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn predict(&self, model: &str, body: &Value) -> Result<Value, ClientError> {
        self.call_within(
            None,
            Method::POST,
            &model_path(model, "/_predict"),
            Some(body),
        )
        .await
    }

    /// A streamed generation. `parameters` has `prompt` or `messages`, and options. Dropping the
    /// stream cancels the generation.
    ///
    /// # Errors
    /// [`ClientError`] until the stream starts; later errors are items of the stream.
    pub async fn stream(&self, model: &str, parameters: &Value) -> Result<TextStream, ClientError> {
        let body = json!({ "parameters": parameters });
        let path = model_path(model, "/_predict/stream");
        let response = checked(self.send(Method::POST, &path, Some(&body)).await?).await?;
        Ok(TextStream::new(response))
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, ClientError> {
        self.call_within(Some(CALL_TIMEOUT), method, path, body)
            .await
    }

    async fn call_within<T: DeserializeOwned>(
        &self,
        limit: Option<Duration>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, ClientError> {
        let work = async {
            let response = checked(self.send(method, path, body).await?).await?;
            response.json().await.map_err(ClientError::Broken)
        };
        match limit {
            Some(limit) => tokio::time::timeout(limit, work)
                .await
                .map_err(|_| ClientError::Timeout)?,
            None => work.await,
        }
    }

    /// Sends to the first coordinator that accepts a connection. Only failed connections are
    /// retried, so no request is executed twice.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response, ClientError> {
        let mut last = None;
        for base in &self.bases {
            let url = base
                .join(path)
                .map_err(|_| ClientError::Url(base.to_string()))?;
            let mut request: RequestBuilder = self.http.request(method.clone(), url);
            if let Some(key) = &self.key {
                request = request.header(AUTHORIZATION, key.clone());
            }
            if let Some(body) = body {
                request = request.json(body);
            }
            match request.send().await {
                Ok(response) => return Ok(response),
                Err(error) if error.is_connect() => last = Some((base, error)),
                Err(error) => return Err(ClientError::Broken(error)),
            }
        }
        Err(last.map_or_else(
            || ClientError::Url(String::new()),
            |(base, error)| ClientError::Connect(base.to_string(), error),
        ))
    }
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
}

async fn checked(response: Response) -> Result<Response, ClientError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let after = response
        .headers()
        .get("retry-after")
        .and_then(|value| value.to_str().ok());
    let retry_after = after
        .and_then(|text| text.parse().ok())
        .map(Duration::from_secs);
    let body = response.bytes().await.unwrap_or_default();
    Err(ClientError::from_body(status.as_u16(), retry_after, &body))
}

fn model_path(model: &str, rest: &str) -> String {
    format!("{ML}/models/{}{rest}", segment(model))
}

/// Encodes `text` as a single path segment.
fn segment(text: &str) -> String {
    let encoded: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    // The encoder writes a space as `+`, which is literal in a path.
    encoded.replace('+', "%20")
}
