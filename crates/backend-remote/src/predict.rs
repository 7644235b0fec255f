//! One request to a remote model.

use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::Response;
use url::Url;
use volley_backend::{Backend, items};
use volley_types::registry::{ConnectorSpec, ProviderKind};
use volley_types::{
    ChunkStream, FinishReason, GenerationChunk, GenerationChunks, ModelName, ModelRef, Parameters,
    Predict, PredictError, PredictRequest, Signature, Usage,
};

use crate::credential::Secret;
use crate::provider::{self, Delta, Step};
use crate::sse::Parser;
use crate::{Clients, RemoteConfig, upstream};

/// The largest error body, and the largest answer that is not streamed, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;
const MAX_WHOLE_BYTES: usize = 4 << 20;
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
        let connector = self.connector.clone();
        let parameters = request.parameters.or_defaults(&self.defaults);
        let (client, url, config) = (
            self.clients.next().clone(),
            self.url.clone(),
            self.config.clone(),
        );
        let traceparent = request.trace.to_string();
        let batches = try_stream! {
            let items = items::collect(request.input).await?;
            let [item] = items.as_slice() else {
                Err(PredictError::invalid("a remote model takes one prompt per request"))?;
                return;
            };
            let body = provider::body(&connector, item, &parameters)?;
            let secret = connector.credential.as_ref().map(Secret::read).transpose()?;
            let mut headers = headers(&connector, secret.as_ref())?;
            if let Ok(value) = HeaderValue::from_str(&traceparent) {
                headers.insert("traceparent", value);
            }
            let call = client.post(url).headers(headers).json(&body).send();
            let response = within(config.first_byte_timeout, call).await?.map_err(upstream::call)?;
            let response = checked(response, secret.as_ref(), &config).await?;
            if is_json(response.headers()) {
                let body = bounded(response, MAX_WHOLE_BYTES, &config).await?;
                yield whole(connector.provider, &body)?;
                return;
            }
            let mut pieces = response.bytes_stream();
            let mut answer = Answer::new(connector.provider);
            let mut limit = config.first_byte_timeout;
            while !answer.ended {
                let piece = match within(limit, pieces.next()).await? {
                    Some(piece) => Some(piece.map_err(upstream::call)?),
                    None => None,
                };
                limit = config.stall_timeout;
                let rows = answer.read(piece).map_err(|error| redacted(error, secret.as_ref()));
                if let Some(rows) = rows? {
                    yield rows;
                }
                // What was read before an error goes out before it.
                if let Some(error) = answer.failure.take() {
                    Err(redacted(error, secret.as_ref()))?;
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

async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, PredictError> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| upstream::silent(limit))
}

fn redacted(mut error: PredictError, secret: Option<&Secret>) -> PredictError {
    if let Some(secret) = secret {
        error.message = secret.redact(&error.message);
    }
    error
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
        // Without its body an error is still an error.
        let body = bounded(response, MAX_ERROR_BYTES, config)
            .await
            .unwrap_or_default();
        return Err(redacted(upstream::status(status, &headers, &body), secret));
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
        .map_err(upstream::call)?
    {
        if limit < body.len() + piece.len() {
            return Err(upstream::not_a_stream("a body over the limit"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}

/// A whole completion as one chunk and the end.
fn whole(provider: ProviderKind, body: &[u8]) -> Result<arrow_array::RecordBatch, PredictError> {
    let delta = provider::read_whole(provider, body)
        .map_err(|_| upstream::not_a_stream("JSON that is no completion"))?;
    let mut answer = Answer::new(provider);
    let mut rows = GenerationChunks::default();
    answer.take(delta, &mut rows);
    answer.end(&mut rows);
    Ok(rows.finish())
}

/// An answer as it is read.
struct Answer {
    provider: ProviderKind,
    parser: Parser,
    sequence: u32,
    usage: Usage,
    finish_reason: Option<FinishReason>,
    ended: bool,
    failure: Option<PredictError>,
}

impl Answer {
    fn new(provider: ProviderKind) -> Self {
        Self {
            provider,
            parser: Parser::default(),
            sequence: 0,
            usage: Usage::default(),
            finish_reason: None,
            ended: false,
            failure: None,
        }
    }

    /// Reads a piece of the body, or its end: the rows that it completes. A failure in it is
    /// kept for after those rows.
    fn read(
        &mut self,
        piece: Option<Bytes>,
    ) -> Result<Option<arrow_array::RecordBatch>, PredictError> {
        let mut events = Vec::new();
        let at_end = piece.is_none();
        let parsed = match piece {
            Some(piece) => self.parser.push(piece, &mut events),
            None => self.parser.finish(&mut events),
        };
        let mut rows = GenerationChunks::default();
        for event in &events {
            match provider::read(self.provider, event) {
                Ok(Step::Delta(delta)) => self.take(delta, &mut rows),
                Ok(Step::End) => {
                    self.end(&mut rows);
                    break;
                }
                Ok(Step::Failed(message)) => {
                    self.failure = Some(upstream::failed(&message));
                    break;
                }
                Err(cause) => {
                    self.failure = Some(upstream::malformed(cause));
                    break;
                }
            }
        }
        if !self.ended && self.failure.is_none() {
            self.failure = match parsed {
                Err(error) => Some(upstream::unreadable(error)),
                Ok(()) if at_end => Some(upstream::incomplete()),
                Ok(()) => None,
            };
        }
        Ok((!rows.is_empty()).then(|| rows.finish()))
    }

    fn take(&mut self, delta: Delta, rows: &mut GenerationChunks) {
        provider::usage(&mut self.usage, &delta);
        self.finish_reason = delta.finish_reason.or(self.finish_reason);
        if delta.has_content() {
            rows.push(&GenerationChunk {
                sequence: self.next(),
                text: delta.text.filter(|text| !text.is_empty()),
                thinking: delta.thinking.filter(|text| !text.is_empty()),
                tool_calls: delta.tool_calls,
                ..GenerationChunk::default()
            });
        }
    }

    fn end(&mut self, rows: &mut GenerationChunks) {
        self.ended = true;
        rows.push(&GenerationChunk {
            sequence: self.next(),
            finish_reason: Some(self.finish_reason.unwrap_or(FinishReason::Stop)),
            usage: (self.usage != Usage::default()).then_some(self.usage),
            last: true,
            ..GenerationChunk::default()
        });
    }

    fn next(&mut self) -> u32 {
        let sequence = self.sequence;
        self.sequence += 1;
        sequence
    }
}
