//! Models as functions: their signatures and calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_flight::{FlightDescriptor, FlightInfo};
use arrow_schema::{DataType, Field, Fields, Schema};
use futures::TryStreamExt;
use tonic::Request;
use tonic::metadata::{MetadataMap, MetadataValue};
use volley_types::{Deadline, ErrorCode, Input, PredictError, Signature};

use super::exchange::{self, ExchangeRequest};
use super::{FlightClient, discovery};
use crate::udf::caller::{ARGUMENTS, CALL};
use crate::udf::function::{self, Function};
use crate::udf::types::argument_name;
use crate::{describe, ingress};

/// A model that can be called as a function, with its signature.
#[derive(Clone, Debug)]
pub struct FunctionModel {
    /// Its function without options.
    pub function: FunctionType,
    signature: Signature,
}

impl FunctionModel {
    /// The function `name` of this model: the model's name, optionally with `:version` and
    /// `?option=value&…`. Options may select the result.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid name or option.
    pub fn named(&self, name: &str) -> Result<FunctionType, PredictError> {
        let (model, mut options) = function::parse_name(name)?;
        let function = Function::of_model(&model, &self.signature, &mut options)?;
        let arguments = function.args.fields().iter();
        Ok(FunctionType {
            name: self.function.name.clone(),
            arguments: arguments.map(|field| field.data_type().clone()).collect(),
            result: function.result_type().clone(),
        })
    }
}

/// A model as a function of its arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionType {
    /// Its name: the model's.
    pub name: String,
    /// The types of its arguments, which are all nullable.
    pub arguments: Vec<DataType>,
    /// The type of its result, which is null if an argument is null.
    pub result: DataType,
}

impl FlightClient {
    /// The function `name`: a model's name, optionally with `:version` and `?option=value&…`.
    ///
    /// # Errors
    /// The errors of the node, such as `NotFound`; `Unavailable` when it cannot be reached.
    pub async fn function(&self, name: &str) -> Result<FunctionType, PredictError> {
        let mut call = Request::new(FlightDescriptor::new_path(vec![name.to_owned()]));
        *call.metadata_mut() = self.function_headers();
        let mut service = self.service();
        let by = self.accept_by(Instant::now());
        let info = discovery::within(by, service.get_flight_info(call)).await?;
        function_type(&info.into_inner()).ok_or_else(unreadable)
    }

    /// Every model that can be called as a function here.
    ///
    /// # Errors
    /// `Unavailable` when the node cannot be reached, and other errors of the node.
    pub async fn functions(&self) -> Result<Vec<FunctionType>, PredictError> {
        let by = self.accept_by(Instant::now());
        let infos = discovery::listed(self.service(), self.function_headers(), by).await?;
        Ok(infos.iter().filter_map(function_type).collect())
    }

    /// As [`FlightClient::functions`], with signatures, for functions with options.
    ///
    /// # Errors
    /// As for [`FlightClient::functions`].
    pub async fn function_models(&self) -> Result<Vec<FunctionModel>, PredictError> {
        let functions = self.functions().await?;
        let by = self.accept_by(Instant::now());
        let mut headers = self.headers();
        headers.insert(CALL, MetadataValue::from_static("rows"));
        let infos = discovery::listed(self.service(), headers, by).await?;
        let mut signatures: BTreeMap<_, _> = infos.iter().filter_map(named_signature).collect();
        // Models that were deployed or removed between the two lists are skipped.
        let models = functions.into_iter().filter_map(|function| {
            let signature = signatures.remove(&function.name)?;
            Some(FunctionModel {
                function,
                signature,
            })
        });
        Ok(models.collect())
    }

    /// The values of the function `name` for `rows` rows of `arguments`, columns of that length,
    /// within `timeout`.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call.
    ///
    /// # Errors
    /// The errors of the node; `InvalidInput` when the columns differ in length.
    pub async fn call(
        &self,
        name: &str,
        arguments: Vec<ArrayRef>,
        rows: usize,
        timeout: Duration,
    ) -> Result<ArrayRef, PredictError> {
        let named = |(index, column): (usize, &ArrayRef)| {
            Field::new(argument_name(index), column.data_type().clone(), true)
        };
        let fields: Fields = arguments.iter().enumerate().map(named).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new_with_options(schema, arguments, &options)
            .map_err(|error| PredictError::invalid("the columns differ").with_source(error))?;
        let now = Instant::now();
        let opening = ExchangeRequest {
            descriptor: FlightDescriptor::new_path(vec![name.to_owned()]),
            input: Input::Batch(batch),
            deadline: Some(Deadline::after(now, timeout)),
            caller_keeps_deadline: false,
            headers: self.function_headers(),
        };
        let accept_by = self.accept_by(now);
        let answer = exchange::open(self.channel(), opening, now, accept_by).await?;
        let schema = answer.schema();
        let batches: Vec<RecordBatch> = answer.try_collect().await?;
        let answer = arrow_select::concat::concat_batches(&schema, &batches);
        match answer.map(|answer| (answer.num_rows(), answer.columns().first().cloned())) {
            Ok((got, Some(values))) if got == rows => Ok(values),
            _ => Err(unreadable()),
        }
    }

    fn function_headers(&self) -> MetadataMap {
        let mut headers = self.headers();
        headers.insert(CALL, MetadataValue::from_static("function"));
        headers
    }
}

fn named_signature(info: &FlightInfo) -> Option<(String, Signature)> {
    let schema = ingress::decode_schema_bytes(&info.schema).ok()?;
    let name = info.flight_descriptor.as_ref()?.path.first()?.clone();
    Some((name, describe::signature_of(&schema)?))
}

fn function_type(info: &FlightInfo) -> Option<FunctionType> {
    let schema = ingress::decode_schema_bytes(&info.schema).ok()?;
    // Models that cannot be functions are described by their own rows.
    let arguments = schema.metadata().get(ARGUMENTS)?.parse().ok()?;
    let (arguments, results) = schema.fields().split_at_checked(arguments)?;
    let [result] = results else {
        return None;
    };
    let kind = |field: &Arc<Field>| field.data_type().clone();
    Some(FunctionType {
        name: info.flight_descriptor.as_ref()?.path.first()?.clone(),
        arguments: arguments.iter().map(kind).collect(),
        result: kind(result),
    })
}

fn unreadable() -> PredictError {
    PredictError::new(
        ErrorCode::Internal,
        "the node returned a malformed description or response of the function",
    )
}
