//! `/_volley/keys`: creates, lists, rotates and revokes API keys. The text of a key is only in the
//! response that creates it; the registry stores a hash.

use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_security::key::KeyText;
use volley_security::now_ms;
use volley_types::registry::RegistryCommand;
use volley_types::{ApiKey, ErrorCode, KeyId, ModelScope, PredictError, Quota, Role, TenantId};

use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

const FIELDS: [&str; 6] = ["name", "role", "models", "tenant", "expires_in_s", "limits"];
const LIMITS: [&str; 3] = ["requests_per_minute", "tokens_per_minute", "max_streams"];
/// Maximum lifetime of a key and maximum overlap of a rotation: ten years, in seconds.
const LONGEST_S: u64 = 10 * 366 * 24 * 3_600;

/// A response that contains a key. Its headers forbid caching.
type Secret = (
    StatusCode,
    [(header::HeaderName, HeaderValue); 1],
    Json<Value>,
);

/// Returns the permissions of the caller's own key.
pub(crate) async fn whoami(caller: Caller) -> Json<Value> {
    let principal = &caller.principal;
    Json(json!({
        "who": principal.who(),
        "role": principal.role().map(Role::as_str),
        "models": patterns(principal.models()),
        "tenant": principal.tenant().map(TenantId::as_str),
    }))
}

pub(crate) async fn create(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<Secret, ApiError> {
    let (id, text) = KeyText::create()?;
    let key = read(&body, id, &text, now_ms())?;
    caller
        .cluster
        .registry
        .write(RegistryCommand::CreateKey(key.clone()))
        .await?;
    Ok(secret(StatusCode::CREATED, &key, &text))
}

pub(crate) async fn list(caller: Caller) -> Json<Value> {
    let (registry, now) = (caller.cluster.registry.state(), now_ms());
    let keys: Vec<_> = registry.keys.values().map(|key| render(key, now)).collect();
    Json(json!({ "keys": keys }))
}

pub(crate) async fn get(caller: Caller, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    Ok(Json(render(&find(&caller, id)?, now_ms())))
}

pub(crate) async fn rotate(
    caller: Caller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Secret, ApiError> {
    body.only("a rotation", &["grace_s"])?;
    let previous_until_ms = match seconds(&body, "grace_s")? {
        None | Some(0) => 0,
        Some(seconds) => now_ms() + seconds * 1_000,
    };
    let key = find(&caller, id)?;
    let text = KeyText::for_id(&key.id)?;
    let rotate = RegistryCommand::RotateKey {
        id: key.id.clone(),
        hash: text.hash(),
        previous_until_ms,
    };
    caller.cluster.registry.write(rotate).await?;
    let rotated = ApiKey {
        previous: (previous_until_ms != 0).then_some((key.hash, previous_until_ms)),
        ..key
    };
    Ok(secret(StatusCode::OK, &rotated, &text))
}

/// Replaces the limits of a key. Omitted limits are removed.
pub(crate) async fn limits(
    caller: Caller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only("a change of limits", &["limits"])?;
    if body.object("limits")?.is_none() {
        return Err(
            PredictError::invalid("field 'limits' is missing; {} removes all limits").into(),
        );
    }
    let quota = quota(&body)?;
    let key = find(&caller, id)?;
    let id = key.id.clone();
    caller
        .cluster
        .registry
        .write(RegistryCommand::LimitKey { id, quota })
        .await?;
    Ok(Json(render(&ApiKey { quota, ..key }, now_ms())))
}

pub(crate) async fn revoke(
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = KeyId::new(id)?;
    caller
        .cluster
        .registry
        .write(RegistryCommand::RevokeKey(id.clone()))
        .await?;
    Ok(Json(json!({ "id": id.as_str(), "result": "revoked" })))
}

fn find(caller: &Caller, id: String) -> Result<ApiKey, PredictError> {
    let id = KeyId::new(id)?;
    let registry = caller.cluster.registry.state();
    registry
        .keys
        .get(&id)
        .cloned()
        .ok_or_else(|| PredictError::new(ErrorCode::NotFound, format!("no key '{id}' exists")))
}

fn read(
    body: &Map<String, Value>,
    id: KeyId,
    text: &KeyText,
    now_ms: u64,
) -> Result<ApiKey, PredictError> {
    body.only("a key", &FIELDS)?;
    let role = body.required("role")?;
    let role = Role::from_name(role).ok_or_else(|| {
        let names = Role::ALL.map(Role::as_str).join(", ");
        PredictError::invalid(format!("field 'role' must be one of {names}"))
    })?;
    let tenant = body.text("tenant")?.map(TenantId::new).transpose()?;
    let tenant = tenant.unwrap_or_default();
    let models = match models(body)? {
        Some(models) => models,
        None if role == Role::ClusterAdmin => ModelScope::default(),
        None => ModelScope::of_tenant(&tenant),
    };
    if role == Role::ClusterAdmin && !models.is_all() {
        return Err(PredictError::invalid(
            "a key of the role 'cluster-admin' cannot be limited to some models",
        ));
    }
    let expires = seconds(body, "expires_in_s")?;
    if expires == Some(0) {
        return Err(PredictError::invalid(
            "field 'expires_in_s' must be at least 1",
        ));
    }
    Ok(ApiKey {
        id,
        name: body.required("name")?.to_owned(),
        hash: text.hash(),
        previous: None,
        role,
        models,
        tenant,
        created_ms: now_ms,
        expires_ms: expires.map(|seconds| now_ms + seconds * 1_000),
        quota: quota(body)?,
    })
}

/// The limits in `body`. An omitted limit means no limit.
fn quota(body: &Map<String, Value>) -> Result<Quota, PredictError> {
    let Some(limits) = body.object("limits")? else {
        return Ok(Quota::default());
    };
    limits.only("limits", &LIMITS)?;
    let [requests, tokens, streams] = LIMITS;
    Ok(Quota {
        requests_per_minute: limit(limits, requests)?,
        tokens_per_minute: limit(limits, tokens)?,
        max_streams: limit(limits, streams)?,
    })
}

fn limit(limits: &Map<String, Value>, name: &str) -> Result<Option<u32>, PredictError> {
    let Some(limit) = limits.count(name)? else {
        return Ok(None);
    };
    match u32::try_from(limit) {
        Ok(limit) if 0 < limit => Ok(Some(limit)),
        _ => Err(PredictError::invalid(format!(
            "field '{name}' of limits must be from 1 to {}",
            u32::MAX
        ))),
    }
}

/// The scope in `models`; `None` if the field is missing.
fn models(body: &Map<String, Value>) -> Result<Option<ModelScope>, PredictError> {
    let malformed = || {
        PredictError::invalid(
            "field 'models' must be an array of model names, of prefixes such as 'team-a.*', or \
             of '*' for all models",
        )
    };
    let names = match body.get("models") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(names)) => names,
        Some(_) => return Err(malformed()),
    };
    // An empty list could be read as "none" but would mean "all", so it is rejected.
    if names.is_empty() {
        return Err(malformed());
    }
    let names: Option<Vec<_>> = names.iter().map(Value::as_str).collect();
    let models = ModelScope::read(names.ok_or_else(malformed)?);
    models.map(Some).map_err(|_| malformed())
}

fn seconds(body: &Map<String, Value>, name: &str) -> Result<Option<u64>, PredictError> {
    let seconds = body.count(name)?;
    if seconds.is_some_and(|seconds| LONGEST_S < seconds) {
        return Err(PredictError::invalid(format!(
            "field '{name}' must be at most {LONGEST_S}"
        )));
    }
    Ok(seconds)
}

fn secret(status: StatusCode, key: &ApiKey, text: &KeyText) -> Secret {
    let mut body = render(key, key.created_ms);
    body["key"] = text.reveal().into();
    let no_store = [(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (status, no_store, Json(body))
}

fn patterns(models: &ModelScope) -> Vec<String> {
    models.patterns().iter().map(ToString::to_string).collect()
}

fn render_quota(quota: Quota) -> Value {
    let limits = [
        quota.requests_per_minute,
        quota.tokens_per_minute,
        quota.max_streams,
    ];
    let named = LIMITS.into_iter().zip(limits);
    let set = named.filter_map(|(name, limit)| Some((name.to_owned(), limit?.into())));
    Value::Object(set.collect())
}

fn render(key: &ApiKey, now_ms: u64) -> Value {
    let previous = key.previous.map(|(_, until)| until);
    json!({
        "id": key.id.as_str(),
        "name": key.name,
        "role": key.role.as_str(),
        "models": patterns(&key.models),
        "tenant": key.tenant.as_str(),
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "expired": key.expires_ms.is_some_and(|end| end <= now_ms),
        "limits": render_quota(key.quota),
        "previous_until_ms": previous.filter(|until| now_ms < *until),
    })
}
