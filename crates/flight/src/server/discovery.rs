//! What the server says about its models, and its actions.

use std::sync::Arc;

use arrow_flight::{Action, ActionType, FlightDescriptor, FlightInfo, SchemaAsIpc, SchemaResult};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::Schema;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tonic::Status;
use volley_types::{ErrorCode, ModelRef, Predict, PredictError, Signature};

use crate::describe::describe;
use crate::descriptor::{self, Side};

const HEALTH: &str = "health";
const MODEL: &str = "model";
const PROTOCOL_VERSION: &str = "protocol_version";

/// The version of the Arrow UDF protocol that path descriptors follow.
const UDF_PROTOCOL: u8 = 2;

/// One model as a flight: its signature as one schema, no endpoints.
pub(super) async fn flight_info(
    predict: &dyn Predict,
    descriptor: &FlightDescriptor,
) -> Result<FlightInfo, PredictError> {
    let model = descriptor::model(descriptor)?;
    let signature = predict.signature(&model).await?;
    info(&model, &signature)
}

/// One side of a model's signature.
pub(super) async fn schema(
    predict: &dyn Predict,
    descriptor: &FlightDescriptor,
) -> Result<SchemaResult, PredictError> {
    let (model, side) = descriptor::schema_of(descriptor)?;
    let signature = predict.signature(&model).await?;
    let schema = match side {
        Side::Input => signature.input,
        Side::Output => signature.output,
    };
    SchemaAsIpc::new(&schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(unwritable)
}

/// Every model that can be called here. One that vanishes meanwhile is left out.
pub(super) async fn flights(
    predict: Arc<dyn Predict>,
) -> impl Stream<Item = Result<FlightInfo, Status>> + Send {
    let models = predict.models().await;
    stream::iter(models).filter_map(move |name| {
        let predict = predict.clone();
        async move {
            let model = ModelRef::deployed(name);
            let signature = predict.signature(&model).await.ok()?;
            info(&model, &signature).ok().map(Ok)
        }
    })
}

fn info(model: &ModelRef, signature: &Signature) -> Result<FlightInfo, PredictError> {
    let inputs = i64::try_from(signature.input.fields().len()).unwrap_or(i64::MAX);
    let info = FlightInfo::new()
        .try_with_schema(&describe(signature))
        .map_err(unwritable)?
        .with_descriptor(descriptor::of_model(model))
        // The Arrow UDF protocol reads the number of inputs here.
        .with_total_records(inputs)
        .with_total_bytes(-1);
    Ok(info)
}

fn unwritable(error: arrow_schema::ArrowError) -> PredictError {
    PredictError::internal("the model's schema could not be written", error)
}

/// The actions that [`act`] knows.
pub(super) fn actions() -> impl Iterator<Item = ActionType> {
    [
        (HEALTH, "says that this node answers; returns JSON"),
        (MODEL, "describes the model named in the body; returns JSON"),
        (
            PROTOCOL_VERSION,
            "the version of the Arrow UDF protocol, as one byte",
        ),
    ]
    .into_iter()
    .map(|(name, description)| ActionType {
        r#type: name.to_owned(),
        description: description.to_owned(),
    })
}

/// Runs one action.
pub(super) async fn act(predict: &dyn Predict, action: &Action) -> Result<Bytes, PredictError> {
    match action.r#type.as_str() {
        HEALTH => Ok(json!({ "status": "ok" }).to_string().into()),
        MODEL => {
            let model: ModelRef = std::str::from_utf8(&action.body)
                .map_err(|_| PredictError::invalid("the action's body must be a model's name"))?
                .parse()?;
            let signature = predict.signature(&model).await?;
            Ok(model_json(&model, &signature).to_string().into())
        }
        PROTOCOL_VERSION => Ok(Bytes::from_static(&[UDF_PROTOCOL])),
        _ => Err(PredictError::new(
            ErrorCode::Unimplemented,
            "no such action; ListActions names those that there are",
        )),
    }
}

fn model_json(model: &ModelRef, signature: &Signature) -> Value {
    json!({
        "model": model.to_string(),
        "task": signature.task.as_str(),
        "inputs": columns_json(&signature.input),
        "outputs": columns_json(&signature.output),
    })
}

fn columns_json(schema: &Schema) -> Vec<Value> {
    schema
        .fields()
        .iter()
        .map(|field| {
            json!({
                "name": field.name(),
                "type": field.data_type().to_string(),
                "nullable": field.is_nullable(),
            })
        })
        .collect()
}
