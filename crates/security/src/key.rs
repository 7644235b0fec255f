//! API keys: `vly_<id>_<secret>` with a secret of 256 random bits. Such a key cannot be guessed, so
//! a plain SHA-256 hash is safe to store and cheap to verify on every request.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;
use volley_types::{ApiKey, KeyHash, KeyId, PredictError};

/// Prefix of every key, so that scanners for leaked secrets can find it.
const START: &str = "vly_";
const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;
/// Minimum length of a bootstrap key, in bytes.
pub const MIN_BOOTSTRAP_LEN: usize = 32;
/// Maximum length of a key, in bytes.
pub const MAX_KEY_LEN: usize = 512;

/// The text of a key. It is shown once, to its owner. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(String);

impl KeyText {
    /// Creates a key with a new id.
    ///
    /// # Errors
    /// `Internal` when the system returns no random bytes.
    pub fn create() -> Result<(KeyId, Self), PredictError> {
        let id: [u8; ID_BYTES] = random()?;
        let id = KeyId::new(hex(&id))?;
        let key = Self::for_id(&id)?;
        Ok((id, key))
    }

    /// Creates a new key for `id`.
    ///
    /// # Errors
    /// `Internal` when the system returns no random bytes.
    pub fn for_id(id: &KeyId) -> Result<Self, PredictError> {
        let secret: [u8; SECRET_BYTES] = random()?;
        Ok(Self(format!(
            "{START}{id}_{}",
            URL_SAFE_NO_PAD.encode(secret)
        )))
    }

    /// The text.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that the registry stores.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        hash(&self.0)
    }
}

impl std::fmt::Debug for KeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyText(..)")
    }
}

/// The SHA-256 of a key.
#[must_use]
pub fn hash(key: &str) -> KeyHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
    KeyHash(hash)
}

/// The id in a key's text; `None` if it does not have the format of a key.
#[must_use]
pub fn id_of(key: &str) -> Option<KeyId> {
    let (id, secret) = key.strip_prefix(START)?.split_once('_')?;
    if secret.is_empty() {
        return None;
    }
    KeyId::new(id).ok()
}

/// Compares two hashes in constant time.
#[must_use]
pub fn same(left: &KeyHash, right: &KeyHash) -> bool {
    left.0.ct_eq(&right.0).into()
}

/// Whether `key` is valid at `now_ms` and `presented` is its hash.
#[must_use]
pub fn is_valid(key: &ApiKey, presented: &KeyHash, now_ms: u64) -> bool {
    if key.expires_ms.is_some_and(|end| end <= now_ms) {
        return false;
    }
    let current = same(&key.hash, presented);
    let previous = key
        .previous
        .is_some_and(|(hash, until)| now_ms < until && same(&hash, presented));
    current || previous
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn random<const N: usize>() -> Result<[u8; N], PredictError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| PredictError::internal("no key can be made now", "no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use volley_types::{ModelScope, Quota, Role, TenantId};

    use super::*;

    fn record(id: KeyId, hash: KeyHash) -> ApiKey {
        ApiKey {
            id,
            name: String::new(),
            hash,
            previous: None,
            role: Role::Predict,
            models: ModelScope::default(),
            tenant: TenantId::default(),
            created_ms: 0,
            expires_ms: None,
            quota: Quota::default(),
        }
    }

    #[test]
    fn a_key_names_its_id_and_shows_itself_only_when_asked() {
        let (id, key) = KeyText::create().unwrap();
        assert_eq!(id_of(key.reveal()), Some(id.clone()));
        assert_eq!(key.reveal().len(), 4 + 16 + 1 + 43);
        assert!(!format!("{key:?}").contains(&key.reveal()[4..]));
        let (other, another) = KeyText::create().unwrap();
        assert_ne!((id, key.hash()), (other, another.hash()));
        for not_a_key in ["", "vly_", "vly__x", "vly_a_", "sk-123", "vly_a b_c"] {
            assert_eq!(id_of(not_a_key), None, "{not_a_key}");
        }
    }

    #[test]
    fn a_key_ends_and_its_predecessor_ends_sooner() {
        let (id, old) = KeyText::create().unwrap();
        let new = KeyText::for_id(&id).unwrap();
        let mut key = record(id, new.hash());
        key.previous = Some((old.hash(), 50));
        key.expires_ms = Some(100);
        assert!(is_valid(&key, &new.hash(), 99));
        assert!(!is_valid(&key, &new.hash(), 100));
        assert!(is_valid(&key, &old.hash(), 49));
        assert!(!is_valid(&key, &old.hash(), 50));
        assert!(!is_valid(&key, &KeyHash([0; 32]), 1));
    }
}
