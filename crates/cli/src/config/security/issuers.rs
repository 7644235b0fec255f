//! `[[security.issuers]]`: accepted identity providers.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use futures::FutureExt;
use volley_config::Issuer;
use volley_security::token::{ClaimRules, FetchKeys, IssuerConfig, Issuers, KeySource};
use volley_types::{ErrorCode, PredictError, Role};

/// Maximum size of an issuer's key set, in bytes.
const MAX_KEYS_BYTES: usize = 1 << 20;

/// The configured issuers, if any.
///
/// # Errors
/// When a section contradicts itself, or when a file contains no keys.
pub(super) fn load(sections: Vec<Issuer>) -> anyhow::Result<Option<Arc<Issuers>>> {
    let configs = sections.into_iter().map(read);
    let configs: Vec<_> = configs.collect::<Result<_, _>>()?;
    if configs.is_empty() {
        return Ok(None);
    }
    let issuers = Issuers::new(configs)
        .map_err(|error| anyhow::anyhow!("'security.issuers': {}", error.chain()))?;
    Ok(Some(Arc::new(issuers)))
}

/// Fetches the keys of an issuer over HTTP.
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

fn read(written: Issuer) -> anyhow::Result<IssuerConfig> {
    let issuer = written.issuer;
    let keys = match (written.jwks_url, written.jwks_file) {
        (Some(url), None) => {
            ensure!(
                url.starts_with("https://") || is_loopback(&url),
                "'security.issuers': 'jwks_url' of '{issuer}' must be https: anyone who can \
                 change the response can create valid tokens"
            );
            KeySource::Url(url)
        }
        (None, Some(file)) => KeySource::File(file),
        _ => bail!("'security.issuers': '{issuer}' needs either 'jwks_url' or 'jwks_file'"),
    };
    let roles = written.roles.into_iter().map(|(value, role)| {
        let known = Role::from_name(&role);
        let role = known.with_context(|| {
            let names = Role::ALL.map(Role::as_str).join(", ");
            format!("'security.issuers': '{role}' is not a role; the roles are {names}")
        })?;
        Ok((value, role))
    });
    Ok(IssuerConfig {
        rules: ClaimRules {
            roles_claim: written.roles_claim,
            roles: roles.collect::<anyhow::Result<_>>()?,
            tenant_claim: written.tenant_claim,
            models_claim: written.models_claim,
        },
        issuer,
        audience: written.audience,
        algorithms: written.algorithms,
        keys,
    })
}

fn is_loopback(url: &str) -> bool {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    let authority = rest.split('/').next().unwrap_or_default();
    super::is_local(authority)
}
