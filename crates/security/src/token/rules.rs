//! The rights of a valid token, derived from its claims.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use volley_types::{ErrorCode, ModelScope, PredictError, Role, TenantId};

use crate::Principal;

/// Maximum length of a subject in logs.
const MAX_SUBJECT: usize = 128;

/// Claims that define the rights of a token. A configured claim is required in the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRules {
    /// The claim with roles or groups: a string or an array of strings. A dotted path selects a
    /// nested claim.
    pub roles_claim: String,
    /// Mapping of claim values to roles; if empty, the values are role names.
    pub roles: BTreeMap<String, Role>,
    /// The claim with the tenant.
    pub tenant_claim: Option<String>,
    /// The claim with the models, in the form of a key's models. If not configured, all models of
    /// the tenant.
    pub models_claim: Option<String>,
}

impl ClaimRules {
    /// The principal that the claims describe.
    pub(super) fn principal(
        &self,
        issuer: &str,
        claims: &Map<String, Value>,
    ) -> Result<Principal, PredictError> {
        let values = texts(claims, &self.roles_claim)?;
        let roles = values.iter().filter_map(|value| self.role(value));
        // The strongest of the roles in the claim.
        let role = roles.max().ok_or_else(|| {
            denied(format!(
                "the token's claim '{}' has no role of this cluster",
                self.roles_claim
            ))
        })?;
        let tenant = match &self.tenant_claim {
            None => TenantId::default(),
            Some(claim) => match texts(claims, claim)?.as_slice() {
                [tenant] => TenantId::new(*tenant)?,
                _ => {
                    return Err(denied(format!(
                        "the token's claim '{claim}' must be one text"
                    )));
                }
            },
        };
        let models = match &self.models_claim {
            // As for keys: the default is the scope of the tenant, and all models for a cluster
            // administrator.
            None if role == Role::ClusterAdmin => ModelScope::default(),
            None => ModelScope::of_tenant(&tenant),
            Some(claim) => {
                let patterns = texts(claims, claim)?;
                if patterns.is_empty() {
                    return Err(denied(format!("the token's claim '{claim}' has no model")));
                }
                ModelScope::read(patterns)?
            }
        };
        let subject = claims.get("sub").and_then(Value::as_str);
        let subject = subject.unwrap_or_default().chars();
        let subject: String = subject
            .filter(|c| !c.is_control())
            .take(MAX_SUBJECT)
            .collect();
        let who = format!("token of {subject} by {issuer}");
        Ok(Principal::token(who, role, models, tenant))
    }

    fn role(&self, value: &str) -> Option<Role> {
        match self.roles.is_empty() {
            true => Role::from_name(value),
            false => self.roles.get(value).copied(),
        }
    }
}

/// The strings at `path`.
fn texts<'a>(claims: &'a Map<String, Value>, path: &str) -> Result<Vec<&'a str>, PredictError> {
    // Claim names often contain dots, so the whole path is tried as one name first.
    let found = claims.get(path).or_else(|| {
        let mut steps = path.split('.');
        let first = claims.get(steps.next()?)?;
        steps.try_fold(first, |value, step| value.get(step))
    });
    let texts = match found {
        Some(Value::String(text)) => Some(vec![text.as_str()]),
        Some(Value::Array(values)) => values.iter().map(Value::as_str).collect(),
        _ => None,
    };
    texts.ok_or_else(|| {
        denied(format!(
            "the token has no claim '{path}' that is a text or an array of texts"
        ))
    })
}

fn denied(message: String) -> PredictError {
    PredictError::new(ErrorCode::PermissionDenied, message)
}
