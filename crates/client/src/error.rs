//! What can go wrong with a call.

use std::time::Duration;

use serde::Deserialize;

/// What can go wrong with a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A base URL is malformed, or there is none.
    #[error("'{0}' is not the URL of a coordinator; an example is http://127.0.0.1:8420")]
    Url(String),
    /// The API key cannot be sent.
    #[error("the API key has characters that are not allowed in a key")]
    Key,
    /// The HTTP client could not be made.
    #[error("the HTTP client could not be set up")]
    Setup(#[source] reqwest::Error),
    /// No coordinator accepted a connection.
    #[error("no coordinator answers at {0}")]
    Connect(String, #[source] reqwest::Error),
    /// The connection broke, or the answer was not what it should be.
    #[error("the connection to the coordinator broke, or its answer was malformed")]
    Broken(#[source] reqwest::Error),
    /// The call took too long.
    #[error("the coordinator did not answer in time")]
    Timeout,
    /// The cluster refused or failed.
    #[error("{reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error code's stable name, for example `not_deployed`; empty where the answer
        /// has none.
        code: String,
        /// What was wrong and what to do.
        reason: String,
        /// When to try again, where the cluster says so.
        retry_after: Option<Duration>,
    },
    /// There is more than was to be read.
    #[error("the answer is over the client's size limit")]
    TooLarge,
    /// A stream ended without its last event.
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
                format!("the coordinator answered with status {status}"),
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
