//! Verification of token signatures with ring, the library that Volley also uses for TLS.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| {
        let scheme = Scheme::of(*algorithm).ok_or(ErrorKind::UnsupportedAlgorithm)?;
        Ok(Box::new(RingVerifier {
            algorithm: *algorithm,
            scheme,
            key: key.clone(),
        }))
    },
    key_utils: KeyUtils::new_unimplemented(),
};

/// Registers this provider as the only one of the process.
pub(super) fn install() {
    // An error means that a provider is already installed.
    let _ = PROVIDER.install_default();
}

/// Whether signatures of `algorithm` can be verified.
pub(super) fn verifies(algorithm: Algorithm) -> bool {
    Scheme::of(algorithm).is_some()
}

#[derive(Clone, Copy)]
enum Scheme {
    Rsa(&'static RsaParameters),
    Point(&'static dyn VerificationAlgorithm),
}

impl Scheme {
    fn of(algorithm: Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::RS256 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Self::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Self::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Self::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Self::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Self::Point(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Self::Point(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Self::Point(&ED25519),
            // Shared-secret algorithms, and algorithms added in later versions of the library.
            _ => return None,
        })
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    scheme: Scheme,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.scheme, self.key.kind()) {
            (Scheme::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Scheme::Point(algorithm), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(algorithm, point).verify(message, signature)
            }
            // The type of the key does not match the algorithm.
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
