//! API keys: creation, rotation, quotas, revocation.

use volley_types::registry::{RegistryReply, RegistryState};
use volley_types::{ApiKey, KeyHash, KeyId, PredictError, Quota};

use super::limits::{MAX_KEY_MODELS, MAX_KEYS, MAX_TEXT, registry_fits, within};
use super::{changed, conflict, not_found};

pub(super) fn create(
    state: &mut RegistryState,
    key: &ApiKey,
) -> Result<RegistryReply, PredictError> {
    if state.keys.contains_key(&key.id) {
        return Err(conflict(format!("a key '{}' already exists", key.id)));
    }
    within("the number of keys", state.keys.len() + 1, MAX_KEYS)?;
    within("the key's name", key.name.len(), MAX_TEXT)?;
    let models = key.models.patterns().len();
    within("the number of the key's models", models, MAX_KEY_MODELS)?;
    registry_fits(state, 0, key.bytes())?;
    state.keys.insert(key.id.clone(), key.clone());
    state.resized(0, key.bytes());
    changed(state, None)
}

pub(super) fn rotate(
    state: &mut RegistryState,
    id: &KeyId,
    hash: KeyHash,
    previous_until_ms: u64,
) -> Result<RegistryReply, PredictError> {
    let key = state.keys.get_mut(id);
    let key = key.ok_or_else(|| not_found("key", id))?;
    let previous = std::mem::replace(&mut key.hash, hash);
    key.previous = (previous_until_ms != 0).then_some((previous, previous_until_ms));
    changed(state, None)
}

pub(super) fn limit(
    state: &mut RegistryState,
    id: &KeyId,
    quota: Quota,
) -> Result<RegistryReply, PredictError> {
    let key = state.keys.get_mut(id);
    key.ok_or_else(|| not_found("key", id))?.quota = quota;
    changed(state, None)
}

pub(super) fn revoke(state: &mut RegistryState, id: &KeyId) -> Result<RegistryReply, PredictError> {
    match state.keys.remove(id) {
        Some(gone) => {
            state.resized(gone.bytes(), 0);
            changed(state, None)
        }
        None => Err(not_found("key", id)),
    }
}

#[cfg(test)]
mod tests;
