//! HTTP clients for the stores, with timeouts, size limits and rules about allowed addresses.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Attempt, Policy};
use volley_types::PredictError;
use volley_types::address::may_be_called;
use volley_types::egress::EgressPolicy;
use volley_types::registry::{CredentialRef, ModelUrl, ModelUrlScheme};

use crate::ArtifactConfig;

/// Maximum bytes of an error body that are read.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 5;

/// Creates the HTTP clients of one store.
#[derive(Debug)]
pub(crate) struct ClientFactory {
    connect_timeout: Duration,
    stall_timeout: Duration,
    headers: HeaderMap,
    /// Set if the model's URL determines the called address. The endpoints of buckets and of their
    /// credential providers are the worker's own configuration and are not restricted.
    rules: Option<Rules>,
}

/// The rules about addresses that a client may call.
#[derive(Clone, Debug)]
struct Rules {
    allow: Option<Vec<ModelUrl>>,
    allow_private: bool,
    https_only: bool,
}

/// The address may not be called.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("this worker may not call this address")]
pub(crate) struct ForbiddenAddress;

/// A redirect that is not followed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the server answered with a redirect")]
pub(crate) struct RedirectRejected;

impl ClientFactory {
    pub(crate) fn new(url: &ModelUrl, config: &ArtifactConfig) -> Result<Self, PredictError> {
        let mut headers = HeaderMap::new();
        if let Some(token) = config.token(url) {
            headers.insert(header::AUTHORIZATION, bearer(token)?);
        }
        let is_http = matches!(url.scheme(), ModelUrlScheme::Http | ModelUrlScheme::Https);
        let rules = is_http.then(|| Rules {
            allow: config.allow.clone(),
            allow_private: config.allow_private,
            https_only: url.scheme() == ModelUrlScheme::Https,
        });
        Ok(Self {
            connect_timeout: config.connect_timeout,
            stall_timeout: config.stall_timeout,
            headers,
            rules,
        })
    }
}

/// Reads a token from its configured place.
fn bearer(token: &CredentialRef) -> Result<HeaderValue, PredictError> {
    let missing = |what: &str| {
        PredictError::invalid(format!(
            "the token for the model's server is missing on this worker ({what})"
        ))
    };
    let secret = match token {
        CredentialRef::Env(name) => {
            std::env::var(name).map_err(|_| missing("an environment variable"))?
        }
        CredentialRef::File(path) => {
            std::fs::read_to_string(path).map_err(|error| missing("a file").with_source(error))?
        }
        // The configuration cannot contain these variants.
        CredentialRef::Secret(_) | CredentialRef::Sealed(..) => return Err(missing("a secret")),
    };
    let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.trim()))
        .map_err(|_| missing("the value is not a token"))?;
    value.set_sensitive(true);
    Ok(value)
}

impl HttpConnector for ClientFactory {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |error: reqwest::Error| object_store::Error::Generic {
            store: "HTTP",
            source: Box::new(error),
        };
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let mut client = reqwest::Client::builder()
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.stall_timeout)
            .default_headers(self.headers.clone())
            .user_agent(concat!("volley/", env!("CARGO_PKG_VERSION")))
            // Sizes and hashes refer to the stored bytes, not to decoded ones.
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .https_only(allows_http.as_deref() != Some("true"));
        client = match options.get_config_value(&ClientConfigKey::ProxyUrl) {
            Some(proxy) => client.proxy(reqwest::Proxy::all(proxy).map_err(failed)?),
            None => client.no_proxy(),
        };
        client = match self.rules.clone() {
            Some(rules) => client
                .dns_resolver(Resolver(rules.allow_private))
                .redirect(Policy::custom(move |attempt| rules.follow(attempt))),
            None => client.redirect(Policy::none()),
        };
        let client = client.build().map_err(failed)?;
        let rules = self.rules.clone();
        Ok(HttpClient::new(BoundedClient { client, rules }))
    }
}

impl Rules {
    /// Decides about a redirect. `reqwest` removes sensitive headers when the host changes.
    fn follow(&self, attempt: Attempt<'_>) -> reqwest::redirect::Action {
        if attempt.previous().len() > MAX_REDIRECTS {
            return attempt.error(RedirectRejected);
        }
        let url = attempt.url();
        let is_scheme = url.scheme() == "https" || (url.scheme() == "http" && !self.https_only);
        let has_user = !url.username().is_empty() || url.password().is_some();
        let is_listed = self.allow.as_ref().is_none_or(|allow| {
            allow
                .iter()
                .any(|prefix| url.as_str().starts_with(prefix.as_str()))
        });
        let may = url.host_str().is_some_and(|host| self.allows_host(host));
        if is_scheme && !has_user && is_listed && may {
            attempt.follow()
        } else {
            attempt.error(ForbiddenAddress)
        }
    }

    /// Checks addresses that are written literally, in any spelling: they are never resolved. Host
    /// names are checked by [`Resolver`].
    fn allows_host(&self, host: &str) -> bool {
        let policy = EgressPolicy {
            allow_private: self.allow_private,
            allowed_hosts: None,
        };
        let host = match host.contains(':') && !host.starts_with('[') {
            true => format!("[{host}]"),
            false => host.to_owned(),
        };
        policy.check("the host", &format!("http://{host}/")).is_ok()
    }

    fn allows(&self, uri: &Uri) -> bool {
        uri.host().is_some_and(|host| self.allows_host(host))
    }
}

/// Resolves names with the system's resolver and removes forbidden addresses.
#[derive(Clone, Copy, Debug)]
struct Resolver(bool);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self(allow_private) = *self;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| may_be_called(address.ip(), allow_private))
                .collect();
            if allowed.is_empty() {
                return Err(ForbiddenAddress.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// A client that limits the size of error bodies and checks addresses.
#[derive(Debug)]
struct BoundedClient {
    client: reqwest::Client,
    rules: Option<Rules>,
}

#[async_trait]
impl HttpService for BoundedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Marks both errors as not retryable.
        let never = |error: HttpError| match (
            cause::<ForbiddenAddress>(&error),
            cause::<RedirectRejected>(&error),
        ) {
            (Some(_), _) => HttpError::new(HttpErrorKind::Unknown, ForbiddenAddress),
            (_, Some(_)) => HttpError::new(HttpErrorKind::Unknown, RedirectRejected),
            _ => error,
        };
        if self
            .rules
            .as_ref()
            .is_some_and(|rules| !rules.allows(request.uri()))
        {
            return Err(HttpError::new(HttpErrorKind::Unknown, ForbiddenAddress));
        }
        let in_full = self.rules.is_some().then(|| in_full(&request)).flatten();
        let mut response = self.client.call(request).await.map_err(never)?;
        if let Some(in_full) = in_full.filter(|_| refuses_heads(response.status())) {
            let (parts, _) = self.client.call(in_full).await.map_err(never)?.into_parts();
            response = HttpResponse::from_parts(parts, Bytes::new().into());
        }
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
            return Err(HttpError::new(HttpErrorKind::Unknown, RedirectRejected));
        }
        let (mut parts, body) = response.into_parts();
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            // The partial file does not fit the object: the same error as for a changed ETag.
            parts.status = StatusCode::PRECONDITION_FAILED;
        }
        let body = Limited::new(body, MAX_ERROR_BODY);
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Unknown, error));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

/// The GET request for a HEAD request, because both have the same response headers. `None` for
/// other methods.
fn in_full(request: &HttpRequest) -> Option<HttpRequest> {
    let asks = request.method() == Method::HEAD;
    asks.then(|| {
        let mut all = HttpRequest::new(HttpRequestBody::empty());
        *all.uri_mut() = request.uri().clone();
        *all.headers_mut() = request.headers().clone();
        all
    })
}

/// Whether a status may mean that the server, or a proxy before it, only rejects HEAD requests.
fn refuses_heads(status: StatusCode) -> bool {
    [
        StatusCode::BAD_REQUEST,
        StatusCode::FORBIDDEN,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::NOT_IMPLEMENTED,
    ]
    .contains(&status)
}

/// The first error of type `T` in the cause chain.
pub(crate) fn cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
