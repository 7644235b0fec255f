//! `POST /v2/models/{model}/infer`.

use std::sync::Arc;

use axum::Json;
use serde_json::{Map, Value, json};
use volley_types::{Input, PredictError, PredictRequest, Task};

use super::{Found, Named, tensors};
use crate::app::App;
use crate::body::{Fields, UntypedJsonObject};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::{Path, State};
use crate::{answer, parameters};

/// Tensors in, tensors out.
pub(crate) async fn infer(
    State(app): State<Arc<App>>,
    Path(named): Path<Named>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let found = Found::find(&app, &named).await?;
        if found.signature.task == Task::Generate {
            return Err(PredictError::invalid(format!(
                "model '{}' generates text: use generate or generate_stream",
                found.model.name
            )));
        }
        body.only("a request", &["id", "parameters", "inputs", "outputs"])?;
        let inputs = body.get("inputs").and_then(Value::as_array);
        let inputs = inputs.filter(|inputs| !inputs.is_empty()).ok_or_else(|| {
            PredictError::invalid("field 'inputs' must be a list of at least one tensor")
        })?;
        let (rows, batched) = tensors::rows(inputs, &found.signature.input)?;
        let wanted = wanted(&body)?;
        let mut request = PredictRequest::new(found.model.clone(), Input::Batch(rows));
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.deadline = Some(context.deadline);
        let mut given = body.object("parameters")?.cloned().unwrap_or_default();
        // Answers are JSON, whatever is asked for; clients read both.
        given.remove("binary_data_output");
        request.parameters = parameters::from_json(&given)?;
        let batches = answer::collect(app.control.predict(request).await?).await?;
        let schema = &found.signature.output;
        let outputs = tensors::outputs(&batches, schema, wanted.as_deref(), batched)?;
        let mut answer = json!({
            "model_name": found.model.name.as_str(),
            "model_version": found.version,
        });
        if let Some(id) = body.text("id")? {
            answer["id"] = id.into();
        }
        answer["outputs"] = outputs.into();
        Ok(answer)
    };
    Ok(Json(context.in_time(work).await?))
}

/// The names of the outputs that are asked for.
fn wanted(body: &Map<String, Value>) -> Result<Option<Vec<String>>, PredictError> {
    let wrong = || PredictError::invalid("field 'outputs' must be a list of objects with a 'name'");
    let outputs = match body.get("outputs") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(outputs)) => outputs,
        Some(_) => return Err(wrong()),
    };
    let names = outputs
        .iter()
        .map(|output| output.get("name")?.as_str().map(str::to_owned));
    let names: Vec<_> = names.collect::<Option<_>>().ok_or_else(wrong)?;
    Ok(Some(names).filter(|names| !names.is_empty()))
}
