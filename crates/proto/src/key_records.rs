//! Conversions of API keys: wire ⇄ [`volley_types::access`].

use volley_types::registry::RegistryCommand;
use volley_types::{ApiKey, KeyHash, KeyId, ModelScope, PredictError, Quota, Role, TenantId};

use crate::registry::v1 as wire;
use crate::registry::v1::command::Command;

/// Converts a key to the wire.
#[must_use]
pub fn key_to_wire(key: &ApiKey) -> wire::ApiKey {
    let (previous_hash, previous_until_ms) = key
        .previous
        .map_or((Vec::new(), 0), |(hash, until)| (hash.0.to_vec(), until));
    wire::ApiKey {
        id: key.id.to_string(),
        name: key.name.clone(),
        hash: key.hash.0.to_vec(),
        previous_hash,
        previous_until_ms,
        role: key.role.as_str().to_owned(),
        models: key
            .models
            .patterns()
            .iter()
            .map(ToString::to_string)
            .collect(),
        tenant: key.tenant.to_string(),
        created_ms: key.created_ms,
        expires_ms: key.expires_ms.unwrap_or(0),
        quota: Some(quota_to_wire(key.quota)),
    }
}

/// Converts a quota to the wire.
#[must_use]
pub fn quota_to_wire(quota: Quota) -> wire::Quota {
    wire::Quota {
        requests_per_minute: quota.requests_per_minute.unwrap_or(0),
        tokens_per_minute: quota.tokens_per_minute.unwrap_or(0),
        max_streams: quota.max_streams.unwrap_or(0),
    }
}

/// Converts a quota from the wire. Keys of versions without quotas have no limits.
#[must_use]
pub fn quota_from_wire(quota: Option<wire::Quota>) -> Quota {
    let quota = quota.unwrap_or_default();
    let limit = |limit: u32| Some(limit).filter(|limit| *limit != 0);
    Quota {
        requests_per_minute: limit(quota.requests_per_minute),
        tokens_per_minute: limit(quota.tokens_per_minute),
        max_streams: limit(quota.max_streams),
    }
}

/// Converts a key from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn key_from_wire(key: wire::ApiKey) -> Result<ApiKey, PredictError> {
    let previous = match key.previous_hash.is_empty() {
        true => None,
        false => Some((hash_from_wire(&key.previous_hash)?, key.previous_until_ms)),
    };
    let models = key.models.iter().map(|pattern| pattern.parse());
    Ok(ApiKey {
        id: KeyId::new(key.id)?,
        name: key.name,
        hash: hash_from_wire(&key.hash)?,
        previous,
        role: Role::from_name(&key.role)
            .ok_or_else(|| PredictError::invalid("a key's role is unknown"))?,
        models: ModelScope::new(models.collect::<Result<_, _>>()?),
        tenant: TenantId::new(key.tenant)?,
        created_ms: key.created_ms,
        expires_ms: Some(key.expires_ms).filter(|ms| *ms != 0),
        quota: quota_from_wire(key.quota),
    })
}

/// Converts the hash of a key from the wire.
///
/// # Errors
/// `InvalidInput` when it does not have 32 bytes.
pub fn hash_from_wire(hash: &[u8]) -> Result<KeyHash, PredictError> {
    let hash = hash.try_into();
    hash.map(KeyHash)
        .map_err(|_| PredictError::invalid("a key's hash must be 32 bytes long"))
}

/// The command that gives a key a new secret, as it travels.
pub(crate) fn rotate_to_wire(id: &KeyId, hash: &KeyHash, previous_until_ms: u64) -> Command {
    Command::RotateKey(wire::RotateKey {
        id: id.to_string(),
        hash: hash.0.to_vec(),
        previous_until_ms,
    })
}

/// The command of a peer that gives a key a new secret.
pub(crate) fn rotate_from_wire(rotate: wire::RotateKey) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::RotateKey {
        id: KeyId::new(rotate.id)?,
        hash: hash_from_wire(&rotate.hash)?,
        previous_until_ms: rotate.previous_until_ms,
    })
}

/// The command that sets the quota of a key, as it travels.
pub(crate) fn limit_to_wire(id: &KeyId, quota: Quota) -> Command {
    Command::LimitKey(wire::LimitKey {
        id: id.to_string(),
        quota: Some(quota_to_wire(quota)),
    })
}

/// The command of a peer that sets the quota of a key.
pub(crate) fn limit_from_wire(limit: wire::LimitKey) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::LimitKey {
        id: KeyId::new(limit.id)?,
        quota: quota_from_wire(limit.quota),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip() {
        let mut key = ApiKey {
            id: KeyId::new("0a1b").unwrap(),
            name: "a service".to_owned(),
            hash: KeyHash([7; 32]),
            previous: None,
            role: Role::Predict,
            models: ModelScope::default(),
            tenant: TenantId::default(),
            created_ms: 5,
            expires_ms: None,
            quota: Quota::default(),
        };
        assert_eq!(key_from_wire(key_to_wire(&key)).unwrap(), key);
        key.quota.tokens_per_minute = Some(60_000);
        key.previous = Some((KeyHash([9; 32]), 12));
        key.models = ModelScope::new(vec!["a".parse().unwrap(), "b.*".parse().unwrap()]);
        key.expires_ms = Some(99);
        assert_eq!(key_from_wire(key_to_wire(&key)).unwrap(), key);
        let mut short = key_to_wire(&key);
        short.hash.pop();
        assert!(key_from_wire(short).is_err());
    }
}
