//! Plain secrets in a connector's body, as OpenSearch's clients send them. If the cluster has
//! master keys, they are sealed and replaced by a reference, and are stored nowhere else.

use serde_json::{Map, Value};
use volley_types::registry::{
    ConnectorSpec, CredentialRef, RegistryCommand, RegistryState, SealedSecret,
};
use volley_types::{ConnectorId, ErrorCode, PredictError, SecretName};

use super::{fresh_id, read_new};
use crate::state::OpenSearchCaller;
use volley_http_edge::body::Fields;

/// Suffix of the name of a connector's secret, after the connector's id.
const ENDING: &str = ".credential";
const REFERENCES: [&str; 3] = ["env:", "file:", "secret:"];

/// A parsed connector with the sealed secret of its body.
pub(crate) struct ParsedConnector {
    pub(crate) spec: ConnectorSpec,
    secret: Option<(SecretName, SealedSecret)>,
}

impl ParsedConnector {
    /// The connector as workers receive it, with its sealed secret.
    pub(super) fn sealed(&self) -> ConnectorSpec {
        let mut spec = self.spec.clone();
        if let Some((name, sealed)) = &self.secret {
            spec.credential = Some(CredentialRef::Sealed(
                name.clone(),
                Box::new(sealed.clone()),
            ));
        }
        spec
    }
}

/// Parses a new connector. A plain secret is sealed, but not yet written to the registry.
///
/// # Errors
/// `InvalidInput`, as for [`read_new`]; `Conflict` if the secret's name is taken.
pub(crate) fn read(
    caller: &OpenSearchCaller,
    registry: &RegistryState,
    body: &Map<String, Value>,
) -> Result<ParsedConnector, PredictError> {
    let literal = literal(body.get("credential"));
    // Without master keys, the parser rejects the secret and suggests the next step.
    let (Some(literal), Ok(keys)) = (literal, caller.gate.master_keys()) else {
        let spec = read_new(&caller.principal, registry, body)?;
        return Ok(ParsedConnector { spec, secret: None });
    };
    let mut body = body.clone();
    let id = match body.text("connector_id")?.or(body.text("id")?) {
        Some(id) => ConnectorId::new(id)?,
        None => fresh_id(&caller.principal)?,
    };
    body.insert("connector_id".to_owned(), id.as_str().into());
    let name = SecretName::new(format!("{id}{ENDING}"))?;
    body.insert("credential".to_owned(), format!("secret:{name}").into());
    let spec = read_new(&caller.principal, registry, &body)?;
    if registry.secrets.contains_key(&name) {
        let message = format!(
            "a secret '{name}' already exists: use it as the credential, 'secret:{name}', or \
             delete it"
        );
        return Err(PredictError::new(ErrorCode::Conflict, message));
    }
    let sealed = keys.seal(&name, &literal)?;
    Ok(ParsedConnector {
        spec,
        secret: Some((name, sealed)),
    })
}

/// Writes a connector after its secret. If the future is dropped between the two writes, the secret
/// remains.
///
/// # Errors
/// Errors of the registry. The secret is then deleted again, unless the registry is unavailable.
pub(crate) async fn write(
    caller: &OpenSearchCaller,
    given: ParsedConnector,
) -> Result<(), PredictError> {
    let ParsedConnector { spec, secret } = given;
    let name = secret.as_ref().map(|(name, _)| name.clone());
    if let Some((name, sealed)) = secret {
        let command = RegistryCommand::PutSecret { name, sealed };
        caller.cluster.registry.write(command).await?;
    }
    let written = caller
        .cluster
        .registry
        .write(RegistryCommand::CreateConnector(spec));
    let error = match written.await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if let Some(name) = name {
        forget(caller, name).await?;
    }
    Err(error)
}

/// The secret that was created together with this connector.
pub(super) fn own(spec: &ConnectorSpec) -> Option<SecretName> {
    let name = match spec.credential.as_ref()? {
        CredentialRef::Secret(name) | CredentialRef::Sealed(name, _) => name,
        CredentialRef::Env(_) | CredentialRef::File(_) => return None,
    };
    (name.as_str().strip_suffix(ENDING) == Some(spec.id.as_str())).then(|| name.clone())
}

/// Deletes a secret, unless another connector uses it.
///
/// # Errors
/// Errors of the registry.
pub(super) async fn forget(
    caller: &OpenSearchCaller,
    name: SecretName,
) -> Result<(), PredictError> {
    match caller
        .cluster
        .registry
        .write(RegistryCommand::DeleteSecret(name))
        .await
    {
        Err(error) if !matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// The plain secret in OpenSearch's credential object: a single value, or the keys that sign
/// requests.
fn literal(credential: Option<&Value>) -> Option<String> {
    let object = credential?.as_object()?;
    let texts: Vec<_> = object.values().map(plain).collect::<Option<_>>()?;
    match texts.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        _ if object.contains_key("access_key") && object.contains_key("secret_key") => {
            Some(Value::Object(object.clone()).to_string())
        }
        _ => None,
    }
}

/// The text, unless it is a reference.
fn plain(value: &Value) -> Option<&str> {
    let text = value.as_str()?;
    let refers = REFERENCES.iter().any(|start| text.starts_with(start));
    (!text.is_empty() && !refers).then_some(text)
}

#[cfg(test)]
mod tests;
