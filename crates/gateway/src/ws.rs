//! WebSockets for browsers: requests and responses as messages, several requests over one
//! connection.
//!
//! This module implements the handshake (RFC 6455, §4.2), and `session` the messages. A browser
//! cannot set headers for a handshake, so a key is sent as a subprotocol. A browser permits every
//! page to connect, so the origin is checked.

mod message;
mod session;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tracing::Instrument;
use volley_http_edge::axum::body::Body;
use volley_http_edge::axum::extract::{FromRequest, Request};
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{ErrorCode, ModelRef, PredictError};

use self::session::Session;
use volley_http_edge::auth::PREDICT;
use volley_http_edge::context::RequestContext;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::{Caller, Edge};
use volley_http_edge::error::{self, ApiError};
use volley_http_edge::extract::Path;
use volley_http_edge::handshake::{asks, offered};
use volley_http_edge::operation::{self, Operation};
use volley_http_edge::routes::{self, Routes};
use volley_http_edge::serve::{ServerShutdown, Upgrades};

/// The supported subprotocol.
const PROTOCOL: &str = "volley.v1";
const READ_BUFFER_BYTES: usize = 16 << 10;

/// A valid handshake.
pub(crate) struct Handshake {
    upgrade: OnUpgrade,
    upgrades: Upgrades,
    draining: ServerShutdown,
    accept: String,
    protocol: bool,
}

impl<S: Send + Sync> FromRequest<S> for Handshake {
    type Rejection = Response;

    async fn from_request(mut request: Request, _: &S) -> Result<Self, Response> {
        let refuse = |error| ApiError(error).into_response();
        let (accept, protocol) = match read(request.version(), request.headers()) {
            Ok(read) => read,
            Err(Refusal::Upgrade) => return Err(upgrade_required()),
            Err(Refusal::Bad(what)) => {
                let message = format!("this is not a WebSocket handshake: {what}");
                return Err(refuse(PredictError::invalid(message)));
            }
        };
        let extensions = request.extensions_mut();
        let found = (
            extensions.remove::<OnUpgrade>(),
            extensions.remove::<Upgrades>(),
            extensions.get::<ServerShutdown>().cloned(),
        );
        let (Some(upgrade), Some(upgrades), Some(draining)) = found else {
            let message = "the connection cannot be upgraded";
            let error = PredictError::internal(message, "no upgrade in the request");
            return Err(refuse(error));
        };
        Ok(Self {
            upgrade,
            upgrades,
            draining,
            accept,
            protocol,
        })
    }
}

/// Why a handshake is rejected.
enum Refusal {
    /// The request is not an upgrade to a WebSocket, or to another version.
    Upgrade,
    Bad(&'static str),
}

/// Validates the headers. Returns the accept value for the client's key, and whether the client
/// offers the subprotocol.
fn read(version: Version, headers: &HeaderMap) -> Result<(String, bool), Refusal> {
    if version != Version::HTTP_11 {
        return Err(Refusal::Bad("it needs HTTP/1.1"));
    }
    let upgrade = asks(headers, &header::CONNECTION, "upgrade")
        && asks(headers, &header::UPGRADE, "websocket");
    let thirteen = asks(headers, &header::SEC_WEBSOCKET_VERSION, "13");
    if !upgrade || !thirteen {
        return Err(Refusal::Upgrade);
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key.ok_or(Refusal::Bad("it has no key"))?;
    let nonce = STANDARD.decode(key.as_bytes()).unwrap_or_default();
    if nonce.len() != 16 {
        return Err(Refusal::Bad("its key is malformed"));
    }
    let protocol = asks(headers, &header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    if !protocol && offered(headers).next().is_some() {
        return Err(Refusal::Bad("the subprotocol is 'volley.v1'"));
    }
    Ok((derive_accept_key(key.as_bytes()), protocol))
}

fn upgrade_required() -> Response {
    let error = PredictError::invalid("this route is for WebSockets of version 13");
    let mut response = error::respond(&error, StatusCode::UPGRADE_REQUIRED);
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    let version = HeaderValue::from_static("13");
    headers.insert(header::SEC_WEBSOCKET_VERSION, version);
    response
}

/// Opens a socket to a model.
pub(crate) async fn open(
    caller: Caller,
    Path(model): Path<String>,
    context: RequestContext,
    handshake: Handshake,
) -> Result<Response, ApiError> {
    if handshake.draining.0.is_cancelled() {
        let message = "this node is shutting down; open the socket on another node";
        return Err(ApiError(PredictError::new(ErrorCode::Unavailable, message)));
    }
    let model: ModelRef = model.parse()?;
    let found = async { caller.cluster.inference.signature(&model).await };
    let signature = context.in_time(found).await?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        // Messages are written immediately.
        .write_buffer_size(0)
        .max_write_buffer_size(usize::MAX)
        .max_message_size(Some(caller.config.max_body_bytes))
        .max_frame_size(Some(caller.config.max_body_bytes));
    let span = context.span.clone();
    let session = Session {
        caller,
        model,
        signature,
        context,
        draining: handshake.draining.0,
    };
    let upgrade = handshake.upgrade;
    let serve = async move {
        match upgrade.await {
            Ok(upgraded) => {
                let io = TokioIo::new(upgraded);
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config));
                session.run(socket.await).await;
            }
            Err(error) => tracing::debug!(error = %error, "WebSocket upgrade failed"),
        }
    };
    handshake.upgrades.begin(serve.instrument(span));
    Ok(switching(&handshake.accept, handshake.protocol))
}

fn switching(accept: &str, protocol: bool) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    if protocol {
        let protocol = HeaderValue::from_static(PROTOCOL);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    response
}

/// Parses a client's message; see [`crate::fuzzing::message`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    drop(message::ClientMessage::read(text));
}

/// The routes of WebSockets to models.
pub(crate) struct Sockets(pub(crate) Edge);

/// The operations of WebSockets, for the OpenAPI document.
const OPERATIONS: &[Operation] = &[operation::get(
    "/_plugins/_ml/models/{id}/_predict/ws",
    "Opens a WebSocket to a model.",
    "",
)];

impl Dialect for Sockets {
    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        let path = "/_plugins/_ml/models/{id}/_predict/ws";
        let routes = Routes::new().route(path, routes::get(PREDICT, open));
        routes.with_state(self.0.clone())
    }
}
