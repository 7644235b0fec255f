//! Secrets of connectors. A worker reads them for each call and does not keep them.

mod keys;

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use tokio::io::AsyncReadExt;
use volley_types::registry::{CredentialRef, OpenSecret};
use volley_types::{ErrorCode, PredictError};

pub use crate::credential::keys::SigningKeys;

/// Maximum length of a secret in bytes, in case the file is endless.
const MAX_BYTES: u64 = 64 << 10;

/// A secret. `Debug` does not show it.
#[derive(Clone)]
pub enum Secret {
    /// A token for a header.
    Text(String),
    /// Keys for signing requests.
    Keys(SigningKeys),
}

/// Suffixes of the environment variables of AWS keys.
const KEY_VARIABLES: [&str; 3] = ["ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"];

/// Opens sealed secrets; `None` on a worker without the master key.
#[derive(Clone, Default)]
pub struct Opener(pub Option<Arc<dyn OpenSecret>>);

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener(..)")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Reads the secret at `reference`. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable`. The message names the kind of reference, but no variable or path. Another
    /// worker may have the secret, and the caller cannot correct the reference.
    pub async fn read(reference: &CredentialRef, opener: &Opener) -> Result<Self, PredictError> {
        read_text(reference, opener).await.map(Self::Text)
    }

    /// Reads the signing keys at `reference`: a variable `…ACCESS_KEY_ID` and those with the same
    /// prefix, or one text with all keys. Any other text is a bearer token. Cancel safe.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub async fn read_keys(
        reference: &CredentialRef,
        opener: &Opener,
    ) -> Result<Self, PredictError> {
        let text = read_text(reference, opener).await?;
        let [access, secret, token] = KEY_VARIABLES;
        let prefix = match reference {
            CredentialRef::Env(name) => name.strip_suffix(access),
            _ => None,
        };
        let Some(prefix) = prefix else {
            return Ok(SigningKeys::parse(&text).map_or(Self::Text(text), Self::Keys));
        };
        let beside = |name: &str| std::env::var(format!("{prefix}{name}")).ok();
        let (secret, token) = (beside(secret), beside(token));
        let keys = secret.and_then(|secret| SigningKeys::of(&text, &secret, token.as_deref()));
        keys.map(Self::Keys).ok_or_else(|| {
            unreadable(
                "this worker has the variable of its access key, but not the one of its secret key",
            )
        })
    }

    /// The header value of a token, marked as sensitive so that it is not logged. `None` for
    /// signing keys.
    ///
    /// # Errors
    /// `InvalidInput` if the secret has characters that headers do not allow.
    pub fn header(&self, prefix: &str) -> Result<Option<HeaderValue>, PredictError> {
        let Self::Text(text) = self else {
            return Ok(None);
        };
        let mut value = HeaderValue::from_str(&format!("{prefix}{text}")).map_err(|_| {
            PredictError::invalid(
                "the connector's credential has characters that are not allowed in a header",
            )
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Removes the secret of a call, if any, from `text`.
    #[must_use]
    pub fn redacted(secret: Option<&Self>, text: &str) -> String {
        secret.map_or_else(|| text.to_owned(), |secret| secret.redact(text))
    }

    /// Removes the secret from `text`, because servers may repeat it in their errors.
    pub fn redact(&self, text: &str) -> String {
        match self {
            Self::Text(secret) => text.replace(secret, "[redacted]"),
            Self::Keys(keys) => {
                let parts = [Some(&keys.secret_key), keys.session_token.as_ref()];
                let parts = parts.into_iter().flatten();
                parts.fold(text.to_owned(), |text, part| {
                    text.replace(part.as_str(), "[redacted]")
                })
            }
        }
    }
}

async fn read_text(reference: &CredentialRef, opener: &Opener) -> Result<String, PredictError> {
    let (value, what) = match reference {
        CredentialRef::Env(name) => (std::env::var(name).ok(), "environment variable"),
        CredentialRef::File(path) => (read_file(path).await, "file"),
        CredentialRef::Secret(name) => {
            return Err(unreadable(&format!("the cluster has no secret '{name}'")));
        }
        CredentialRef::Sealed(name, sealed) => match &opener.0 {
            Some(opener) => {
                let opened = opener.open(name, sealed);
                (
                    Some(opened.map_err(|error| unreadable(&error.message))?),
                    "secret",
                )
            }
            None => return Err(unreadable("this worker has no 'security.master_key_files'")),
        },
    };
    let value = value
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty());
    value.ok_or_else(|| unreadable(&format!("its {what} is missing or empty on this worker")))
}

/// Logs and returns the error for an unreadable credential. It is specific to this worker, so that
/// the request may go to another one.
fn unreadable(why: &str) -> PredictError {
    let message = format!("the connector's credential cannot be read: {why}");
    tracing::warn!("{message}");
    PredictError::new(ErrorCode::Unavailable, message)
}

async fn read_file(path: &str) -> Option<String> {
    // Only regular files: a pipe, for example, may be endless.
    if !tokio::fs::metadata(path).await.ok()?.is_file() {
        return None;
    }
    let file = tokio::fs::File::open(path).await.ok()?;
    let mut text = String::new();
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text).await;
    (read.ok()? as u64 <= MAX_BYTES).then_some(text)
}

#[cfg(test)]
mod tests;
