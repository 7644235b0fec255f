//! Host names that a loopback server without keys accepts. A web page can change its own DNS name
//! to this machine after it was loaded (DNS rebinding). The browser then treats the server as the
//! page's own origin, so that the page could call everything. The `Host` header reveals such a
//! page.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header;
use http::uri::Authority;
use tokio::net::TcpListener;
use volley_security::Authenticator;
use volley_types::{ErrorCode, PredictError};

use crate::context;
use crate::error::{self, ApiError, ErrorFormats};
use crate::origins::Origins;

/// Reserved top-level names (RFC 2606, RFC 6761, RFC 6762, RFC 8375).
const OWN_ENDS: [&str; 7] = [
    "example",
    "home.arpa",
    "internal",
    "invalid",
    "local",
    "localhost",
    "test",
];

/// Protects `router` against DNS rebinding if `listener` is a loopback address and `gate` requires
/// no keys. Hosts of `origins` are accepted.
pub fn closed(
    router: Router,
    listener: &TcpListener,
    gate: &Authenticator,
    origins: &Origins,
    errors: &ErrorFormats,
) -> Router {
    let is_local = |address: SocketAddr| address.ip().is_loopback();
    if gate.needs_keys() || !listener.local_addr().is_ok_and(is_local) {
        return router;
    }
    router.layer(from_fn_with_state((origins.clone(), errors.clone()), check))
}

async fn check(
    State((origins, errors)): State<(Origins, ErrorFormats)>,
    request: Request,
    next: Next,
) -> Response {
    // The inner checks reject a request without a host or with two.
    let named = match request.uri().authority() {
        Some(authority) => Some(authority.clone()),
        None => {
            let host = request.headers().get(header::HOST);
            host.and_then(|host| Authority::try_from(host.as_bytes()).ok())
        }
    };
    if named.is_none_or(|named| is_own(named.host()) || origins.has_host(named.host())) {
        return next.run(request).await;
    }
    let refused = PredictError::new(
        ErrorCode::PermissionDenied,
        "this server has no keys and only accepts local hosts: use its IP address or 'localhost'; \
         an operator can add another host's origin to 'browser.origins', or require keys",
    );
    let request_id = context::request_id(request.headers());
    let refused = ApiError(refused).into_response();
    let format = errors.of(request.uri().path(), request.headers());
    error::render(refused, format, request_id.as_str())
}

/// Whether the host cannot be resolved by a foreign name server.
fn is_own(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if address.parse::<IpAddr>().is_ok() {
        return true;
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let below = |end: &&str| host.strip_suffix(*end).is_some_and(|it| it.ends_with('.'));
    !host.contains('.') || OWN_ENDS.iter().any(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_that_nobody_can_register_are_this_machines() {
        for own in [
            "127.0.0.1",
            "[::1]",
            "10.1.2.3",
            "localhost",
            "LOCALHOST.",
            "volley",
            "a.localhost",
            "volley.test",
            "node-1.volley.svc.cluster.local",
        ] {
            assert!(is_own(own), "{own}");
        }
        for foreign in [
            "evil.example.org",
            "localhost.evil.org",
            "127.0.0.1.nip.io",
            "evil.org.",
            "nolocalhost.org",
            "1.2.3.4.5",
        ] {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
