//! Conversions of sealed secrets and credential references: wire ⇄ [`volley_types::registry`].

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use volley_types::registry::{CredentialRef, RegistryCommand, SealedSecret};
use volley_types::{PredictError, SecretName};

use crate::registry::v1 as wire;

/// Converts a secret to the wire.
#[must_use]
pub fn secret_to_wire(name: &SecretName, sealed: &SealedSecret) -> wire::Secret {
    wire::Secret {
        name: name.to_string(),
        master: sealed.master.clone(),
        key: sealed.key.clone(),
        text: sealed.text.clone(),
    }
}

/// Converts a secret from the wire.
///
/// # Errors
/// `InvalidInput` when the name is malformed.
pub fn secret_from_wire(secret: wire::Secret) -> Result<(SecretName, SealedSecret), PredictError> {
    let sealed = SealedSecret {
        master: secret.master,
        key: secret.key,
        text: secret.text,
    };
    Ok((SecretName::new(secret.name)?, sealed))
}

/// Converts all secrets to the wire.
#[must_use]
pub fn secrets_to_wire(secrets: &BTreeMap<SecretName, SealedSecret>) -> Vec<wire::Secret> {
    let secrets = secrets.iter();
    secrets
        .map(|(name, sealed)| secret_to_wire(name, sealed))
        .collect()
}

/// Converts all secrets from the wire.
///
/// # Errors
/// `InvalidInput` when a name is malformed.
pub fn secrets_from_wire(
    secrets: Vec<wire::Secret>,
) -> Result<BTreeMap<SecretName, SealedSecret>, PredictError> {
    secrets.into_iter().map(secret_from_wire).collect()
}

/// Converts the command that stores a secret from the wire.
///
/// # Errors
/// `InvalidInput` when the name is malformed.
pub fn put_secret_from_wire(secret: wire::Secret) -> Result<RegistryCommand, PredictError> {
    let (name, sealed) = secret_from_wire(secret)?;
    Ok(RegistryCommand::PutSecret { name, sealed })
}

/// Converts the command that replaces `before` by the re-encrypted `after` to the wire.
#[must_use]
pub fn rewrap_to_wire(
    name: &SecretName,
    before: &SealedSecret,
    after: &SealedSecret,
) -> wire::RewrapSecret {
    wire::RewrapSecret {
        before: Some(secret_to_wire(name, before)),
        after: Some(secret_to_wire(name, after)),
    }
}

/// Converts the command of [`rewrap_to_wire`] from the wire.
///
/// # Errors
/// `InvalidInput` when a secret is missing or malformed.
pub fn rewrap_from_wire(rewrap: wire::RewrapSecret) -> Result<RegistryCommand, PredictError> {
    let missing = || PredictError::invalid("a registry record has no secret");
    let (name, before) = secret_from_wire(rewrap.before.ok_or_else(missing)?)?;
    let (_, after) = secret_from_wire(rewrap.after.ok_or_else(missing)?)?;
    Ok(RegistryCommand::RewrapSecret {
        name,
        before,
        after,
    })
}

/// Parses `env:NAME`, `file:/path`, `secret:NAME`, or `sealed:` with a sealed secret. An empty text
/// means none.
///
/// # Errors
/// `InvalidInput` for anything else.
pub fn credential_from_text(text: &str) -> Result<Option<CredentialRef>, PredictError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.split_once(':') {
        Some(("env", name)) if !name.is_empty() => Ok(Some(CredentialRef::Env(name.to_owned()))),
        Some(("file", path)) if path.starts_with('/') => {
            Ok(Some(CredentialRef::File(path.to_owned())))
        }
        Some(("secret", name)) => Ok(Some(CredentialRef::Secret(SecretName::new(name)?))),
        Some(("sealed", text)) => {
            let secret = STANDARD.decode(text).ok();
            let secret = secret.and_then(|bytes| wire::Secret::decode(bytes.as_slice()).ok());
            let secret =
                secret.ok_or_else(|| PredictError::invalid("a malformed sealed secret"))?;
            let (name, sealed) = secret_from_wire(secret)?;
            Ok(Some(CredentialRef::Sealed(name, Box::new(sealed))))
        }
        _ => Err(PredictError::invalid(
            "a credential is a reference, not a secret: write 'env:NAME', 'file:/path' or \
             'secret:NAME'",
        )),
    }
}

/// Formats a credential for [`credential_from_text`].
#[must_use]
pub fn credential_to_text(credential: Option<&CredentialRef>) -> String {
    match credential {
        None => String::new(),
        Some(CredentialRef::Env(name)) => format!("env:{name}"),
        Some(CredentialRef::File(path)) => format!("file:{path}"),
        Some(CredentialRef::Secret(name)) => format!("secret:{name}"),
        Some(CredentialRef::Sealed(name, sealed)) => {
            let secret = secret_to_wire(name, sealed).encode_to_vec();
            format!("sealed:{}", STANDARD.encode(secret))
        }
    }
}
