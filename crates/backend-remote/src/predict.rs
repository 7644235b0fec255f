//! One request to a remote model.

use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::Response;
use url::Url;
use volley_backend::Backend;
use volley_backend::items::{self, Item};
use volley_types::registry::{ConnectorSpec, ProviderKind};
use volley_types::{
    ChunkStream, Input, ModelName, ModelRef, Parameters, Predict, PredictError, PredictRequest,
    Signature,
};

use crate::answer::{self, Answer};
use crate::credential::Secret;
use crate::{Clients, RemoteConfig, provider, upstream};

/// The largest error body, and the largest answer that is not streamed, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Pieces of a body are joined up to this size.
const MAX_GATHERED_BYTES: usize = 64 << 10;
const MAX_WHOLE_BYTES: usize = 4 << 20;
/// How long the body of an error may take.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// The way to a remote model.
pub(crate) struct RemoteModel {
    model: ModelName,
    connector: Arc<ConnectorSpec>,
    /// The model version's defaults over the connector's.
    defaults: Parameters,
    url: Url,
    clients: Arc<Clients>,
    config: RemoteConfig,
}

impl RemoteModel {
    pub(crate) fn new(
        model: ModelName,
        connector: ConnectorSpec,
        defaults: Parameters,
        url: Url,
        clients: Arc<Clients>,
        config: RemoteConfig,
    ) -> Self {
        let defaults = defaults.or_defaults(&connector.parameters);
        Self {
            model,
            connector: Arc::new(connector),
            defaults,
            url,
            clients,
            config,
        }
    }
}

impl Backend for RemoteModel {
    fn capacity(&self) -> usize {
        self.config.max_streams.max(1)
    }
}

#[async_trait]
impl Predict for RemoteModel {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let call = Call {
            connector: self.connector.clone(),
            parameters: request.parameters.or_defaults(&self.defaults),
            client: self.clients.next().clone(),
            url: self.url.clone(),
            config: self.config.clone(),
            traceparent: request.trace.to_string(),
        };
        let (provider, input) = (call.connector.provider, request.input);
        let batches = try_stream! {
            let item = only_item(input).await?;
            let secret = match &call.connector.credential {
                Some(reference) => Some(Secret::read(reference).await?),
                None => None,
            };
            let redact = |text: &str| redacted(text, secret.as_ref());
            let response = call.send(&item, secret.as_ref()).await?;
            if is_json(response.headers()) {
                let body = bounded(response, MAX_WHOLE_BYTES, &call.config).await?;
                yield answer::whole(provider, &body, redact)?;
                return;
            }
            let mut pieces = response.bytes_stream();
            let mut answer = Answer::new(provider);
            let mut limit = call.config.first_byte_timeout;
            let mut held = None;
            while !answer.has_ended() {
                let piece = match held.take() {
                    Some(held) => held,
                    None => within(limit, pieces.next()).await?,
                };
                let piece = piece.map(|piece| piece.map(|first| gather(first, &mut pieces, &mut held)));
                limit = call.config.stall_timeout;
                let read = match piece {
                    Some(Ok(piece)) => answer.read(Some(piece), redact),
                    Some(Err(failure)) => answer.break_off(upstream::broken(failure)),
                    None => answer.read(None, redact),
                };
                // What was read before an error goes out before it.
                if let Some(rows) = read {
                    yield rows;
                }
                if let Some(error) = answer.take_failure() {
                    Err(error)?;
                }
            }
        };
        Ok(ChunkStream::new(Signature::generation().output, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature::generation())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

type Piece = reqwest::Result<Bytes>;

/// Joins the pieces that are there already to `first`, so that they become one batch of rows:
/// what a batch costs, it costs once. What is there and is no piece of a body is `held`.
fn gather(
    first: Bytes,
    pieces: &mut (impl Stream<Item = Piece> + Unpin),
    held: &mut Option<Option<Piece>>,
) -> Bytes {
    let mut joined = None;
    let length = |joined: &Option<BytesMut>| joined.as_ref().map_or(first.len(), BytesMut::len);
    while length(&joined) < MAX_GATHERED_BYTES {
        match pieces.next().now_or_never() {
            Some(Some(Ok(next))) => joined
                .get_or_insert_with(|| BytesMut::from(first.as_ref()))
                .extend_from_slice(&next),
            Some(other) => {
                *held = Some(other);
                break;
            }
            None => break,
        }
    }
    joined.map_or(first, BytesMut::freeze)
}

/// One call, with all that it needs.
struct Call {
    connector: Arc<ConnectorSpec>,
    parameters: Parameters,
    client: reqwest::Client,
    url: Url,
    config: RemoteConfig,
    traceparent: String,
}

impl Call {
    /// Sends the request and waits for the head of a good answer.
    async fn send(&self, item: &Item, secret: Option<&Secret>) -> Result<Response, PredictError> {
        let body = provider::body(&self.connector, item, &self.parameters)?;
        let mut headers = headers(&self.connector, secret)?;
        if let Ok(value) = HeaderValue::from_str(&self.traceparent) {
            headers.insert("traceparent", value);
        }
        let url = self.url.clone();
        let call = self.client.post(url).headers(headers).json(&body).send();
        let response = within(self.config.first_byte_timeout, call)
            .await?
            .map_err(upstream::call)?;
        tracing::debug!(
            connector = %self.connector.id,
            status = response.status().as_u16(),
            "the remote model's server answered"
        );
        checked(response, secret, &self.config).await
    }
}

async fn only_item(input: Input) -> Result<Item, PredictError> {
    let mut items = items::collect(input).await?;
    match (items.pop(), items.is_empty()) {
        (Some(item), true) => Ok(item),
        _ => Err(PredictError::invalid(
            "a remote model takes one prompt per request",
        )),
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, PredictError> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| upstream::silent(limit))
}

fn redacted(text: &str, secret: Option<&Secret>) -> String {
    secret.map_or_else(|| text.to_owned(), |secret| secret.redact(text))
}

fn headers(connector: &ConnectorSpec, secret: Option<&Secret>) -> Result<HeaderMap, PredictError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &connector.headers {
        let pair = HeaderName::try_from(name)
            .ok()
            .zip(HeaderValue::try_from(value).ok());
        let (name, value) = pair
            .ok_or_else(|| PredictError::invalid("one of the connector's headers is malformed"))?;
        headers.insert(name, value);
    }
    headers.insert(
        header::ACCEPT,
        HeaderValue::from_static("text/event-stream"),
    );
    match connector.provider {
        ProviderKind::OpenAi => {
            if let Some(secret) = secret {
                headers.insert(header::AUTHORIZATION, secret.header("Bearer ")?);
            }
        }
        ProviderKind::Anthropic => {
            if let Some(secret) = secret {
                headers.insert("x-api-key", secret.header("")?);
            }
            let version = HeaderValue::from_static(ANTHROPIC_VERSION);
            headers.entry("anthropic-version").or_insert(version);
        }
    }
    Ok(headers)
}

fn media(headers: &HeaderMap) -> String {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    media
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

fn is_json(headers: &HeaderMap) -> bool {
    media(headers) == "application/json"
}

/// The answer, if it is a success of a kind that can be read.
async fn checked(
    response: Response,
    secret: Option<&Secret>,
    config: &RemoteConfig,
) -> Result<Response, PredictError> {
    let (status, headers) = (response.status(), response.headers().clone());
    if !status.is_success() {
        // Without its body an error is still an error, and it should not be long in coming.
        let limit = config.stall_timeout.min(ERROR_BODY_TIMEOUT);
        let body = tokio::time::timeout(limit, bounded(response, MAX_ERROR_BYTES, config)).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        let redact = |text: &str| redacted(text, secret);
        return Err(upstream::status(status, &headers, &body, redact));
    }
    match media(&headers).as_str() {
        "text/event-stream" | "application/json" => Ok(response),
        "text/html" => Err(upstream::not_a_stream("a web page")),
        _ => Err(upstream::not_a_stream("something else")),
    }
}

async fn bounded(
    mut response: Response,
    limit: usize,
    config: &RemoteConfig,
) -> Result<Bytes, PredictError> {
    let mut body = BytesMut::new();
    while let Some(piece) = within(config.stall_timeout, response.chunk())
        .await?
        .map_err(upstream::broken)?
    {
        if limit < body.len() + piece.len() {
            return Err(upstream::not_a_stream("a body over the limit"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}
