//! Secrets that the registry holds, sealed: without a master key, which it never holds, they are
//! noise.

use std::fmt;

use crate::error::PredictError;
use crate::ids::SecretName;

/// A secret under a key of its own, and that key under a master key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SealedSecret {
    /// Which master key: the first 16 hexadecimal digits of its SHA-256.
    pub master: String,
    /// The secret's own key, encrypted: nonce, text, tag.
    pub key: Vec<u8>,
    /// The secret, encrypted: nonce, text, tag.
    pub text: Vec<u8>,
}

impl fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedSecret(under {})", self.master)
    }
}

/// Opens sealed secrets, where they are used.
pub trait OpenSecret: Send + Sync {
    /// The secret of that name.
    ///
    /// # Errors
    /// `InvalidInput` when this node has not the master key, or the secret was sealed for another
    /// name or changed since.
    fn open(&self, name: &SecretName, sealed: &SealedSecret) -> Result<String, PredictError>;
}
