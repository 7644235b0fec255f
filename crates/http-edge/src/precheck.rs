//! Checks of every request before routing, on every listener: message framing, host, and origin of
//! the web page.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Version, header};
use volley_types::PredictError;

use crate::context;
use crate::error::{self, ApiError, ErrorFormats};
use crate::handshake;
use crate::origins::Origins;

/// `router` behind these checks. Pages of `origins` may call it.
pub fn guarded(router: Router, origins: &Origins, errors: &ErrorFormats) -> Router {
    let state = (origins.clone(), errors.clone());
    router.layer(from_fn_with_state(state, check))
}

async fn check(
    State((origins, errors)): State<(Origins, ErrorFormats)>,
    request: Request,
    next: Next,
) -> Response {
    let host = match framing(request.headers()).and_then(|()| host(&request)) {
        Ok(host) => host,
        // A proxy may have parsed the end of the message differently (request smuggling).
        Err(error) => {
            return refuse(
                error,
                &request,
                &errors,
                request.version() < Version::HTTP_2,
            );
        }
    };
    let may_change = !is_safe(request.method()) || handshake::is_handshake(request.headers());
    if may_change && let Err(error) = origins.check(request.headers(), &host) {
        return refuse(error, &request, &errors, false);
    }
    next.run(request).await
}

/// The rejection in the path's error format; some rejections also close the connection.
fn refuse(error: PredictError, request: &Request, errors: &ErrorFormats, close: bool) -> Response {
    let request_id = context::request_id(request.headers());
    let refused = ApiError(error).into_response();
    let format = errors.of(request.uri().path(), request.headers());
    let mut response = error::render(refused, format, request_id.as_str());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        headers.insert(context::REQUEST_ID, id);
    }
    if close {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a method changes nothing (RFC 9110 §9.2.1).
fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// RFC 9112 §6.1 and §7: the only supported transfer coding is `chunked`, applied once.
fn framing(headers: &HeaderMap) -> Result<(), PredictError> {
    let codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let codings = codings.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut chunked = false;
    for coding in codings.map(<[u8]>::trim_ascii) {
        if !coding.eq_ignore_ascii_case(b"chunked") {
            return Err(PredictError::invalid(
                "header 'transfer-encoding' names an unsupported coding; send the body 'chunked', \
                 or with a 'content-length'",
            ));
        }
        if chunked {
            return Err(PredictError::invalid(
                "header 'transfer-encoding' has 'chunked' more than once",
            ));
        }
        chunked = true;
    }
    Ok(())
}

/// The host of a request. RFC 9112 §3.2: a request with no host, several hosts or a malformed host
/// is rejected.
pub(crate) fn host(request: &Request) -> Result<Authority, PredictError> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let named = match (given.next(), given.next()) {
        (Some(_), Some(_)) => {
            return Err(PredictError::invalid(
                "the request has more than one Host header",
            ));
        }
        (Some(host), None) => Some(authority(host.as_bytes())?),
        (None, _) => None,
    };
    let Some(target) = request.uri().authority() else {
        return named.ok_or_else(|| PredictError::invalid("the request has no Host header"));
    };
    // The target's own host counts (RFC 9112 §3.2.2); over HTTP/2 the two must agree.
    let target = authority(target.as_str().as_bytes())?;
    let differ = named.is_some_and(|named| named != target);
    if differ && Version::HTTP_2 <= request.version() {
        return Err(PredictError::invalid(
            "the headers 'host' and ':authority' name two hosts",
        ));
    }
    Ok(target)
}

/// A host, and a port where one is given; nothing else.
fn authority(text: &[u8]) -> Result<Authority, PredictError> {
    let malformed = || {
        PredictError::invalid(
            "the Host header must be a host and may have a port, as 'volley.example:8420'; it \
             has no path, no user and is not empty",
        )
    };
    let authority = Authority::try_from(text).map_err(|_| malformed())?;
    let whole = authority.as_str();
    let port = whole.strip_prefix(authority.host());
    let is_port = |rest: &str| {
        let digits = rest.strip_prefix(':');
        digits.is_some_and(|digits| digits.is_empty() || is_number(digits))
    };
    let good = !authority.host().is_empty()
        && !whole.contains('@')
        && port.is_some_and(|rest| rest.is_empty() || is_port(rest));
    good.then_some(authority).ok_or_else(malformed)
}

fn is_number(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_host_and_a_port() {
        for good in [
            "volley",
            "volley:8420",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:8420",
            "a_b.example",
            "a:",
            "xn--bcher-kva.example",
        ] {
            assert!(authority(good.as_bytes()).is_ok(), "{good}");
        }
        for bad in [
            "",
            ":",
            ":80",
            "a/b",
            "a/",
            "/",
            "me@a",
            "@a",
            "me:pw@a:1",
            "a?b",
            "a#b",
            "a b",
            "a:b",
            "a:99999",
            "http://a",
            "a\\b",
            "[::1",
        ] {
            assert!(authority(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_body_is_chunked_once_or_not_at_all() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::TRANSFER_ENCODING, HeaderValue::from_static(value));
            }
            framing(&headers).is_ok()
        };
        assert!(read(&[]) && read(&["chunked"]) && read(&["Chunked"]));
        for bad in [
            &["chunked, chunked"][..],
            &["chunked", "chunked"],
            &["gzip, chunked"],
            &["chunked, gzip"],
            &["identity"],
            &["chunked,"],
            &[""],
        ] {
            assert!(!read(bad), "{bad:?}");
        }
    }
}
