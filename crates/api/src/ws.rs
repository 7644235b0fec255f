//! WebSockets, for browsers: requests as messages, answers as messages, many over one connection.
//!
//! Here is the handshake (RFC 6455, §4.2); what is said then is in `session`. A browser cannot set
//! headers on it: a key comes as a subprotocol. It lets every page try: the origin is checked.

mod message;
mod session;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tracing::Instrument;
use volley_types::{ErrorCode, ModelRef, PredictError};

use self::session::Session;
use crate::app::App;
use crate::auth::Sealed;
use crate::context::RequestContext;
use crate::error::{self, ApiError};
use crate::extract::{Path, State};
use crate::serve::{Draining, Upgrades};

/// The subprotocol that is spoken.
const PROTOCOL: &str = "volley.v1";
/// What stands before a key among the subprotocols.
const KEY: &str = "volley.key.";
const READ_BUFFER_BYTES: usize = 16 << 10;

/// The header that [`credentials`] makes of a key among the subprotocols of a handshake, where
/// there is no other: pages cannot set the usual ones. Neither is ever echoed.
pub(crate) fn credentials(headers: &HeaderMap) -> Option<HeaderMap> {
    if headers.contains_key(header::AUTHORIZATION) || !is_handshake(headers) {
        return None;
    }
    let key = offered(headers).find_map(|offered| offered.strip_prefix(KEY))?;
    let mut bearer = HeaderValue::try_from(format!("Bearer {key}")).ok()?;
    bearer.set_sensitive(true);
    Some(HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]))
}

/// Whether a request asks for a socket.
pub(crate) fn is_handshake(headers: &HeaderMap) -> bool {
    asks(headers, &header::UPGRADE, "websocket")
}

fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    list(headers, &header::SEC_WEBSOCKET_PROTOCOL)
}

fn list<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn asks(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    list(headers, name).any(|given| given.eq_ignore_ascii_case(token))
}

/// A handshake that was understood.
pub(crate) struct Handshake {
    upgrade: OnUpgrade,
    upgrades: Upgrades,
    draining: Draining,
    accept: String,
    protocol: bool,
}

impl FromRequest<Sealed> for Handshake {
    type Rejection = Response;

    async fn from_request(mut request: Request, _: &Sealed) -> Result<Self, Response> {
        let refuse = |error| ApiError(error).into_response();
        let (accept, protocol) = match read(request.version(), request.headers()) {
            Ok(read) => read,
            Err(Refusal::Upgrade) => return Err(upgrade_required()),
            Err(Refusal::Bad(what)) => {
                let message = format!("this is no WebSocket handshake: {what}");
                return Err(refuse(PredictError::invalid(message)));
            }
        };
        let extensions = request.extensions_mut();
        let found = (
            extensions.remove::<OnUpgrade>(),
            extensions.remove::<Upgrades>(),
            extensions.get::<Draining>().cloned(),
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

/// Why a handshake is refused.
enum Refusal {
    /// It asks for nothing, or for another version.
    Upgrade,
    Bad(&'static str),
}

/// The answer to the client's key, and whether the subprotocol is spoken.
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
        return Err(Refusal::Bad("its key is none"));
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
    State(app): State<Arc<App>>,
    Path(model): Path<String>,
    context: RequestContext,
    handshake: Handshake,
) -> Result<Response, ApiError> {
    if handshake.draining.0.is_cancelled() {
        let message = "this node shuts down; open the socket at another one";
        return Err(ApiError(PredictError::new(ErrorCode::Unavailable, message)));
    }
    let model: ModelRef = model.parse()?;
    let found = async { app.control.signature(&model).await };
    let signature = context.in_time(found).await?;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        // What is written goes out.
        .write_buffer_size(0)
        .max_write_buffer_size(usize::MAX)
        .max_message_size(Some(app.config.max_body_bytes))
        .max_frame_size(Some(app.config.max_body_bytes));
    let span = context.span.clone();
    let session = Session {
        app,
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
            Err(error) => tracing::debug!(error = %error, "a connection was not upgraded"),
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

/// Reads a client's message: see [`crate::fuzzing::message`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(text: &str) {
    drop(message::Said::read(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_among_the_subprotocols_of_a_handshake_alone() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            HeaderMap::from_iter(pairs)
        };
        let protocols = ("sec-websocket-protocol", "volley.v1, volley.key.vly_1_a");
        let upgrade = ("upgrade", "WebSocket");
        let found = credentials(&headers(&[protocols, upgrade])).unwrap();
        assert_eq!(found[header::AUTHORIZATION], "Bearer vly_1_a");
        assert!(found[header::AUTHORIZATION].is_sensitive());
        assert!(credentials(&headers(&[protocols])).is_none());
        assert!(credentials(&headers(&[upgrade])).is_none());
        let own = ("authorization", "Bearer other");
        assert!(credentials(&headers(&[protocols, upgrade, own])).is_none());
    }
}
