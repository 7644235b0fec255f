//! Connectors: address and wire format of a remote model.

mod policy;
mod provider;

use std::collections::BTreeMap;

pub use self::policy::{ConnectorEndpoint, ConnectorPolicy};
pub use self::provider::ProviderName;

use super::secret::SealedSecret;
use crate::ids::{ConnectorId, SecretName};
use crate::params::Parameters;

/// Reference to a secret. Plain secrets are never replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialRef {
    /// An environment variable of the worker's process: `env:NAME`.
    Env(String),
    /// A file on the worker, which is read at each use without surrounding white space:
    /// `file:/path`.
    File(String),
    /// A sealed secret in the registry: `secret:NAME`.
    Secret(SecretName),
    /// The sealed secret as sent to a worker, which opens it with its master key.
    Sealed(SecretName, Box<SealedSecret>),
}

impl ConnectorSpec {
    /// The credentials of the connector and of all its endpoints.
    pub fn credentials(&self) -> impl Iterator<Item = &CredentialRef> {
        let endpoints = self.policy.endpoints.iter();
        let endpoints = endpoints.filter_map(|endpoint| endpoint.credential.as_ref());
        self.credential.iter().chain(endpoints)
    }

    /// As [`ConnectorSpec::credentials`], mutable.
    pub fn credentials_mut(&mut self) -> impl Iterator<Item = &mut CredentialRef> {
        let endpoints = self.policy.endpoints.iter_mut();
        let endpoints = endpoints.filter_map(|endpoint| endpoint.credential.as_mut());
        self.credential.iter_mut().chain(endpoints)
    }

    /// Whether a credential references the secret.
    #[must_use]
    pub fn names_secret(&self, secret: &SecretName) -> bool {
        let mut credentials = self.credentials();
        credentials
            .any(|credential| matches!(credential, CredentialRef::Secret(name) if name == secret))
    }
}

/// The definition of a remote model.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectorSpec {
    /// The connector's id.
    pub id: ConnectorId,
    /// Display name.
    pub name: String,
    /// The wire format.
    pub provider: ProviderName,
    /// The full URL to POST to, for example `https://host/v1/chat/completions`.
    pub url: String,
    /// Name of the model at the upstream.
    pub model: String,
    /// The credential, if the upstream needs one.
    pub credential: Option<CredentialRef>,
    /// Headers to add; values must not contain secrets.
    pub headers: BTreeMap<String, String>,
    /// Default request parameters; those of a request take precedence.
    pub parameters: Parameters,
    /// A body template with `${parameters.x}`, if the provider's own body is not suitable.
    pub request_body: Option<String>,
    /// Limits, retries and endpoints.
    pub policy: ConnectorPolicy,
}
