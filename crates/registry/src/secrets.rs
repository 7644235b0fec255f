//! Sealed secrets: creation, rewrapping, deletion.

use std::sync::Arc;

use volley_types::registry::{
    ConnectorSpec, CredentialRef, RegistryReply, RegistryState, SealedSecret,
};
use volley_types::{PredictError, SecretName};

use super::limits::{MAX_SECRETS, MAX_TEXT, registry_fits, within};
use super::{changed, conflict, not_found, unchanged};

/// Maximum size of a sealed secret in bytes.
const MAX_SEALED: usize = 20 << 10;

pub(super) fn put(
    state: &mut RegistryState,
    name: &SecretName,
    sealed: &SealedSecret,
) -> Result<RegistryReply, PredictError> {
    let more = usize::from(!state.secrets.contains_key(name));
    within(
        "the number of secrets",
        state.secrets.len() + more,
        MAX_SECRETS,
    )?;
    within("the secret", sealed.text.len(), MAX_SEALED)?;
    within(
        "the secret's key",
        sealed.key.len() + sealed.master.len(),
        MAX_TEXT,
    )?;
    let before = state.secrets.get(name).map_or(0, SealedSecret::bytes);
    registry_fits(state, before, sealed.bytes())?;
    Arc::make_mut(&mut state.secrets).insert(name.clone(), sealed.clone());
    state.resized(before, sealed.bytes());
    changed(state, None)
}

pub(super) fn rewrap(
    state: &mut RegistryState,
    name: &SecretName,
    before: &SealedSecret,
    after: &SealedSecret,
) -> Result<RegistryReply, PredictError> {
    match state.secrets.get(name) {
        None => Err(not_found("secret", name)),
        Some(sealed) if sealed == after => unchanged(state),
        Some(sealed) if sealed != before => Err(conflict(format!(
            "the secret '{name}' was changed by another request; try again"
        ))),
        Some(_) => put(state, name, after),
    }
}

pub(super) fn delete(
    state: &mut RegistryState,
    name: &SecretName,
) -> Result<RegistryReply, PredictError> {
    let mut connectors = state.connectors.values();
    if let Some(user) = connectors.find(|connector| connector.names_secret(name)) {
        let id = &user.id;
        return Err(conflict(format!(
            "secret '{name}' is used by connector '{id}'; delete or change the connector first"
        )));
    }
    match Arc::make_mut(&mut state.secrets).remove(name) {
        Some(gone) => {
            state.resized(gone.bytes(), 0);
            changed(state, None)
        }
        None => Err(not_found("secret", name)),
    }
}

/// Rejects a connector that references a missing secret.
pub(super) fn check_named(
    state: &RegistryState,
    connector: &ConnectorSpec,
) -> Result<(), PredictError> {
    for credential in connector.credentials() {
        match credential {
            CredentialRef::Secret(name) if !state.secrets.contains_key(name) => {
                return Err(not_found("secret", name));
            }
            // This variant is only created for workers, from the stored secret.
            CredentialRef::Sealed(..) => {
                return Err(PredictError::invalid(
                    "a connector must reference a secret, not contain one",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use volley_types::registry::{ConnectorPolicy, ProviderName, RegistryCommand};
    use volley_types::{ConnectorId, ErrorCode, Parameters};

    use crate::apply;

    use super::*;

    fn sealed(text: u8) -> SealedSecret {
        SealedSecret {
            master: "m".to_owned(),
            key: vec![1],
            text: vec![text],
        }
    }

    fn connector(secret: &SecretName) -> ConnectorSpec {
        ConnectorSpec {
            id: ConnectorId::new("c").unwrap(),
            name: String::new(),
            provider: ProviderName::from_static("openai"),
            url: "https://api.example.org/v1/chat/completions".to_owned(),
            model: "m".to_owned(),
            credential: Some(CredentialRef::Secret(secret.clone())),
            headers: BTreeMap::new(),
            parameters: Parameters::default(),
            request_body: None,
            policy: ConnectorPolicy::default(),
        }
    }

    #[test]
    fn a_secret_that_is_named_stays_and_one_that_changed_is_not_overwritten() {
        let name = SecretName::new("openai").unwrap();
        let mut state = RegistryState::default();
        let mut code = |command: &RegistryCommand| match apply(&mut state, command) {
            Ok(_) => None,
            Err(error) => Some(error.code),
        };
        let put = |text| RegistryCommand::PutSecret {
            name: name.clone(),
            sealed: sealed(text),
        };
        let create = RegistryCommand::CreateConnector(connector(&name));
        assert_eq!(code(&create), Some(ErrorCode::NotFound));
        assert_eq!(code(&put(1)), None);
        assert_eq!(code(&create), None);
        let delete = RegistryCommand::DeleteSecret(name.clone());
        assert_eq!(code(&delete), Some(ErrorCode::Conflict));

        let rewrap = |before, after| RegistryCommand::RewrapSecret {
            name: name.clone(),
            before: sealed(before),
            after: sealed(after),
        };
        assert_eq!(code(&put(2)), None);
        assert_eq!(code(&rewrap(1, 3)), Some(ErrorCode::Conflict));
        assert_eq!(code(&rewrap(2, 3)), None);
        let id = ConnectorId::new("c").unwrap();
        assert_eq!(code(&RegistryCommand::DeleteConnector(id)), None);
        assert_eq!(code(&delete), None);
        assert_eq!(code(&delete), Some(ErrorCode::NotFound));
    }
}
