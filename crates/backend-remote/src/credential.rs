//! Secrets: read where they are used, on the worker, each time.

use std::fmt;

use http::HeaderValue;
use tokio::io::AsyncReadExt;
use volley_types::PredictError;
use volley_types::registry::CredentialRef;

/// The longest secret, in bytes: a reference to something endless must not fill memory.
const MAX_BYTES: u64 = 64 << 10;

/// A secret. It shows itself to nobody but the header that it goes into.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Reads what `reference` names.
    ///
    /// # Errors
    /// `InvalidInput` that says which kind of reference leads nowhere, and not where.
    pub(crate) async fn read(reference: &CredentialRef) -> Result<Self, PredictError> {
        let (value, what) = match reference {
            CredentialRef::Env(name) => (std::env::var(name).ok(), "environment variable"),
            CredentialRef::File(path) => (read_file(path).await, "file"),
        };
        let value = value
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty());
        value.map(Self).ok_or_else(|| {
            PredictError::invalid(format!(
                "the connector's credential cannot be read: its {what} is missing or empty on \
                 this worker"
            ))
        })
    }

    /// A header value, marked so that it is never logged.
    ///
    /// # Errors
    /// `InvalidInput` when the secret cannot stand in a header.
    pub(crate) fn header(&self, prefix: &str) -> Result<HeaderValue, PredictError> {
        let mut value = HeaderValue::from_str(&format!("{prefix}{}", self.0)).map_err(|_| {
            PredictError::invalid(
                "the connector's credential has characters that no header can carry",
            )
        })?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// `text` with the secret taken out, should a server repeat it.
    pub(crate) fn redact(&self, text: &str) -> String {
        text.replace(&self.0, "[redacted]")
    }
}

async fn read_file(path: &str) -> Option<String> {
    // Anything but a regular file, as a pipe, might never end.
    if !tokio::fs::metadata(path).await.ok()?.is_file() {
        return None;
    }
    let file = tokio::fs::File::open(path).await.ok()?;
    let mut text = String::new();
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text).await;
    (read.ok()? as u64 <= MAX_BYTES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_is_read_trimmed_and_never_shown() {
        let path = std::env::temp_dir().join(format!("volley-secret-{}", std::process::id()));
        std::fs::write(&path, " sk-canary\n").unwrap();
        let reference = CredentialRef::File(path.to_string_lossy().into_owned());
        let secret = Secret::read(&reference).await.unwrap();
        std::fs::remove_file(&path).unwrap();
        let header = secret.header("Bearer ").unwrap();
        assert_eq!(header.as_bytes(), b"Bearer sk-canary");
        assert!(!format!("{secret:?}{header:?}").contains("canary"));
        assert_eq!(secret.redact("bad key sk-canary"), "bad key [redacted]");
        let error = Secret::read(&reference).await.unwrap_err();
        assert!(error.message.contains("file") && !error.message.contains("secret-"));
        let endless = CredentialRef::File("/dev/zero".to_owned());
        assert!(Secret::read(&endless).await.is_err());
    }
}
