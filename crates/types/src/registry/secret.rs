//! Sealed secrets of the registry. They cannot be decrypted without a master key, which is never in
//! the registry.

use std::fmt;

use crate::error::PredictError;
use crate::ids::SecretName;

/// A secret encrypted with its own key, and that key encrypted with a master key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SealedSecret {
    /// Id of the master key: the first 16 hexadecimal digits of its SHA-256.
    pub master: String,
    /// The secret's own key, encrypted: nonce, ciphertext, tag.
    pub key: Vec<u8>,
    /// The secret, encrypted: nonce, ciphertext, tag.
    pub text: Vec<u8>,
}

impl fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedSecret(under {})", self.master)
    }
}

/// Decrypts sealed secrets.
pub trait OpenSecret: Send + Sync {
    /// Decrypts the secret of this name.
    ///
    /// # Errors
    /// `InvalidInput` when this node does not have the master key, or the secret was sealed for
    /// another name or modified.
    fn open(&self, name: &SecretName, sealed: &SealedSecret) -> Result<String, PredictError>;
}
