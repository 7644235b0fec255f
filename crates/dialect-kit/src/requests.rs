//! Conversion of a body: the selection of the model, and the request to the cluster.

use arrow_array::RecordBatch;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value};
use volley_http_edge::axum::extract::{FromRequestParts, RawPathParams};
use volley_types::{
    Dialect, ErrorCode, Input, ModelRef, PredictError, PredictRequest, Signature, Task,
};

use crate::catalogue;
use crate::parameters;
use volley_http_edge::body::Fields;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Query;

/// The model of a body, with its signature.
pub async fn model(
    caller: &Caller,
    body: &mut Map<String, Value>,
) -> Result<(String, ModelRef, Signature), PredictError> {
    let name = body.required("model")?.to_owned();
    body.remove("model");
    let model = reference(&name)?;
    let signature = caller.cluster.inference.signature(&model).await?;
    Ok((name, model, signature))
}

/// As [`model`], but a body without a model selects the only ready model with this task, as on
/// single-model servers.
pub async fn model_for(
    caller: &Caller,
    body: &mut Map<String, Value>,
    task: Task,
) -> Result<(String, ModelRef, Signature), PredictError> {
    if body.text("model")?.is_some_and(|name| !name.is_empty()) {
        let (name, model, signature) = model(caller, body).await?;
        expect(&name, &signature, task)?;
        return Ok((name, model, signature));
    }
    body.remove("model");
    let only = catalogue::only(caller, &[task], task.as_str()).await;
    let (model, signature) = only.map_err(|error| {
        PredictError::invalid(format!("field 'model' is missing, and {}", error.message))
    })?;
    Ok((model.to_string(), model, signature))
}

/// Parses a client's model name. A malformed name counts as an unknown model, because clients
/// expect that error.
///
/// # Errors
/// `NotFound` for a malformed name.
pub fn reference(name: &str) -> Result<ModelRef, PredictError> {
    name.parse().map_err(|error: PredictError| {
        let written: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
        let message = format!("no model '{written}' exists: {}", error.message);
        PredictError::new(ErrorCode::NotFound, message)
    })
}

/// Rejects a model with another task.
pub fn expect(name: &str, signature: &Signature, wanted: Task) -> Result<(), PredictError> {
    if signature.task == wanted {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "model '{name}' has the task '{}', and this route needs '{}'",
        signature.task.as_str(),
        wanted.as_str()
    )))
}

/// A request with the remaining fields of the body as parameters. Null counts as missing.
pub fn request(
    model: ModelRef,
    rows: RecordBatch,
    left: &Map<String, Value>,
    context: &RequestContext,
) -> Result<PredictRequest, PredictError> {
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.session = context.session.clone();
    request.deadline = Some(context.deadline);
    request.dialect = Dialect::OpenAi;
    request.parameters = parameters::from_json(left)?;
    Ok(request)
}

/// Model names in a path and a query.
#[derive(Clone, Debug, Default)]
pub struct RouteModel {
    path: Option<String>,
    query: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InQuery {
    model: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for RouteModel {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Query(InQuery { model }) = Query::from_request_parts(parts, state).await?;
        let path = RawPathParams::from_request_parts(parts, state).await;
        let path = path.map_err(|rejection| {
            PredictError::invalid("the request's path is malformed").with_source(rejection)
        })?;
        let named = path.iter().find(|(name, _)| *name == "model");
        Ok(Self {
            path: named.map(|(_, model)| model.to_owned()),
            query: model,
        })
    }
}

impl RouteModel {
    /// Whether the path or the query has a name.
    pub fn is_some(&self) -> bool {
        let mut names = [&self.path, &self.query].into_iter().flatten();
        names.any(|name| !name.is_empty())
    }
}

/// The model of a request.
#[derive(Clone, Debug)]
pub struct ResolvedModel {
    /// The name that the request used.
    pub name: String,
    /// The model reference of the name.
    pub model: ModelRef,
    /// The signature of the model.
    pub signature: Signature,
}

/// The model of a request, or else the only ready model with one of `tasks`; `what` is the verb for
/// errors.
///
/// # Errors
/// `NotFound` if no model matches; `InvalidInput` if several match, if the request names different
/// models, or if the model has another task.
pub async fn choose(
    caller: &Caller,
    named: RouteModel,
    body: &mut Map<String, Value>,
    tasks: &[Task],
    what: &str,
) -> Result<ResolvedModel, PredictError> {
    let in_body = body.text("model")?.map(str::to_owned);
    body.remove("model");
    let mut given = [named.path, named.query, in_body].into_iter().flatten();
    let mut given = given.by_ref().filter(|name| !name.is_empty());
    let Some(name) = given.next() else {
        let (model, signature) = catalogue::only(caller, tasks, what).await?;
        return Ok(ResolvedModel {
            name: model.to_string(),
            model,
            signature,
        });
    };
    if given.any(|other| other != name) {
        return Err(PredictError::invalid(
            "the path, the query and the field 'model' name different models; name one",
        ));
    }
    let model = reference(&name)?;
    let signature = caller.cluster.inference.signature(&model).await?;
    if tasks.contains(&signature.task) {
        return Ok(ResolvedModel {
            name,
            model,
            signature,
        });
    }
    let wanted = tasks.iter().map(|task| format!("'{}'", task.as_str()));
    Err(PredictError::invalid(format!(
        "model '{name}' has the task '{}', and this route needs {}",
        signature.task.as_str(),
        wanted.collect::<Vec<_>>().join(" or ")
    )))
}
