//! `/_volley/aliases`: names that distribute requests over models and versions by weight.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{AliasEntry, AliasMirror, AliasSpec, AliasTarget, RegistryCommand};
use volley_types::{ErrorCode, ModelName, PredictError, Revision};

use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

const FIELDS: [&str; 5] = ["name", "targets", "mirror", "sticky_header", "description"];

/// The query parameter of a conditional write.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectedRevision {
    /// The revision that the client has read. Without it, the write is unconditional.
    revision: Option<u64>,
}

impl ExpectedRevision {
    pub(crate) fn expected(&self) -> Option<Revision> {
        self.revision.map(Revision)
    }
}

pub(crate) async fn list(caller: Caller) -> Json<Value> {
    let registry = caller.cluster.registry.state();
    let aliases = registry.aliases.values();
    let aliases: Vec<_> = aliases.map(|entry| render(&caller, entry)).collect();
    Json(json!({ "aliases": aliases }))
}

pub(crate) async fn get(caller: Caller, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    Ok(Json(find(&caller, &name)?))
}

/// Creates an alias. `Conflict` if the name is in use.
pub(crate) async fn create(
    caller: Caller,
    JsonObject(body): JsonObject,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let name = ModelName::new(body.required("name")?)?;
    let alias = read(&body, name)?;
    let written = put(&caller, alias, Some(Revision(0))).await?;
    Ok((StatusCode::CREATED, Json(written)))
}

/// Creates or replaces an alias.
pub(crate) async fn replace(
    caller: Caller,
    Path(name): Path<String>,
    Query(at): Query<ExpectedRevision>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    body.same_name(name.as_str())?;
    let alias = read(&body, name)?;
    Ok(Json(put(&caller, alias, at.expected()).await?))
}

pub(crate) async fn delete(
    caller: Caller,
    Path(name): Path<String>,
    Query(at): Query<ExpectedRevision>,
) -> Result<Json<Value>, ApiError> {
    let name = ModelName::new(name)?;
    let delete = RegistryCommand::DeleteAlias {
        name: name.clone(),
        expected: at.expected(),
    };
    caller.cluster.registry.write(delete).await?;
    Ok(Json(json!({ "_id": name.as_str(), "result": "deleted" })))
}

async fn put(
    caller: &Caller,
    alias: AliasSpec,
    expected: Option<Revision>,
) -> Result<Value, PredictError> {
    let name = alias.name.clone();
    let write = RegistryCommand::PutAlias { alias, expected };
    caller.cluster.registry.write(write).await?;
    find(caller, &name)
}

fn find(caller: &Caller, name: &ModelName) -> Result<Value, PredictError> {
    let registry = caller.cluster.registry.state();
    let entry = registry.aliases.get(name);
    let entry = entry.ok_or_else(|| {
        PredictError::new(ErrorCode::NotFound, format!("no alias '{name}' exists"))
    })?;
    Ok(render(caller, entry))
}

fn read(body: &Map<String, Value>, name: ModelName) -> Result<AliasSpec, PredictError> {
    body.only("an alias", &FIELDS)?;
    let targets = match body.get("targets") {
        Some(Value::Array(targets)) => targets.iter().map(target).collect::<Result<_, _>>()?,
        _ => return Err(wrong_target()),
    };
    Ok(AliasSpec {
        name,
        targets,
        mirror: body.object("mirror")?.map(mirror).transpose()?,
        sticky_header: body.text("sticky_header")?.map(str::to_ascii_lowercase),
        description: body.text("description")?.unwrap_or_default().to_owned(),
    })
}

fn wrong_target() -> PredictError {
    PredictError::invalid(
        "field 'targets' must be a list of {\"model\": \"name\" or \"name:version\", \"weight\": \
         number}",
    )
}

fn target(target: &Value) -> Result<AliasTarget, PredictError> {
    let target = target.as_object().ok_or_else(wrong_target)?;
    target.only("a target", &["model", "weight"])?;
    let weight = target.count("weight")?.unwrap_or(1);
    Ok(AliasTarget {
        model: target.required("model")?.parse()?,
        weight: u32::try_from(weight).unwrap_or(u32::MAX),
    })
}

fn mirror(mirror: &Map<String, Value>) -> Result<AliasMirror, PredictError> {
    mirror.only("a mirror", &["model", "percent"])?;
    let percent = match mirror.get("percent") {
        None | Some(Value::Null) => Some(100.0),
        Some(percent) => percent.as_f64(),
    };
    let permille = percent.map(|percent| (percent * 10.0).round());
    let permille = permille.filter(|permille| (1.0..=1_000.0).contains(permille));
    let permille = permille.ok_or_else(|| {
        PredictError::invalid("field 'percent' of a mirror must be a number from 0.1 to 100")
    })?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is a whole number from 1 to 1000"
    )]
    let permille = permille as u32;
    Ok(AliasMirror {
        model: mirror.required("model")?.parse()?,
        permille,
    })
}

fn render(caller: &Caller, entry: &AliasEntry) -> Value {
    let alias = &entry.spec;
    let targets = alias.targets.iter();
    let targets = targets
        .map(|target| json!({ "model": target.model.to_string(), "weight": target.weight }))
        .collect::<Vec<_>>();
    let mirror = alias.mirror.as_ref();
    let mirror = mirror.map(|mirror| {
        let percent = f64::from(mirror.permille) / 10.0;
        json!({ "model": mirror.model.to_string(), "percent": percent })
    });
    let status = caller.cluster.view.model_status(&alias.name);
    json!({
        "name": alias.name.as_str(),
        "targets": targets,
        "mirror": mirror,
        "sticky_header": alias.sticky_header,
        "description": alias.description,
        "revision": entry.revision.0,
        "state": status.map(|status| status.state.as_str()),
    })
}
