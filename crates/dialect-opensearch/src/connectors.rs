//! Connectors, in OpenSearch's format with `actions` or in a short format.

mod address;
mod blueprint;
mod check;
mod named;
mod policy;
pub(crate) mod sealing;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_providers::Provider;
use volley_security::Principal;
use volley_types::registry::{ConnectorSpec, CredentialRef, RegistryCommand, RegistryState};
use volley_types::{ConnectorId, ErrorCode, PredictError, SecretName};

use crate::search::{Search, SearchQuery};
use crate::state::OpenSearchCaller;
use crate::{defaults, settings};
use volley_dialect_kit::parameters;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

/// Name of the index that contains connectors in OpenSearch.
const INDEX: &str = ".plugins-ml-connector";
const FIELDS: [&str; 17] = [
    "connector_id",
    "id",
    "name",
    "description",
    "version",
    "protocol",
    "provider",
    "url",
    "model",
    "credential",
    "headers",
    "parameters",
    "request_body",
    "actions",
    "client_config",
    "weight",
    "endpoints",
];
const ACTION_FIELDS: [&str; 7] = [
    "action_type",
    "method",
    "url",
    "headers",
    "request_body",
    "pre_process_function",
    "post_process_function",
];
/// Functions that convert rows to a request, and a response to rows. Workers use the same names.
const FUNCTIONS: [&str; 2] = ["pre_process_function", "post_process_function"];

/// Headers that providers derive from the credential.
const CREDENTIAL_HEADERS: [&str; 4] = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];

/// Query parameters for creating or changing a connector.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Creation {
    /// Whether to call the connector's server once.
    #[serde(default)]
    test: bool,
}

pub(crate) async fn create(
    caller: OpenSearchCaller,
    Query(creation): Query<Creation>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let registry = caller.cluster.registry.state();
    let given = sealing::read(&caller, &registry, &body)?;
    settings::trust_connector(&registry, &given.spec)?;
    let id = given.spec.id.to_string();
    let sealed = given.sealed();
    let checks = async {
        caller
            .cluster
            .registry
            .check_connector(&sealed, creation.test)
            .await
    };
    let checked = context.in_time(checks).await?;
    let warnings = check::verdict(&checked, creation.test, "create the connector again")?;
    sealing::write(&caller, given).await?;
    let mut created = json!({ "connector_id": id });
    if !warnings.is_empty() {
        created["warnings"] = warnings.into();
    }
    Ok(Json(created))
}

pub(crate) async fn get(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = ConnectorId::new(id)?;
    let registry = caller.cluster.registry.state();
    let spec = registry.connectors.get(&id).ok_or_else(|| unknown(&id))?;
    Ok(Json(render(spec)))
}

fn unknown(id: &ConnectorId) -> PredictError {
    PredictError::new(ErrorCode::NotFound, format!("no connector '{id}' exists"))
}

pub(crate) async fn search(
    caller: OpenSearchCaller,
    Query(query): Query<SearchQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let search = Search::read(&body, &query)?;
    let registry = caller.cluster.registry.state();
    let ids = registry.connectors.keys().map(ToString::to_string);
    let show = |id: &str| {
        let spec = registry.connectors.get(&ConnectorId::new(id).ok()?)?;
        Some(render(spec))
    };
    Ok(Json(search.run(INDEX, ids, show)))
}

/// Changes the fields in the body and keeps the others. Checks the connector on the workers first,
/// as for a creation.
pub(crate) async fn update(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    Query(creation): Query<Creation>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let id = ConnectorId::new(id)?;
    let registry = caller.cluster.registry.state();
    let current = registry.connectors.get(&id).ok_or_else(|| unknown(&id))?;
    let mut whole = changed(current, &body)?;
    named::resolve(&mut whole, &registry)?;
    let spec = read(&whole)?;
    if spec.id != id {
        let message = "a connector's id cannot be changed: create another connector";
        return Err(PredictError::invalid(message).into());
    }
    settings::trust_connector(&registry, &spec)?;
    let checks = async {
        caller
            .cluster
            .registry
            .check_connector(&spec, creation.test)
            .await
    };
    let checked = context.in_time(checks).await?;
    let warnings = check::verdict(&checked, creation.test, "change the connector again")?;
    caller
        .cluster
        .registry
        .write(RegistryCommand::UpdateConnector(spec))
        .await?;
    let mut updated = json!({ "_index": INDEX, "_id": id.as_str(), "result": "updated" });
    if !warnings.is_empty() {
        updated["warnings"] = warnings.into();
    }
    Ok(Json(updated))
}

/// Merges the changes in `body` into the body of the current connector.
fn changed(
    current: &ConnectorSpec,
    body: &Map<String, Value>,
) -> Result<Map<String, Value>, PredictError> {
    let Value::Object(mut whole) = render(current) else {
        return Err(PredictError::internal(
            "the connector was lost",
            "it is not an object",
        ));
    };
    // A new URL or new actions replace the values that were derived from the old ones.
    let renewed: &[&str] = match (body.contains_key("actions"), body.contains_key("url")) {
        (true, _) => &["url", "headers", "request_body", "provider"],
        (false, true) => &["provider"],
        (false, false) => &[],
    };
    for name in renewed {
        whole.remove(*name);
    }
    let model_in_parameters = |it: &Map<String, Value>| it.contains_key("model");
    if body.object("parameters")?.is_some_and(model_in_parameters) && !body.contains_key("model") {
        whole.remove("model");
    }
    if body.contains_key("protocol") && !body.contains_key("provider") {
        whole.remove("provider");
    }
    for (name, value) in body {
        match (whole.get_mut(name), value) {
            (Some(Value::Object(old)), Value::Object(new))
                if name == "parameters" || name == "client_config" =>
            {
                old.extend(new.clone());
            }
            _ => {
                whole.insert(name.clone(), value.clone());
            }
        }
    }
    Ok(whole)
}

pub(crate) async fn delete(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = ConnectorId::new(id)?;
    let registry = caller.cluster.registry.state();
    let secret = registry.connectors.get(&id).and_then(sealing::own);
    caller
        .cluster
        .registry
        .write(RegistryCommand::DeleteConnector(id.clone()))
        .await?;
    if let Some(secret) = secret {
        sealing::forget(&caller, secret).await?;
    }
    Ok(Json(
        json!({ "_index": INDEX, "_id": id.as_str(), "result": "deleted" }),
    ))
}

fn render(spec: &ConnectorSpec) -> Value {
    json!({
        "connector_id": spec.id.as_str(),
        "name": spec.name,
        "protocol": "http",
        "provider": spec.provider.as_str(),
        "url": spec.url,
        "model": spec.model,
        "credential": credential_text(spec.credential.as_ref()),
        "headers": spec.headers,
        "parameters": parameters::to_json(&spec.parameters),
        "request_body": spec.request_body,
        "client_config": policy::render_config(&spec.policy),
        "weight": spec.policy.weight,
        "endpoints": policy::render_endpoints(&spec.policy),
    })
}

fn credential_text(credential: Option<&CredentialRef>) -> Option<String> {
    Some(match credential? {
        CredentialRef::Env(name) => format!("env:{name}"),
        CredentialRef::File(path) => format!("file:{path}"),
        CredentialRef::Secret(name) | CredentialRef::Sealed(name, _) => format!("secret:{name}"),
    })
}

/// Parses a new connector. A body without an id gets a random id in the caller's scope.
pub(crate) fn read_new(
    caller: &Principal,
    registry: &RegistryState,
    body: &Map<String, Value>,
) -> Result<ConnectorSpec, PredictError> {
    let mut body = body.clone();
    named::resolve(&mut body, registry)?;
    let named = ["connector_id", "id"].map(|name| body.contains_key(name));
    if named == [false; 2] {
        body.insert("id".to_owned(), fresh_id(caller)?.as_str().into());
    }
    read(&body)
}

/// A random id in the caller's scope.
fn fresh_id(caller: &Principal) -> Result<ConnectorId, PredictError> {
    let start = caller.models().beginning().unwrap_or_default();
    ConnectorId::new(format!("{start}{}", uuid::Uuid::new_v4().simple()))
}

/// Parses a connector in either format.
pub(crate) fn read(body: &Map<String, Value>) -> Result<ConnectorSpec, PredictError> {
    body.only("a connector", &FIELDS)?;
    let id = match body.text("connector_id")?.or(body.text("id")?) {
        Some(id) => ConnectorId::new(id)?,
        None => ConnectorId::new(uuid::Uuid::new_v4().simple().to_string())?,
    };
    let mut parameters = body.object("parameters")?.cloned().unwrap_or_default();
    let action = predict_action(body)?;
    let field = |name: &str| match body.text(name)? {
        Some(text) => Ok::<_, PredictError>(Some(text)),
        None => action.map_or(Ok(None), |action| action.text(name)),
    };
    let url = field("url")?.ok_or_else(|| {
        PredictError::invalid("field 'url' is missing, here or in a 'predict' action")
    })?;
    let (url, filled) = address::fill(url, &parameters)?;
    // Parameters that are used in the URL are not part of the request body.
    parameters.retain(|name, _| !filled.contains(name) || name == "model");
    let provider = provider(body, &url)?;
    address::check(&url, provider, body.contains_key("request_body"))?;
    let model = match body.text("model")? {
        Some(model) => model.to_owned(),
        None => match parameters.remove("model") {
            Some(Value::String(model)) => model,
            _ => (provider.model_of_url)(&url)
                .map(str::to_owned)
                .ok_or_else(|| {
                    PredictError::invalid("field 'model' (or 'parameters.model') is missing")
                })?,
        },
    };
    if model.trim().is_empty() {
        return Err(PredictError::invalid(
            "field 'model' is empty: give the name of the model at the server",
        ));
    }
    let request_body = field("request_body")?.map(str::to_owned);
    for name in FUNCTIONS {
        let given = action.map_or(Ok(None), |action| action.text(name))?;
        if let Some(given) = given.filter(|given| !given.trim().is_empty()) {
            parameters.insert(name.to_owned(), given.into());
        }
    }
    let described =
        provider.is_configured() || FUNCTIONS.iter().any(|name| parameters.contains_key(*name));
    // In the format with actions the template is customary, and it usually repeats the provider's
    // own body. It then only supplies parameters, unless a function or the provider requires it.
    let used = action.is_none() || body.contains_key("request_body") || described;
    if let Some(template) = request_body.as_deref().filter(|_| !used) {
        blueprint::adopt(provider, template, &mut parameters);
    }
    let parameters = parameters::from_json(&parameters)?;
    let request_body = request_body.filter(|_| used);
    // A template gives its parameters a meaning of its own.
    if request_body.is_none() {
        defaults::numbers(&parameters)?;
    }
    Ok(ConnectorSpec {
        name: body.text("name")?.unwrap_or(id.as_str()).to_owned(),
        id,
        provider: provider.name,
        policy: policy::read(body, &model)?,
        model,
        credential: credential(body)?,
        headers: headers(body, action, provider)?,
        parameters,
        request_body,
        url,
    })
}

fn predict_action(body: &Map<String, Value>) -> Result<Option<&Map<String, Value>>, PredictError> {
    let Some(actions) = body.get("actions") else {
        return Ok(None);
    };
    let actions = actions
        .as_array()
        .ok_or_else(|| PredictError::invalid("field 'actions' must be a list"))?;
    let mut actions = actions.iter().filter_map(Value::as_object);
    let predict = actions.find(|action| {
        action
            .get("action_type")
            .and_then(Value::as_str)
            .is_some_and(|kind| kind == "predict")
    });
    let predict = predict.ok_or_else(|| {
        PredictError::invalid("'actions' has no action with action_type 'predict'")
    })?;
    predict.only("an action", &ACTION_FIELDS)?;
    if predict
        .text("method")?
        .is_some_and(|method| !method.eq_ignore_ascii_case("POST"))
    {
        return Err(PredictError::invalid(
            "the method of a 'predict' action must be POST",
        ));
    }
    Ok(Some(predict))
}

/// The provider that `provider` or `protocol` names, or otherwise the one that the URL implies.
fn provider(body: &Map<String, Value>, url: &str) -> Result<&'static Provider, PredictError> {
    let (field, named) = match body.text("provider")? {
        Some(name) => ("provider", Some(name)),
        None => {
            let protocol = body.text("protocol")?;
            ("protocol", protocol.filter(|protocol| *protocol != "http"))
        }
    };
    let Some(name) = named else {
        return Ok(volley_providers::of_url(url));
    };
    volley_providers::named(name).ok_or_else(|| {
        let known = volley_providers::names();
        let also = if field == "protocol" { "http, " } else { "" };
        PredictError::invalid(format!("field '{field}' must be one of {also}{known}"))
    })
}

/// Parses a credential: a reference as text, or OpenSearch's object with one reference.
fn credential(body: &Map<String, Value>) -> Result<Option<CredentialRef>, PredictError> {
    let reference = match body.get("credential") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(object)) if object.is_empty() => return Ok(None),
        Some(Value::String(text)) => Some(text.as_str()),
        Some(Value::Object(object)) if object.len() == 1 => {
            object.values().next().and_then(Value::as_str)
        }
        Some(Value::Object(object)) => key_variables(object),
        Some(_) => None,
    };
    let parsed = reference.and_then(|reference| match reference.split_once(':') {
        Some(("env", name)) if !name.is_empty() => Some(CredentialRef::Env(name.to_owned())),
        Some(("file", path)) if path.starts_with('/') => Some(CredentialRef::File(path.to_owned())),
        Some(("secret", name)) => SecretName::new(name).ok().map(CredentialRef::Secret),
        _ => None,
    });
    parsed.map(Some).ok_or_else(|| {
        PredictError::invalid(
            "field 'credential' must be one reference: 'env:NAME' or 'file:/path', which each \
             worker reads, or 'secret:NAME', which the cluster stores encrypted; a plain secret \
             is accepted only when a connector is created in OpenSearch's format and the cluster \
             has master keys",
        )
    })
}

/// The variable of the access key, if the object also has the variables of the secret key and,
/// optionally, the session token under the names that workers expect.
fn key_variables(object: &Map<String, Value>) -> Option<&str> {
    let names = [
        ("access_key", "ACCESS_KEY_ID"),
        ("secret_key", "SECRET_ACCESS_KEY"),
        ("session_token", "SESSION_TOKEN"),
    ];
    let first = object.get("access_key")?.as_str()?;
    let prefix = first.strip_prefix("env:")?.strip_suffix("ACCESS_KEY_ID")?;
    let beside = object.iter().all(|(name, value)| {
        let ending = names.iter().find(|(known, _)| known == name);
        let variable = ending.map(|(_, ending)| format!("env:{prefix}{ending}"));
        variable.is_some_and(|variable| *value == variable)
    });
    (beside && object.contains_key("secret_key")).then_some(first)
}

fn headers(
    body: &Map<String, Value>,
    action: Option<&Map<String, Value>>,
    provider: &Provider,
) -> Result<BTreeMap<String, String>, PredictError> {
    let given = match body.object("headers")? {
        Some(headers) => Some(headers),
        None => action.map_or(Ok(None), |action| action.object("headers"))?,
    };
    let key = provider.key_header;
    let mut headers = BTreeMap::new();
    for (name, value) in given.into_iter().flatten() {
        let name = name.to_ascii_lowercase();
        let value = value
            .as_str()
            .ok_or_else(|| PredictError::invalid(format!("header '{name}' must be a string")))?;
        if value.contains("${credential.") {
            if name == key {
                continue;
            }
            let provider = provider.name.as_str();
            return Err(PredictError::invalid(format!(
                "header '{name}' cannot carry the credential; with provider '{provider}' '{key}' \
                 does"
            )));
        }
        if CREDENTIAL_HEADERS.contains(&name.as_str()) {
            return Err(PredictError::invalid(format!(
                "header '{name}' is set from the connector's credential; give the credential as a \
                 reference"
            )));
        }
        headers.insert(name, value.to_owned());
    }
    Ok(headers)
}
