//! Whose errors are whose.

use url::Url;
use volley_types::PredictError;
use volley_types::registry::ConnectorSpec;

/// An error that tells which connector it came from, and what it calls.
pub fn named(mut error: PredictError, connector: &ConnectorSpec) -> PredictError {
    let url = Url::parse(&connector.url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or("unknown");
    let id = &connector.id;
    error.message = format!("{} (connector '{id}', host {host})", error.message);
    error
}
