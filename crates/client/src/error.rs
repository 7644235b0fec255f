//! Errors of calls.

use std::time::Duration;

use serde::Deserialize;

/// An error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A base URL is malformed, or no URL was given.
    #[error("'{0}' is not the URL of a coordinator; an example is http://127.0.0.1:8420")]
    Url(String),
    /// The API key contains characters that are not allowed in a header.
    #[error("the API key has characters that are not allowed in a key")]
    Key,
    /// The HTTP client could not be created, for example because of a malformed certificate.
    #[error("the HTTP client could not be set up")]
    Setup(#[source] reqwest::Error),
    /// No coordinator accepted a connection.
    #[error("no coordinator is reachable at {0}")]
    Connect(String, #[source] reqwest::Error),
    /// The connection broke, or the response was malformed.
    #[error("the connection to the coordinator broke, or its response was malformed")]
    Broken(#[source] reqwest::Error),
    /// The call exceeded its time limit. It may still take effect.
    #[error("the coordinator did not respond in time")]
    Timeout,
    /// The cluster rejected the call, or it failed.
    #[error("{reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable name of the error code, for example `not_deployed`; empty if the response has
        /// none.
        code: String,
        /// What was wrong, and what to do.
        reason: String,
        /// How long to wait before a retry, if the cluster specifies it.
        retry_after: Option<Duration>,
    },
    /// The response is larger than the requested limit.
    #[error("the response exceeds the client's size limit")]
    TooLarge,
    /// A stream ended without its terminal event.
    #[error("the stream ended without a terminal event; the response may be incomplete")]
    Incomplete,
}

#[derive(Deserialize)]
struct Body {
    error: Cause,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cause {
    Full {
        reason: String,
        #[serde(default)]
        code: String,
    },
    Plain(String),
}

impl ClientError {
    pub(crate) fn from_body(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let (code, reason) = match serde_json::from_slice::<Body>(body) {
            Ok(Body {
                error: Cause::Full { reason, code },
            }) => (code, reason),
            Ok(Body {
                error: Cause::Plain(reason),
            }) => (String::new(), reason),
            Err(_) => (
                String::new(),
                format!("the coordinator responded with status {status}"),
            ),
        };
        Self::Refused {
            status,
            code,
            reason,
            retry_after,
        }
    }
}
