//! Which model a client means that knows servers of one model only.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Map, Value};
use volley_types::{ModelRef, PredictError, Signature, Task};

use crate::app::App;
use crate::body::Fields;
use crate::error::ApiError;
use crate::extract::Query;
use crate::{catalogue, openai};

/// What a path and a query name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    path: Option<String>,
    query: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InQuery {
    model: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
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

impl Named {
    /// Whether a path or a query names one.
    pub(crate) fn is_some(&self) -> bool {
        let mut names = [&self.path, &self.query].into_iter().flatten();
        names.any(|name| !name.is_empty())
    }
}

/// The model of a request.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) name: String,
    pub(crate) model: ModelRef,
    pub(crate) signature: Signature,
}

/// The model that a request names, or the only one that is ready and does one of `tasks`; `what`
/// says in a verb what that is.
///
/// # Errors
/// `NotFound` where there is none; `InvalidInput` where there are several, where two places name
/// two, or where the one named does something else.
pub(crate) async fn choose(
    app: &App,
    named: Named,
    body: &mut Map<String, Value>,
    tasks: &[Task],
    what: &str,
) -> Result<Chosen, PredictError> {
    let in_body = body.text("model")?.map(str::to_owned);
    body.remove("model");
    let mut given = [named.path, named.query, in_body].into_iter().flatten();
    let mut given = given.by_ref().filter(|name| !name.is_empty());
    let Some(name) = given.next() else {
        let (model, signature) = catalogue::only(app, tasks, what).await?;
        return Ok(Chosen {
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
    let model = openai::reference(&name)?;
    let signature = app.control.signature(&model).await?;
    if tasks.contains(&signature.task) {
        return Ok(Chosen {
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
