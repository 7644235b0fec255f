//! One call to a remote model's server.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;
use url::Url;
use volley_backend::items::Item;
use volley_provider_kit::conversation::{check_fields, has_later_system};
use volley_provider_kit::framing::BodyFraming;
use volley_provider_kit::options::RequestOptions;
use volley_provider_kit::provider::Provider;
use volley_provider_kit::reserved::KEY_HEADER;
use volley_provider_kit::rows::group::RowGroup;
use volley_provider_kit::rows::post_process::RowValues;
use volley_provider_kit::wire::{self, Wire};
use volley_provider_kit::{hosted, native};
use volley_remote_http::body::{Response, bounded, within};
use volley_remote_http::client::Clients;
use volley_remote_http::config::RemoteConfig;
use volley_remote_http::credential::Secret;
use volley_remote_http::event::MAX_EVENT_BYTES;
use volley_remote_http::upstream;
use volley_remote_http::upstream_error::Refusal;
use volley_types::registry::ConnectorSpec;
use volley_types::{Deadline, Native, ParamValue, PredictError, exact};

use crate::answer_check::AnswerCheck;
use crate::server::Server;

/// The warning about system messages that moved, in the details of the answer's end.
const HOISTED: &str = "system messages after the first turn were moved to the front: the remote \
                       model's server has no place for them in a conversation";

/// Maximum size of an answer that is not streamed, in bytes.
pub(crate) const MAX_WHOLE_BYTES: usize = MAX_EVENT_BYTES;
/// Maximum size of an error body, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// The media type of an answer that is not streamed.
const WHOLE_MEDIA: &str = "application/json";
/// Time limit of a whole answer to a request without a deadline.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);
/// Time limit for an error body.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Common data of the calls for one request.
#[derive(Clone)]
pub(crate) struct UpstreamCall {
    pub(crate) options: RequestOptions,
    /// The request in its dialect's format, for servers with the same format.
    pub(crate) native: Option<Arc<Native>>,
    pub(crate) traceparent: String,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) config: RemoteConfig,
}

/// The result of a call: the head of a successful answer.
pub(crate) struct AnswerHead {
    pub(crate) response: Response,
    /// The framing of the body.
    pub(crate) shape: BodyFraming,
    pub(crate) check: AnswerCheck,
}

impl UpstreamCall {
    /// Maximum wait before a call that is made at `now`.
    pub(crate) fn patience(&self, now: Instant) -> Duration {
        let left = self.deadline.map(|deadline| deadline.remaining(now));
        left.map_or(self.config.queue_wait, |left| {
            left.min(self.config.queue_wait)
        })
    }

    /// Whether the server is asked for a whole answer.
    fn is_whole(&self, server: &Server) -> bool {
        self.options.whole && !server.streams_always
    }

    /// Time limits before the answer and between two of its chunks. A server that does not stream
    /// sends nothing until the answer is complete, so that the request's deadline applies.
    pub(crate) fn silence(&self, server: &Server) -> (Duration, Duration) {
        if !self.is_whole(server) {
            return (self.config.first_byte_timeout, self.config.stall_timeout);
        }
        let left = self
            .deadline
            .map(|deadline| deadline.remaining(Instant::now()));
        let left = left.unwrap_or(LONGEST_SILENCE);
        (left, left)
    }

    /// Sends an item and awaits the head of a successful answer. Dropping the future aborts the
    /// call.
    ///
    /// # Errors
    /// `InvalidInput` for a request that the server does not support; otherwise those of the
    /// upstream.
    pub(crate) async fn send(
        &self,
        server: &Server,
        secret: Option<&Secret>,
        item: &Item,
    ) -> Result<AnswerHead, PredictError> {
        let provider = server.wire.provider;
        let whole = self.is_whole(server);
        let rules = wire::name_rules(provider, &server.connector);
        let body = match self.native_for(server)? {
            Some(native) if native::is_whole(native) => {
                native::body(native, provider, &server.connector, &self.options, whole)?
            }
            native => {
                if native.is_none() {
                    check_fields(item, provider.name.as_str())?;
                }
                let mut body = wire::body(provider, &server.connector, item, &self.options, whole)?;
                if let (Some(native), Some(body)) = (native, body.as_object_mut()) {
                    native::overlay(body, native, rules);
                }
                body
            }
        };
        if !server.runs_tools {
            hosted::refuse(&body, provider.hosted_tool)?;
        }
        let (url, accept) = match whole {
            true => (&server.whole_url, WHOLE_MEDIA),
            false => (&server.url, provider.media),
        };
        let raw = self.options.is_raw() && server.connector.request_body.is_none();
        let raw = raw.then(|| wire::raw_url(provider, url)).flatten();
        let url = raw.as_ref().unwrap_or(url);
        let (limit, _) = self.silence(server);
        let sent = self.post(server, url, secret, &body, accept, limit).await;
        let (response, shape) = sent?;
        let hoisted = provider.hoists_system && has_later_system(item);
        let check = AnswerCheck::of(provider, &body, &self.options.fields);
        let check = check
            .restoring(rules, &self.options.fields)
            .for_caller(self.options.dialect)
            .warned(hoisted.then_some(HOISTED));
        Ok(AnswerHead {
            response,
            shape,
            check,
        })
    }

    /// The format that the caller and the server share.
    pub(crate) fn shared_format(&self, server: &Server) -> Option<&'static str> {
        let forms = native::forms(server.wire.provider, &server.connector);
        let caller = self.options.dialect.as_str();
        forms.iter().copied().find(|form| *form == caller)
    }

    /// The native request, if the server accepts its format.
    ///
    /// # Errors
    /// `InvalidInput` if it does not, and the request cannot be expressed in another format.
    fn native_for(&self, server: &Server) -> Result<Option<&Native>, PredictError> {
        let Some(native) = self.native.as_deref() else {
            return Ok(None);
        };
        Ok(native::fits(native, server.wire.provider, &server.connector)?.then_some(native))
    }

    /// Requests the values of a group of rows. Dropping the future aborts the call.
    pub(crate) async fn rows(
        &self,
        server: &Server,
        group: &RowGroup,
    ) -> Result<RowValues, PredictError> {
        let form = server.rows.as_ref().ok_or_else(|| {
            PredictError::internal(
                "a remote model cannot return rows for this request",
                "it generates",
            )
        })?;
        let secret = server.secret().await?;
        let body = form.body(
            server.wire.provider,
            &server.connector,
            group,
            &self.options,
        )?;
        let limit = self.config.first_byte_timeout;
        let sent = self.post(
            server,
            &server.url,
            secret.as_ref(),
            &body,
            WHOLE_MEDIA,
            limit,
        );
        let (response, shape) = sent.await?;
        if shape != BodyFraming::Whole {
            return Err(upstream::unexpected("a stream", "one JSON answer"));
        }
        let body = bounded(response, MAX_WHOLE_BYTES, self.config.stall_timeout).await?;
        let read = form.post.read(&body, group.texts.len());
        let mut read = read.map_err(upstream::malformed)?;
        if group.details {
            read.details = form.details(&body);
        }
        Ok(read)
    }

    async fn post(
        &self,
        server: &Server,
        url: &Url,
        secret: Option<&Secret>,
        body: &Value,
        accept: &'static str,
        limit: Duration,
    ) -> Result<(Response, BodyFraming), PredictError> {
        let connector = &server.connector;
        let body = exact::write(body).into_bytes();
        let mut headers = headers(
            server.wire.provider,
            connector,
            secret,
            &self.traceparent,
            accept,
        )?;
        if let Some(native) = self.native_for(server)? {
            native::headers(native, connector, &mut headers);
        }
        if let (Some(signer), Some(Secret::Keys(keys))) = (&server.signer, secret) {
            signer.sign(keys, url, &mut headers, &body, SystemTime::now())?;
        }
        let call = self.clients.next().post(url.clone());
        let call = call.headers(headers).body(body).send();
        let response = within(limit, call).await?.map_err(upstream::call)?;
        tracing::debug!(
            connector = %connector.id,
            status = response.status().as_u16(),
            "upstream responded"
        );
        let expected = match accept {
            WHOLE_MEDIA => "JSON",
            _ => "a stream",
        };
        self.checked(&server.wire, secret, response, expected).await
    }

    /// Returns the response if it is a success with a readable media type. `expected` names the
    /// answer that was requested.
    async fn checked(
        &self,
        wire: &Wire,
        secret: Option<&Secret>,
        response: Response,
        expected: &str,
    ) -> Result<(Response, BodyFraming), PredictError> {
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            // The body is optional, and must not delay the error.
            let limit = self.config.stall_timeout.min(ERROR_BODY_TIMEOUT);
            let body = bounded(response, MAX_ERROR_BYTES, self.config.stall_timeout);
            let body = tokio::time::timeout(limit, body).await;
            let body = body.ok().and_then(Result::ok).unwrap_or_default();
            let refusal = Refusal {
                status,
                headers: &headers,
                body: &body,
            };
            return Err(refusal.error(|text| Secret::redacted(secret, text)));
        }
        let media = media(&headers);
        match wire.shape(&media) {
            Some(shape) => Ok((response, shape)),
            None if media == "text/html" => Err(upstream::unexpected("a web page", expected)),
            None => Err(upstream::unexpected("something else", expected)),
        }
    }
}

/// The headers of a request: the connector's, the credential's and the provider's.
///
/// # Errors
/// `InvalidInput` for a malformed header.
fn headers(
    provider: &Provider,
    connector: &ConnectorSpec,
    secret: Option<&Secret>,
    traceparent: &str,
    accept: &'static str,
) -> Result<HeaderMap, PredictError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &connector.headers {
        let pair = HeaderName::try_from(name)
            .ok()
            .zip(HeaderValue::try_from(value).ok());
        let malformed = || format!("header '{name}' of the connector is malformed");
        let (name, value) = pair.ok_or_else(|| PredictError::invalid(malformed()))?;
        headers.insert(name, value);
    }
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    let json = HeaderValue::from_static("application/json");
    headers.entry(header::CONTENT_TYPE).or_insert(json);
    let (name, prefix) = key_header(provider, connector)?;
    let key = secret.map(|secret| secret.header(prefix));
    if let Some(key) = key.transpose()?.flatten() {
        headers.insert(name, key);
    }
    for (name, value) in provider.headers {
        let name = HeaderName::from_static(name);
        let value = HeaderValue::from_static(value);
        headers.entry(name).or_insert(value);
    }
    if let Ok(value) = HeaderValue::from_str(traceparent) {
        headers.insert("traceparent", value);
    }
    Ok(headers)
}

/// The header of the credential, and its prefix. The connector's parameter `credential_header` may
/// set another header if it describes its server.
///
/// # Errors
/// `InvalidInput` if the parameter is not the name of a header.
fn key_header(
    provider: &Provider,
    connector: &ConnectorSpec,
) -> Result<(HeaderName, &'static str), PredictError> {
    let prefix = provider.key_prefix;
    match connector.parameters.get(KEY_HEADER) {
        Some(ParamValue::Text(name)) if provider.is_configured() => {
            let name = HeaderName::try_from(name.as_str()).map_err(|_| {
                let message = "parameter 'credential_header' must be the name of a header";
                PredictError::invalid(message)
            })?;
            let prefix = if name == header::AUTHORIZATION {
                prefix
            } else {
                ""
            };
            Ok((name, prefix))
        }
        _ => Ok((HeaderName::from_static(provider.key_header), prefix)),
    }
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
