//! Headers of a WebSocket handshake (RFC 6455, section 4.2).

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Prefix of a key among the subprotocols.
const KEY: &str = "volley.key.";

/// The header that [`credentials`] derives from a key among the subprotocols, if no other
/// credential exists: pages cannot set the usual headers. Neither is ever echoed.
pub fn credentials(headers: &HeaderMap) -> Option<HeaderMap> {
    if headers.contains_key(header::AUTHORIZATION) || !is_handshake(headers) {
        return None;
    }
    let key = offered(headers).find_map(|offered| offered.strip_prefix(KEY))?;
    let mut bearer = HeaderValue::try_from(format!("Bearer {key}")).ok()?;
    bearer.set_sensitive(true);
    Some(HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]))
}

/// Whether a request is a WebSocket handshake.
pub fn is_handshake(headers: &HeaderMap) -> bool {
    asks(headers, &header::UPGRADE, "websocket")
}

/// The subprotocols of a handshake.
pub fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    list(headers, &header::SEC_WEBSOCKET_PROTOCOL)
}

fn list<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether a header lists `token`.
pub fn asks(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    list(headers, name).any(|given| given.eq_ignore_ascii_case(token))
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
