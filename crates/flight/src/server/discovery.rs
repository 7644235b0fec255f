//! Descriptions of the server's models, and its actions.

use std::sync::Arc;

use arrow_flight::{Action, ActionType, FlightDescriptor, FlightInfo, SchemaAsIpc, SchemaResult};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::{Fields, Schema};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use prost::Message;
use serde_json::{Value, json};
use tonic::Status;
use volley_proto::registry::v1::Connector;
use volley_proto::registry_records::connector_from_wire;
use volley_types::{
    CheckConnector, ErrorCode, ModelRef, Parameters, Predict, PredictError, Signature,
};

use crate::describe::describe;
use crate::descriptor::{self, Side};
use crate::udf::airport;
use crate::udf::caller::{ARGUMENTS, UdfCaller};
use crate::udf::function::Function;

const HEALTH: &str = "health";
const MODEL: &str = "model";
const PROTOCOL_VERSION: &str = "protocol_version";

/// The version of the Arrow UDF protocol that path descriptors follow.
const UDF_PROTOCOL: u8 = 2;

/// One model as a flight: its function for calls by path, otherwise its signature as one schema.
/// The flight has no endpoints.
pub(super) async fn flight_info(
    predict: &dyn Predict,
    descriptor: &FlightDescriptor,
    caller: &UdfCaller,
) -> Result<FlightInfo, PredictError> {
    let Some(name) = descriptor::name(descriptor).filter(|_| !caller.wants_rows()) else {
        let model = descriptor::model(descriptor)?;
        let signature = predict.signature(&model).await?;
        return rows_info(&model, &signature);
    };
    if let Some(function) = Function::builtin(name) {
        return function_info(&function, descriptor.clone());
    }
    let (model, mut options, _) = descriptor::function_of(descriptor)?;
    let signature = predict.signature(&model).await?;
    let function = Function::of_model(&model, &signature, &mut options)?;
    if caller.is_airport() {
        return airport::info(&model.name, &signature, &function, caller);
    }
    function_info(&function, descriptor.clone())
}

/// One schema of a model's signature, or of its function for callers of functions.
pub(super) async fn schema(
    predict: &dyn Predict,
    descriptor: &FlightDescriptor,
    caller: &UdfCaller,
) -> Result<SchemaResult, PredictError> {
    let by_function = caller.engine().and_then(|_| descriptor::name(descriptor));
    let schema = if by_function.is_some() {
        let (model, mut options, side) = descriptor::function_of(descriptor)?;
        let function = match Function::builtin(model.name.as_str()) {
            Some(function) => function,
            None => {
                let signature = predict.signature(&model).await?;
                Function::of_model(&model, &signature, &mut options)?
            }
        };
        match side {
            Side::Input => function.args,
            Side::Output => function.result,
        }
    } else {
        let (model, side) = descriptor::schema_of(descriptor)?;
        let signature = predict.signature(&model).await?;
        match side {
            Side::Input => signature.input,
            Side::Output => signature.output,
        }
    };
    SchemaAsIpc::new(&schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(unwritable)
}

/// All callable models, in the format of the caller. A model that is removed meanwhile is skipped.
/// A model that cannot be a function is described by its signature, and skipped for DuckDB.
pub(super) async fn flights(
    predict: Arc<dyn Predict>,
    caller: UdfCaller,
) -> impl Stream<Item = Result<FlightInfo, Status>> + Send {
    let here = caller
        .schema
        .as_deref()
        .is_none_or(|it| it == airport::SCHEMA);
    let models = match here {
        true => predict.models().await,
        false => Vec::new(),
    };
    stream::iter(models).filter_map(move |name| {
        let (predict, caller) = (predict.clone(), caller.clone());
        async move {
            let model = ModelRef::deployed(name);
            let signature = predict.signature(&model).await.ok()?;
            listed(&model, &signature, &caller).map(Ok)
        }
    })
}

fn listed(model: &ModelRef, signature: &Signature, caller: &UdfCaller) -> Option<FlightInfo> {
    if caller.wants_rows() {
        return rows_info(model, signature).ok();
    }
    let function = Function::of_model(model, signature, &mut Parameters::default()).ok();
    match (function, caller.is_airport()) {
        (Some(function), true) => airport::info(&model.name, signature, &function, caller).ok(),
        (Some(function), false) => function_info(&function, descriptor::of_model(model)).ok(),
        (None, true) => None,
        (None, false) => rows_info(model, signature).ok(),
    }
}

fn rows_info(model: &ModelRef, signature: &Signature) -> Result<FlightInfo, PredictError> {
    let inputs = signature.input.fields().len();
    info(
        &describe(signature),
        descriptor::of_model(model),
        inputs,
        -1,
    )
}

/// Arguments first, then the result. The Arrow UDF protocol reads the number of arguments in the
/// number of records, Databend's clients in the schema's metadata.
fn function_info(
    function: &Function,
    descriptor: FlightDescriptor,
) -> Result<FlightInfo, PredictError> {
    let (args, result) = (function.args.fields(), function.result.fields());
    let fields: Fields = args.iter().chain(result).cloned().collect();
    let metadata = [(ARGUMENTS.to_owned(), args.len().to_string())];
    let schema = Schema::new_with_metadata(fields, metadata.into());
    info(&schema, descriptor, args.len(), 0)
}

fn info(
    schema: &Schema,
    descriptor: FlightDescriptor,
    inputs: usize,
    bytes: i64,
) -> Result<FlightInfo, PredictError> {
    let info = FlightInfo::new()
        .try_with_schema(schema)
        .map_err(unwritable)?
        .with_descriptor(descriptor)
        .with_total_records(i64::try_from(inputs).unwrap_or(i64::MAX))
        .with_total_bytes(bytes);
    Ok(info)
}

fn unwritable(error: arrow_schema::ArrowError) -> PredictError {
    PredictError::internal("the model's schema could not be written", error)
}

/// The actions of [`act`].
pub(super) fn actions() -> impl Iterator<Item = ActionType> {
    [
        (HEALTH, "checks that this node responds; returns JSON"),
        (MODEL, "describes the model named in the body; returns JSON"),
        (
            PROTOCOL_VERSION,
            "the version of the Arrow UDF protocol, as one byte",
        ),
    ]
    .into_iter()
    .chain(airport::ACTIONS)
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
        other => airport::act(other, &predict.models().await)
            .map(Bytes::from)
            .ok_or_else(|| {
                PredictError::new(
                    ErrorCode::Unimplemented,
                    "this action does not exist; ListActions lists the actions",
                )
            }),
    }
}

/// Checks a connector on this node.
pub(super) async fn check_connector(
    connectors: &dyn CheckConnector,
    body: &[u8],
) -> Result<Bytes, PredictError> {
    let malformed = || PredictError::invalid("the action's body must be a connector");
    let (test, connector) = body.split_first().ok_or_else(malformed)?;
    let connector = Connector::decode(connector).map_err(|_| malformed())?;
    let connector = connector_from_wire(connector)?;
    connectors.check_connector(&connector, *test == 1).await?;
    Ok(Bytes::new())
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
