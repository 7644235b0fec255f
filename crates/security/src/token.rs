//! Authentication with tokens of an identity provider (JSON Web Token, RFC 7519; OpenID Connect)
//! instead of API keys.
//!
//! The configuration pins the algorithms of an issuer; the header of a token cannot select another
//! one. Only public-key algorithms are allowed. The keys come from a file or from the provider's
//! URL (a JWK Set, RFC 7517), never from the token.

mod keys;
mod provider;
mod rules;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use volley_types::{ErrorCode, PredictError};

use self::keys::Source;
pub use self::rules::ClaimRules;
use crate::Principal;

/// Maximum clock difference to the issuer, in seconds.
const LEEWAY_S: u64 = 60;

/// Fetches a URL. The implementation must limit the size of the response.
pub type FetchKeys =
    Arc<dyn Fn(String) -> BoxFuture<'static, Result<Vec<u8>, PredictError>> + Send + Sync>;

/// The location of an issuer's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file, reloaded when it changes.
    File(PathBuf),
    /// A URL, fetched every five minutes and when a token names an unknown key.
    Url(String),
}

/// An accepted identity provider.
#[derive(Clone, Debug)]
pub struct IssuerConfig {
    /// The exact value of the claim `iss` of its tokens.
    pub issuer: String,
    /// Required audience (`aud`) of tokens.
    pub audience: String,
    /// Allowed algorithms by their names in RFC 7518: RSA, ECDSA and EdDSA.
    pub algorithms: Vec<String>,
    /// The location of its public keys.
    pub keys: KeySource,
    /// Rules for the rights of its tokens.
    pub rules: ClaimRules,
}

/// The identity providers of a cluster.
#[derive(Debug)]
pub struct Issuers(Vec<Issuer>);

#[derive(Debug)]
struct Issuer {
    name: String,
    algorithms: Vec<Algorithm>,
    validation: Validation,
    source: Source,
    rules: ClaimRules,
}

impl Issuers {
    /// Creates the issuers of `configs`. Reads keys from files.
    ///
    /// # Errors
    /// `InvalidInput` when an algorithm is not allowed, or a file has no keys.
    pub fn new(configs: Vec<IssuerConfig>) -> Result<Self, PredictError> {
        provider::install();
        configs
            .into_iter()
            .map(Issuer::new)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether no issuer is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `presented` has the form of a token.
    #[must_use]
    pub fn is_token(presented: &str) -> bool {
        let mut parts = presented.split('.');
        let mut part = || parts.next().is_some_and(|part| !part.is_empty());
        part() && part() && part() && parts.next().is_none()
    }

    /// Validates a token and returns its principal.
    ///
    /// # Errors
    /// `Unauthenticated` when the token is not valid, `PermissionDenied` when it is valid but
    /// grants no rights in this cluster, `Unavailable` while the issuer's keys are not available.
    pub fn identify(&self, token: &str) -> Result<Principal, PredictError> {
        #[derive(Deserialize)]
        struct IssuerClaim {
            iss: String,
        }
        let named: IssuerClaim =
            insecure_decode_claims(token).map_err(|_| invalid("it is malformed"))?;
        let issuer = self.0.iter().find(|issuer| issuer.name == named.iss);
        issuer
            .ok_or_else(|| invalid("its issuer is not one of this cluster's"))?
            .identify(token)
    }

    /// Refreshes the keys of all issuers, forever. Cancel safe.
    pub async fn keep_fresh(self: Arc<Self>, fetch: FetchKeys, interval: Duration) {
        join_all(
            self.0
                .iter()
                .map(|issuer| issuer.source.keep_fresh(&fetch, interval)),
        )
        .await;
    }
}

impl Issuer {
    fn new(config: IssuerConfig) -> Result<Self, PredictError> {
        let algorithms = config.algorithms.iter().map(|name| algorithm(name));
        let algorithms: Vec<_> = algorithms.collect::<Result<_, _>>()?;
        let first = algorithms.first().copied();
        let first = first.ok_or_else(|| PredictError::invalid("an issuer needs an algorithm"))?;
        let mut validation = Validation::new(first);
        validation.leeway = LEEWAY_S;
        validation.validate_nbf = true;
        validation.set_issuer(&[&config.issuer]);
        validation.set_audience(&[&config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        Ok(Self {
            source: Source::open(config.keys)?,
            name: config.issuer,
            algorithms,
            validation,
            rules: config.rules,
        })
    }

    fn identify(&self, token: &str) -> Result<Principal, PredictError> {
        let header = decode_header(token).map_err(|_| invalid("its header is malformed"))?;
        if !self.algorithms.contains(&header.alg) {
            return Err(invalid("its algorithm is not allowed"));
        }
        // RFC 7515, section 4.1.11: unsupported critical extensions.
        if header.crit.is_some() {
            return Err(invalid("its header has an unknown critical extension"));
        }
        let keys = self.source.current().ok_or_else(keys_unknown)?;
        let Some(key) = keys.find(header.kid.as_deref(), header.alg) else {
            self.source.look_again();
            return Err(invalid("its issuer has no such key"));
        };
        let mut validation = self.validation.clone();
        validation.algorithms = vec![header.alg];
        let decoded = decode::<Map<String, Value>>(token, key, &validation);
        let claims = decoded.map_err(|error| invalid(reason(&error)))?.claims;
        self.rules.principal(&self.name, &claims)
    }
}

/// The algorithm with this name, if allowed. Shared-secret algorithms are not: a verifier with the
/// secret could also create tokens.
fn algorithm(name: &str) -> Result<Algorithm, PredictError> {
    let named = name.parse().ok();
    named
        .filter(|algorithm| provider::verifies(*algorithm))
        .ok_or_else(|| {
            PredictError::invalid(
                "an issuer's algorithms may be RS256, RS384, RS512, PS256, PS384, PS512, ES256, \
                 ES384 and EdDSA",
            )
        })
}

fn reason(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::ExpiredSignature => "it has expired",
        ErrorKind::ImmatureSignature => "it is not valid yet",
        ErrorKind::InvalidAudience => "it is for another audience",
        ErrorKind::InvalidAlgorithm => "its key does not match its algorithm",
        ErrorKind::MissingRequiredClaim(_) => "it lacks one of the claims exp, iss, aud and sub",
        _ => "its signature or its format is wrong",
    }
}

fn invalid(why: &str) -> PredictError {
    let message = format!("the token is not valid: {why}");
    PredictError::new(ErrorCode::Unauthenticated, message)
}

fn keys_unknown() -> PredictError {
    let message = "the keys of the token's issuer could not be fetched yet; try again shortly";
    PredictError::new(ErrorCode::Unavailable, message).with_retry_after(Duration::from_secs(5))
}

#[cfg(test)]
mod tests;
