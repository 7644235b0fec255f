//! Origins whose web pages may read responses and open sockets. By default, no other origin may.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use tower_http::cors::{AllowOrigin, CorsLayer};
use volley_types::{ErrorCode, PredictError};

/// Cache time of a preflight response in the browser.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// Header with the browser's relation between page and server.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Response headers that pages may read.
const EXPOSED: [HeaderName; 5] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-volley-stream-id"),
    crate::inference::WARNING,
    header::LOCATION,
    header::RETRY_AFTER,
];

/// The origins whose pages may call this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<[HeaderValue]>);

impl Origins {
    /// Parses origins in the browser's format: `https://app.example`, with the port if it is not
    /// the default.
    ///
    /// # Errors
    /// `InvalidInput` for a malformed origin. `*` is not allowed: each origin must be listed.
    pub fn new<S: AsRef<str>>(origins: &[S]) -> Result<Self, PredictError> {
        let all = origins.iter().map(|origin| {
            let origin = origin.as_ref();
            let value = origin.parse::<HeaderValue>().ok();
            value.filter(|_| is_origin(origin)).ok_or_else(|| {
                PredictError::invalid(format!(
                    "'{origin}' is not an origin; write it as 'https://app.example' or \
                     'http://localhost:3000', without a path"
                ))
            })
        });
        Ok(Self(all.collect::<Result<_, _>>()?))
    }

    /// These and `others`.
    #[must_use]
    pub fn and(&self, others: &Self) -> Self {
        Self(self.0.iter().chain(others.0.iter()).cloned().collect())
    }

    /// Whether an origin has this host, with any port.
    pub fn has_host(&self, host: &str) -> bool {
        let parsed = |origin: &HeaderValue| origin.to_str().ok()?.parse::<Uri>().ok();
        let mut all = self.0.iter().filter_map(parsed);
        all.any(|origin| {
            let named = origin.host();
            named.is_some_and(|named| named.eq_ignore_ascii_case(host))
        })
    }

    /// Layer that answers preflight requests; `None` without origins.
    pub fn layer(&self) -> Option<CorsLayer> {
        if self.0.is_empty() {
            return None;
        }
        let layer = CorsLayer::new()
            .allow_origin(AllowOrigin::list(self.0.iter().cloned()))
            .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::PUT])
            .allow_headers(tower_http::cors::AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            // Private network access: pages of public sites must also request access to a local
            // server.
            .allow_private_network(true)
            .max_age(REMEMBERED);
        Some(layer)
    }

    /// Rejects a request of a page whose origin is neither allowed nor the server's own. Browsers
    /// let any page post a form, send a simple request and open a socket to any server. They send
    /// the page's origin and `Sec-Fetch-Site`, which is `none` for direct user actions. Other
    /// clients send neither header.
    ///
    /// `host` is the host of the request.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub fn check(&self, headers: &HeaderMap, host: &Authority) -> Result<(), PredictError> {
        let mut given = headers.get_all(header::ORIGIN).iter();
        match (given.next(), given.next()) {
            (None, _) => {}
            (Some(origin), None) if self.0.contains(origin) => return Ok(()),
            (Some(origin), None) if is_own(origin, host) => {}
            _ => return Err(foreign()),
        }
        let own = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
        match headers.get_all(FETCH_SITE).iter().all(own) {
            true => Ok(()),
            false => Err(foreign()),
        }
    }
}

fn foreign() -> PredictError {
    PredictError::new(
        ErrorCode::PermissionDenied,
        "pages of this origin may not call this server; an operator can add the origin to \
         'browser.origins', or with --cors-origin",
    )
}

fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let http = matches!(uri.scheme_str(), Some("http" | "https"));
    let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
    http && !authority.is_empty()
        && text.split_once("://").map(|(_, rest)| rest) == Some(authority)
        && !authority.contains('@')
        && text == text.to_ascii_lowercase()
}

/// Whether a page's origin is the called server.
fn is_own(origin: &HeaderValue, host: &Authority) -> bool {
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_named_as_browsers_write_them() {
        for good in [
            "https://app.example",
            "http://localhost:3000",
            "http://[::1]:80",
        ] {
            assert!(Origins::new(&[good]).is_ok(), "{good}");
        }
        for bad in [
            "*",
            "",
            "null",
            "app.example",
            "https://app.example/",
            "https://app.example/a",
            "ftp://app.example",
            "https://me@caller.example",
            "https://App.example",
            "https://a b",
        ] {
            assert!(Origins::new(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_named_pages_and_the_servers_own_come_in() {
        let origins = Origins::new(&["https://app.example"]).unwrap();
        let check = |origins_given: &[&'static str], sites: &[&'static str]| {
            let host = Authority::from_static("volley:8420");
            let mut headers = HeaderMap::new();
            for origin in origins_given {
                headers.append(header::ORIGIN, HeaderValue::from_static(origin));
            }
            for site in sites {
                headers.append(FETCH_SITE, HeaderValue::from_static(site));
            }
            origins.check(&headers, &host).is_ok()
        };
        let (named, own) = (&["https://app.example"][..], &["http://volley:8420"][..]);
        assert!(check(&[], &[]), "no browser");
        assert!(check(&[], &["none"]), "a person");
        for sites in [&[][..], &["same-origin"]] {
            assert!(check(own, sites) && check(named, sites), "{sites:?}");
        }
        assert!(check(named, &["cross-site"]) && check(named, &["same-site"]));
        for bad in [
            "http://volley:8421",
            "http://volley",
            "https://app.example.evil",
            "http://app.example",
            "null",
            "",
        ] {
            assert!(!check(&[bad], &[]) && !check(&[bad], &["none"]), "{bad}");
        }
        for bad in ["cross-site", "same-site", "Same-Origin", ""] {
            assert!(!check(&[], &[bad]) && !check(own, &[bad]), "{bad}");
        }
        assert!(!check(&[], &["same-origin", "cross-site"]));
        assert!(!check(&["https://app.example", "https://evil"], &[]));
    }
}
