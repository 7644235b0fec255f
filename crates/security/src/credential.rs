//! Extraction of the credential from a request. Dialects use different headers; if several are
//! present, they must agree. A malformed header is rejected and not ignored.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use volley_types::{ErrorCode, PredictError};

/// Maximum length of a credential. Tokens of identity providers have a few thousand characters.
const MAX_LEN: usize = 8 << 10;

/// The header of Anthropic clients.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The header of Azure clients.
const API_KEY: HeaderName = HeaderName::from_static("api-key");

/// The key or token of a request, if any. It is read from `Authorization: Bearer`, the password of
/// `Authorization: Basic` (OpenSearch clients), `x-api-key` or `api-key`.
///
/// # Errors
/// `Unauthenticated` when a header is malformed, or when two headers contain different keys and the
/// caller is ambiguous.
pub fn presented(headers: &HeaderMap) -> Result<Option<String>, PredictError> {
    let bearer = single(headers, &header::AUTHORIZATION)?;
    let mut found = bearer.map(authorization).transpose()?;
    for name in [X_API_KEY, API_KEY] {
        let Some(value) = single(headers, &name)? else {
            continue;
        };
        let value = key(value)?;
        match &found {
            Some(first) if *first != value => return Err(contradictory()),
            _ => found = Some(value),
        }
    }
    Ok(found)
}

fn contradictory() -> PredictError {
    PredictError::new(
        ErrorCode::Unauthenticated,
        "the request carries different keys in 'authorization', 'x-api-key' or 'api-key'; send \
         one of these headers",
    )
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, PredictError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(malformed());
    }
    let text = HeaderValue::to_str(value).map_err(|_| malformed())?.trim();
    // Twice the limit, because a Basic header adds base64 and a user name.
    if 2 * MAX_LEN < text.len() {
        return Err(malformed());
    }
    Ok(Some(text))
}

fn authorization(value: &str) -> Result<String, PredictError> {
    let (scheme, rest) = value.split_once(' ').ok_or_else(malformed)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return key(rest.trim());
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = STANDARD.decode(rest.trim()).map_err(|_| malformed())?;
        let pair = String::from_utf8(pair).map_err(|_| malformed())?;
        let (_, password) = pair.split_once(':').ok_or_else(malformed)?;
        return key(password);
    }
    Err(malformed())
}

fn key(text: &str) -> Result<String, PredictError> {
    if text.is_empty() || MAX_LEN < text.len() {
        return Err(malformed());
    }
    Ok(text.to_owned())
}

fn malformed() -> PredictError {
    PredictError::new(
        ErrorCode::Unauthenticated,
        "the request's credentials are malformed; send 'Authorization: Bearer KEY'",
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn every_dialect_has_its_header() {
        let basic = format!("Basic {}", STANDARD.encode("admin:k:1"));
        for (pairs, wanted) in [
            (&[("authorization", "Bearer k1")][..], "k1"),
            (&[("authorization", "bearer  k1 ")], "k1"),
            (&[("authorization", basic.as_str())], "k:1"),
            (&[("x-api-key", "k1")], "k1"),
            (&[("api-key", "k1")], "k1"),
            (&[("x-api-key", "k1"), ("authorization", "Bearer k1")], "k1"),
        ] {
            let found = presented(&headers(pairs)).unwrap();
            assert_eq!(found.as_deref(), Some(wanted), "{pairs:?}");
        }
        assert_eq!(presented(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn what_is_malformed_is_refused_and_not_skipped() {
        let long = format!("Bearer {}", "x".repeat(9_000));
        for pairs in [
            &[("authorization", "k1")][..],
            &[("authorization", "Digest k1")],
            &[("authorization", "Bearer ")],
            &[("authorization", "Basic k1")],
            &[("authorization", "Basic azE=")],
            &[("authorization", long.as_str())],
            &[("authorization", "Bearer a"), ("authorization", "Bearer b")],
            &[("x-api-key", "")],
            &[("authorization", "Digest a"), ("x-api-key", "k1")],
            &[("authorization", "Bearer k1"), ("x-api-key", "k2")],
            &[("x-api-key", "k1"), ("api-key", "k2")],
        ] {
            let refused = presented(&headers(pairs)).unwrap_err();
            assert_eq!(refused.code, ErrorCode::Unauthenticated, "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn no_header_breaks_it(value in any::<Vec<u8>>(), scheme in "(Bearer|Basic|) ?") {
            let bytes = [scheme.as_bytes(), value.as_slice()].concat();
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let mut headers = HeaderMap::new();
                headers.insert(header::AUTHORIZATION, value);
                if let Ok(Some(key)) = presented(&headers) {
                    prop_assert!(!key.is_empty() && key.len() <= MAX_LEN);
                }
            }
        }
    }
}
