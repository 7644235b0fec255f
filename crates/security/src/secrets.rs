//! Secrets that the registry holds encrypted.
//!
//! Each secret is encrypted with its own key (AES-256-GCM, NIST SP 800-38D), and that key with a
//! master key. Both encryptions bind the secret's name, so that secrets cannot be swapped. Each
//! node reads the master keys from files; nodes never send them. A rotation re-encrypts only the
//! small keys.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use volley_types::registry::{OpenSecret, SealedSecret};
use volley_types::{PredictError, SecretName};

use crate::live::Live;

/// Maximum length of a secret in bytes.
pub const MAX_SECRET_BYTES: usize = 16 << 10;
const KEY_LEN: usize = 32;
/// Number of hexadecimal digits of the key's hash that form its id.
const ID_LEN: usize = 16;

/// The master keys of a node, reloaded when their files change. The first key seals; all keys open.
#[derive(Debug)]
pub struct MasterKeys(Arc<Live<Vec<MasterKey>>>);

struct MasterKey {
    id: String,
    key: LessSafeKey,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id)
    }
}

impl MasterKeys {
    /// Reads one key from each of `files`: 32 bytes in base64, as [`MasterKeys::generate`] returns
    /// them.
    ///
    /// # Errors
    /// `InvalidInput` when `files` is empty or a key is malformed.
    pub fn load(files: Vec<PathBuf>) -> Result<Self, PredictError> {
        let keys = Live::load(files, |contents| {
            let keys: Vec<_> = contents
                .iter()
                .map(|content| MasterKey::parse(content))
                .collect::<Result<_, _>>()?;
            match keys.is_empty() {
                true => Err(PredictError::invalid("no master key is configured")),
                false => Ok(keys),
            }
        })?;
        Ok(Self(keys))
    }

    /// Generates a master key in the format of its file.
    ///
    /// # Errors
    /// `Internal` when the system returns no random bytes.
    pub fn generate() -> Result<String, PredictError> {
        Ok(STANDARD.encode(random::<KEY_LEN>()?))
    }

    /// Reloads changed files every `interval`, forever. Cancel safe.
    pub async fn keep_fresh(&self, interval: Duration) {
        self.0.clone().keep_fresh("master keys", interval).await;
    }

    /// The id of the key that seals new secrets.
    #[must_use]
    pub fn newest(&self) -> String {
        let keys = self.0.current();
        keys.first().map_or_else(String::new, |key| key.id.clone())
    }

    /// Seals `secret` for `name`.
    ///
    /// # Errors
    /// `InvalidInput` when the secret is empty or too long.
    pub fn seal(&self, name: &SecretName, secret: &str) -> Result<SealedSecret, PredictError> {
        if secret.is_empty() || MAX_SECRET_BYTES < secret.len() {
            return Err(PredictError::invalid(format!(
                "a secret must be from 1 to {MAX_SECRET_BYTES} bytes long"
            )));
        }
        let own = random::<KEY_LEN>()?;
        let text = encrypt(&key_of(&own)?, name, secret.as_bytes())?;
        let (master, key) = self.wrap(name, &own)?;
        Ok(SealedSecret { master, key, text })
    }

    /// Re-encrypts the secret's key with the newest master key. `None` if it already uses that key.
    ///
    /// # Errors
    /// As for [`OpenSecret::open`].
    pub fn rewrap(
        &self,
        name: &SecretName,
        sealed: &SealedSecret,
    ) -> Result<Option<SealedSecret>, PredictError> {
        if sealed.master == self.newest() {
            return Ok(None);
        }
        let (master, key) = self.wrap(name, &self.unwrap(name, sealed)?)?;
        Ok(Some(SealedSecret {
            master,
            key,
            text: sealed.text.clone(),
        }))
    }

    fn wrap(&self, name: &SecretName, own: &[u8]) -> Result<(String, Vec<u8>), PredictError> {
        let keys = self.0.current();
        let master = keys
            .first()
            .ok_or_else(|| PredictError::internal("a secret cannot be sealed", "no master key"))?;
        Ok((master.id.clone(), encrypt(&master.key, name, own)?))
    }

    fn unwrap(&self, name: &SecretName, sealed: &SealedSecret) -> Result<Vec<u8>, PredictError> {
        let keys = self.0.current();
        let master = keys.iter().find(|key| key.id == sealed.master);
        let master = master.ok_or_else(|| {
            PredictError::invalid(format!(
                "the secret '{name}' is sealed under a master key that this node does not have; \
                 add the key to 'security.master_key_files', or store the secret again"
            ))
        })?;
        decrypt(&master.key, name, &sealed.key).ok_or_else(|| broken(name))
    }
}

impl OpenSecret for MasterKeys {
    fn open(&self, name: &SecretName, sealed: &SealedSecret) -> Result<String, PredictError> {
        let own = self.unwrap(name, sealed)?;
        let secret = decrypt(&key_of(&own)?, name, &sealed.text);
        let secret = secret.and_then(|bytes| String::from_utf8(bytes).ok());
        secret.ok_or_else(|| broken(name))
    }
}

impl MasterKey {
    fn parse(content: &[u8]) -> Result<Self, PredictError> {
        let malformed = || {
            PredictError::invalid(
                "a master key's file must hold 32 bytes in base64; `volley secret master-key` \
                 makes one",
            )
        };
        let text = content.trim_ascii();
        let bytes = STANDARD.decode(text).map_err(|_| malformed())?;
        if bytes.len() != KEY_LEN {
            return Err(malformed());
        }
        let hash = digest(&SHA256, &bytes);
        let hex = hash.as_ref().iter().map(|byte| format!("{byte:02x}"));
        let id: String = hex.collect();
        Ok(Self {
            id: id[..ID_LEN].to_owned(),
            key: key_of(&bytes)?,
        })
    }
}

fn key_of(bytes: &[u8]) -> Result<LessSafeKey, PredictError> {
    let key = UnboundKey::new(&AES_256_GCM, bytes);
    let key =
        key.map_err(|_| PredictError::internal("a secret's key is malformed", "its length"))?;
    Ok(LessSafeKey::new(key))
}

/// Returns nonce, ciphertext and tag. Nonces are random, which is safe because each key encrypts at
/// most a few thousand texts.
fn encrypt(key: &LessSafeKey, name: &SecretName, text: &[u8]) -> Result<Vec<u8>, PredictError> {
    let nonce = random::<NONCE_LEN>()?;
    let mut sealed = text.to_vec();
    let bound = Aad::from(name.as_str().as_bytes());
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), bound, &mut sealed)
        .map_err(|_| PredictError::internal("a secret could not be sealed", "encryption"))?;
    Ok([nonce.as_slice(), &sealed].concat())
}

fn decrypt(key: &LessSafeKey, name: &SecretName, sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, rest) = sealed.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut text = rest.to_vec();
    let bound = Aad::from(name.as_str().as_bytes());
    let opened = key.open_in_place(nonce, bound, &mut text).ok()?;
    Some(opened.to_vec())
}

fn random<const N: usize>() -> Result<[u8; N], PredictError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| PredictError::internal("a secret could not be sealed", "no random numbers"))?;
    Ok(bytes)
}

fn broken(name: &SecretName) -> PredictError {
    PredictError::invalid(format!(
        "the secret '{name}' cannot be opened: it was sealed for another name, or changed since; \
         store it again"
    ))
}

#[cfg(test)]
mod tests;
