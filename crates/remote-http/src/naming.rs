//! Adds the connector to error messages.

use url::Url;
use volley_types::PredictError;
use volley_types::registry::ConnectorSpec;

/// Appends the connector's id and host to the message of an error.
pub fn named(mut error: PredictError, connector: &ConnectorSpec) -> PredictError {
    let url = Url::parse(&connector.url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or("unknown");
    let id = &connector.id;
    error.message = format!("{} (connector '{id}', host {host})", error.message);
    error
}
