//! `[[security.issuers]]`: identity providers whose tokens are taken.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use futures::FutureExt;
use serde::Deserialize;
use volley_security::token::{ClaimRules, FetchKeys, IssuerConfig, Issuers, KeySource};
use volley_types::{ErrorCode, PredictError, Role};

/// No issuer has so many keys that they take more.
const MAX_KEYS_BYTES: usize = 1 << 20;

/// One of them, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerSection {
    /// The `iss` of its tokens, compared exactly.
    issuer: String,
    /// A value that must be in the tokens' `aud`.
    audience: String,
    /// URL of the provider's keys: HTTPS, or HTTP on a loopback address. Set either this or
    /// `jwks_file`.
    jwks_url: Option<String>,
    /// File with the provider's keys.
    jwks_file: Option<PathBuf>,
    /// Accepted signature algorithms: `RS256`, `PS256`, `ES256` and their longer variants, or
    /// `EdDSA`.
    /// Default: `["RS256", "ES256"]`
    #[serde(default = "algorithms")]
    algorithms: Vec<String>,
    /// Claim with the caller's roles; the strongest one counts. Dots separate nested names.
    /// Default: `"volley_role"`
    #[serde(default = "roles_claim")]
    roles_claim: String,
    /// Table from values of that claim to roles. Without it, the values are the names of roles.
    #[serde(default)]
    roles: BTreeMap<String, String>,
    /// Claim with the caller's tenant.
    tenant_claim: Option<String>,
    /// Claim with the models that the caller may use: names, or prefixes such as `team-a.*`.
    /// Default: the models of the tenant
    models_claim: Option<String>,
}

/// What nearly every provider signs with.
fn algorithms() -> Vec<String> {
    vec!["RS256".to_owned(), "ES256".to_owned()]
}

fn roles_claim() -> String {
    "volley_role".to_owned()
}

/// The issuers that are written there, if any.
///
/// # Errors
/// When one contradicts itself, or its file holds no keys.
pub(super) fn load(sections: Vec<IssuerSection>) -> anyhow::Result<Option<Arc<Issuers>>> {
    let configs = sections.into_iter().map(IssuerSection::read);
    let configs: Vec<_> = configs.collect::<Result<_, _>>()?;
    if configs.is_empty() {
        return Ok(None);
    }
    let issuers = Issuers::new(configs)
        .map_err(|error| anyhow::anyhow!("'security.issuers': {}", error.chain()))?;
    Ok(Some(Arc::new(issuers)))
}

/// Fetches an issuer's keys.
pub(super) fn fetch() -> FetchKeys {
    Arc::new(|url| {
        async move {
            let fetched = volley_client::fetch(&url, MAX_KEYS_BYTES).await;
            fetched.map_err(|error| {
                let message = "an issuer's keys could not be fetched";
                PredictError::new(ErrorCode::Unavailable, message)
                    .with_source(format!("{url}: {:#}", anyhow::Error::from(error)))
            })
        }
        .boxed()
    })
}

impl IssuerSection {
    fn read(self) -> anyhow::Result<IssuerConfig> {
        let issuer = self.issuer;
        let keys = match (self.jwks_url, self.jwks_file) {
            (Some(url), None) => {
                ensure!(
                    url.starts_with("https://") || is_loopback(&url),
                    "'security.issuers': 'jwks_url' of '{issuer}' must be https: whoever can \
                     change its answer can let in anybody"
                );
                KeySource::Url(url)
            }
            (None, Some(file)) => KeySource::File(file),
            _ => bail!("'security.issuers': '{issuer}' needs either 'jwks_url' or 'jwks_file'"),
        };
        let roles = self.roles.into_iter().map(|(value, role)| {
            let known = Role::from_name(&role);
            let role = known.with_context(|| {
                let names = Role::ALL.map(Role::as_str).join(", ");
                format!("'security.issuers': '{role}' is no role; there are {names}")
            })?;
            Ok((value, role))
        });
        Ok(IssuerConfig {
            rules: ClaimRules {
                roles_claim: self.roles_claim,
                roles: roles.collect::<anyhow::Result<_>>()?,
                tenant_claim: self.tenant_claim,
                models_claim: self.models_claim,
            },
            issuer,
            audience: self.audience,
            algorithms: self.algorithms,
            keys,
        })
    }
}

fn is_loopback(url: &str) -> bool {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let authority = rest.split('/').next().unwrap_or_default();
    super::is_local(authority)
}
