//! Converts a `ModelInferRequest` to a [`PredictRequest`].

use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use volley_proto::inference::triton::{InferParameter, ModelInferRequest, ModelInferResponse};
use volley_proto::tensor_contents::{self as contents, to_raw};
use volley_types::{Input, ParamValue, Parameters, PredictError, PredictRequest, Share, Task};

use super::GrpcFlavor;
use super::reply::{OutputEncoding, Reply};
use crate::describe::{TEXT_INPUT, TEXT_OUTPUT};
use crate::known::{self, OF_INPUTS, OF_OUTPUTS};
use crate::outputs::{self, GrpcOutput, RequestedOutputs};
use crate::state::OipCaller;
use crate::tensors::{RawTensor, TensorRows, binary_rows, printable};
use crate::{ModelPath, ResolvedModel, reserved, text_parameters};
use volley_dialect_kit::chat;
use volley_http_edge::context::RequestContext;
use volley_shared_memory::{self as shared_memory, REGION, Slice};

/// The model of a message. An empty version selects the deployed one.
pub(super) fn named(model: String, version: String) -> ModelPath {
    ModelPath {
        model,
        version: (!version.is_empty()).then_some(version),
    }
}

/// Input with the messages of a chat in place of a text: a JSON list of messages.
const MESSAGES: &str = "messages";
/// Parameter that requests an empty last message in the stream of a generation.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// A parsed request.
pub(super) struct ModelInferCall {
    pub(super) found: ResolvedModel,
    pub(super) request: PredictRequest,
    pub(super) reply: Reply,
    /// Whether the response is a stream.
    pub(super) streams: bool,
    /// The message's share of the memory for bodies.
    pub(super) share: Share,
}

impl ModelInferCall {
    /// Parses one message.
    ///
    /// # Errors
    /// `InvalidInput` naming the fault; `NotFound` or `Unavailable` for the model.
    pub(super) async fn read(
        caller: &OipCaller,
        flavor: GrpcFlavor,
        mut given: ModelInferRequest,
        context: &RequestContext,
        share: Share,
    ) -> Result<Self, PredictError> {
        let named = named(
            std::mem::take(&mut given.model_name),
            std::mem::take(&mut given.model_version),
        );
        let found = ResolvedModel::find(caller, &named).await?;
        let is_generation = found.signature.task == Task::Generate;
        let streams = is_generation || found.signature.task == Task::Events;
        let raw = flavor == GrpcFlavor::Triton || !given.raw_input_contents.is_empty();
        let inputs = inputs(given.inputs, given.raw_input_contents, caller)?;
        let mut parameters = parameters(given.parameters)?;
        let empty_final = parameters.remove(EMPTY_FINAL) == Some(ParamValue::Bool(true));
        let wanted = wanted(given.outputs)?;
        let (rows, form) = if is_generation {
            only_text(&wanted)?;
            let (rows, shape) = prompts(&inputs, &mut parameters)?;
            (rows, OutputEncoding::Texts(shape))
        } else {
            let TensorRows {
                batch,
                batched,
                empty,
            } = binary_rows(inputs, &found.signature.input)?;
            let schema = found.signature.declared_output();
            let wanted = RequestedOutputs::binary(wanted, &schema)?.of(empty);
            let form = OutputEncoding::Tensors {
                schema,
                wanted,
                batched,
            };
            (batch, form)
        };
        let mut request = PredictRequest::new(found.model.clone(), Input::Batch(rows));
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.session = context.session.clone();
        let task = found.signature.task;
        let waits = found.has_queues();
        reserved::put(&mut request, parameters, context.deadline, task, waits)?;
        let reply = Reply {
            model_name: found.model.name.clone(),
            model_version: found.version.clone(),
            id: given.id,
            raw,
            form,
            empty_final,
        };
        Ok(Self {
            found,
            request,
            reply,
            streams,
            share,
        })
    }

    /// Runs the request and returns its complete response.
    ///
    /// # Errors
    /// Errors of the prediction, and those of [`Reply::whole`].
    pub(super) async fn answer(
        self,
        caller: &OipCaller,
    ) -> Result<ModelInferResponse, PredictError> {
        let Self {
            found,
            mut request,
            mut reply,
            share: _share,
            ..
        } = self;
        let mut run = caller
            .state
            .statistics()
            .start(&reply.model_name, &reply.model_version);
        run.is_read(rows(&request));
        let task = found.signature.task;
        if task == Task::Generate {
            text_parameters::one_answer(&request.parameters)?;
        }
        request.whole = matches!(task, Task::Generate | Task::Events);
        let chunks = found.predict(caller, request).await?;
        reply.model_version = found.answering(caller, &chunks);
        let batches = found.collect(chunks).await?;
        run.is_inferred();
        let (response, shared) = reply.whole(&batches)?;
        for (slice, bytes) in &shared {
            caller.state.shared_memory().write(slice, bytes)?;
        }
        run.is_done();
        Ok(response)
    }
}

/// Number of rows of a request.
pub(super) fn rows(request: &PredictRequest) -> usize {
    match &*request.input {
        Input::Batch(batch) => batch.num_rows(),
        Input::Stream { .. } => 0,
    }
}

/// Rejects outputs that a generation does not have.
fn only_text(wanted: &[GrpcOutput]) -> Result<(), PredictError> {
    if let Some(other) = wanted.iter().find(|output| output.name != TEXT_OUTPUT) {
        return Err(outputs::no_output(&other.name));
    }
    outputs::once(wanted.iter().map(|output| output.name.as_str()))?;
    if wanted.iter().any(|output| output.classes.is_some()) {
        let message = "texts have no classes; leave 'classification' out";
        return Err(PredictError::invalid(message));
    }
    if wanted.iter().any(|output| output.shared.is_some()) {
        let message = "texts cannot be written to shared memory; leave its parameters out";
        return Err(PredictError::invalid(message));
    }
    Ok(())
}

/// Parses the requested outputs.
fn wanted(given: Vec<InferRequestedOutputTensor>) -> Result<Vec<GrpcOutput>, PredictError> {
    let names = given.into_iter().map(|output| {
        known_parameters(&output.parameters, "output", &output.name, &OF_OUTPUTS)?;
        let shared = slice(&output.parameters).map_err(|what| {
            PredictError::invalid(format!("output '{}': {what}", printable(&output.name)))
        })?;
        let classes = match output.parameters.get("classification") {
            None => None,
            Some(given) => classes(given)?,
        };
        Ok(GrpcOutput {
            name: output.name,
            classes,
            shared,
        })
    });
    names.collect()
}

/// Parses a number of classes; `None` for 0, which Triton's clients send for no classification.
fn classes(given: &InferParameter) -> Result<Option<usize>, PredictError> {
    let count = match given.parameter_choice {
        Some(ParameterChoice::Int64Param(count)) => usize::try_from(count).ok(),
        Some(ParameterChoice::Uint64Param(count)) => usize::try_from(count).ok(),
        _ => None,
    };
    let count = count.ok_or_else(|| {
        PredictError::invalid("output parameter 'classification' must be a number of classes")
    })?;
    Ok((count != 0).then_some(count))
}

/// Collects the inputs from typed contents, raw contents or shared memory.
fn inputs(
    given: Vec<InferInputTensor>,
    raw: Vec<Bytes>,
    caller: &OipCaller,
) -> Result<Vec<RawTensor>, PredictError> {
    if given.is_empty() {
        return Err(PredictError::invalid(
            "'inputs' must have at least one tensor",
        ));
    }
    let is_shared = |input: &InferInputTensor| input.parameters.contains_key(REGION);
    let own = given.iter().filter(|input| !is_shared(input)).count();
    if !raw.is_empty() && raw.len() != own {
        return Err(PredictError::invalid(format!(
            "there are {own} inputs and {} raw_input_contents; each input that is not in shared \
             memory needs its own",
            raw.len()
        )));
    }
    let (mut raw, mut memory) = (raw.into_iter(), caller.state.shared_memory().reader());
    let read = |input: InferInputTensor| {
        known_parameters(&input.parameters, "input", &input.name, &OF_INPUTS)?;
        let shared = slice(&input.parameters).map_err(|what| {
            PredictError::invalid(format!("input '{}': {what}", printable(&input.name)))
        })?;
        let raw = match shared {
            Some(slice) => Some(memory.read(&slice)?),
            None => raw.next(),
        };
        tensor(input, raw)
    };
    given.into_iter().map(read).collect()
}

/// Checks the parameters of a tensor.
fn known_parameters(
    parameters: &BTreeMap<String, InferParameter>,
    kind: &str,
    name: &str,
    known: &[&str],
) -> Result<(), PredictError> {
    let what = format!("{kind} '{}'", printable(name));
    let names: Vec<&str> = parameters.keys().map(String::as_str).collect();
    known::only(&what, &names, known)?;
    let codec = parameters.get("content_type");
    match codec.and_then(|codec| codec.parameter_choice.as_ref()) {
        Some(ParameterChoice::StringParam(codec)) if codec == "base64" => {
            Err(PredictError::invalid(format!(
                "parameter 'content_type' of {what} cannot be base64 over gRPC; send the bytes \
                 themselves"
            )))
        }
        None | Some(ParameterChoice::StringParam(_)) => Ok(()),
        Some(_) => Err(PredictError::invalid(format!(
            "parameter 'content_type' of {what} must be a string"
        ))),
    }
}

/// Parses the shared-memory slice in parameters, if any.
fn slice(parameters: &BTreeMap<String, InferParameter>) -> Result<Option<Slice>, String> {
    let told = parameters.iter().filter_map(|(name, value)| {
        let value: Value = match value.parameter_choice.as_ref()? {
            ParameterChoice::StringParam(text) => text.as_str().into(),
            ParameterChoice::Int64Param(number) => (*number).into(),
            ParameterChoice::Uint64Param(number) => (*number).into(),
            ParameterChoice::BoolParam(_) | ParameterChoice::DoubleParam(_) => Value::Null,
        };
        Some((name.as_str(), value))
    });
    let told: BTreeMap<&str, Value> = told.collect();
    shared_memory::slice(|name| told.get(name))
}

fn tensor(input: InferInputTensor, raw: Option<Bytes>) -> Result<RawTensor, PredictError> {
    let name = printable(&input.name);
    let wrong = |what: &str| PredictError::invalid(format!("input '{name}': {what}"));
    let dims = input.shape.iter().map(|dim| usize::try_from(*dim));
    let shape = dims.collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| wrong("'shape' must be a list of sizes"))?;
    let data = match (raw, input.contents) {
        (Some(raw), None) => raw,
        (None, Some(contents)) => {
            to_raw(&input.datatype, &contents).map_err(|error| wrong(&error.message))?
        }
        (Some(_), Some(_)) => return Err(wrong("has both raw and typed contents")),
        // A tensor without elements may have no contents.
        (None, None) if shape.contains(&0) => Bytes::new(),
        (None, None) => return Err(wrong("has no contents")),
    };
    Ok(RawTensor {
        name: input.name,
        datatype: input.datatype,
        shape,
        data,
    })
}

fn parameters(given: BTreeMap<String, InferParameter>) -> Result<Parameters, PredictError> {
    let mut parameters = Parameters::default();
    for (name, value) in given {
        let wrong =
            |what: &str| PredictError::invalid(format!("parameter '{}' {what}", printable(&name)));
        let value = match value.parameter_choice {
            None => return Err(wrong("has no value")),
            Some(ParameterChoice::BoolParam(value)) => ParamValue::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => ParamValue::Int(value),
            Some(ParameterChoice::StringParam(value)) => ParamValue::Text(value),
            Some(ParameterChoice::DoubleParam(value)) => ParamValue::Float(value),
            Some(ParameterChoice::Uint64Param(value)) => match i64::try_from(value) {
                Ok(value) => ParamValue::Int(value),
                // Sequence ids may use all 64 bits.
                Err(_) if name == "sequence_id" => ParamValue::Text(value.to_string()),
                Err(_) => return Err(wrong("is too large")),
            },
        };
        match name.as_str() {
            "content_type" if value == ParamValue::Text("base64".to_owned()) => {
                return Err(wrong(
                    "cannot be base64 over gRPC; send the bytes themselves",
                ));
            }
            // What MLServer's clients say of codecs is not for the model.
            "content_type" | "binary_data_output" => {}
            "headers" => {
                return Err(wrong(
                    "is not supported over gRPC; leave it out, or send metadata",
                ));
            }
            _ => parameters.set(name, value)?,
        }
    }
    Ok(parameters)
}

/// Builds the rows of a generation, and returns the shape of its texts. Other inputs with one
/// element become parameters, as in other servers of language models over this protocol.
fn prompts(
    inputs: &[RawTensor],
    parameters: &mut Parameters,
) -> Result<(arrow_array::RecordBatch, Vec<usize>), PredictError> {
    let (mut rows, mut texts) = (None, 0);
    for input in inputs {
        let wrong = |what: &str| {
            PredictError::invalid(format!("input '{}': {what}", printable(&input.name)))
        };
        match input.name.as_str() {
            TEXT_INPUT | volley_types::signature::PROMPT => {
                let given = strings(input).map_err(|error| wrong(&error.message))?;
                rows = Some((chat::prompts(&given)?, input.shape.clone()));
                texts += 1;
            }
            MESSAGES => {
                let given = strings(input).map_err(|error| wrong(&error.message))?;
                let malformed = || wrong("must be one JSON list of chat messages");
                let [given] = given.as_slice() else {
                    return Err(malformed());
                };
                let messages: Vec<Value> = serde_json::from_str(given).map_err(|_| malformed())?;
                let messages: Option<Vec<_>> = messages.iter().map(chat::openai_message).collect();
                let messages = messages.ok_or_else(malformed)?;
                rows = Some((chat::conversation(&messages)?, input.shape.clone()));
                texts += 1;
            }
            // The call determines whether the response is a stream.
            "stream" | "streaming" => match single(input) {
                Some(ParamValue::Bool(_)) => {}
                _ => return Err(wrong("must be one boolean")),
            },
            name => {
                let value = single(input).ok_or_else(|| wrong("must have one element"))?;
                if parameters.get(name).is_some_and(|given| *given != value) {
                    return Err(text_parameters::different(name));
                }
                parameters.set(input.name.clone(), value)?;
            }
        }
    }
    match (rows, texts) {
        (Some(rows), 1) => Ok(rows),
        (None, _) => Err(PredictError::invalid(format!(
            "input '{TEXT_INPUT}' is missing"
        ))),
        _ => Err(PredictError::invalid(format!(
            "give either '{TEXT_INPUT}' or '{MESSAGES}', and give it once"
        ))),
    }
}

/// The elements of a BYTES tensor with one dimension, or with a second one of size 1.
fn strings(input: &RawTensor) -> Result<Vec<String>, PredictError> {
    let wrong = |what: &str| Err(PredictError::invalid(what));
    if input.datatype != "BYTES" {
        return wrong("must have the datatype BYTES");
    }
    let elements = contents::elements(&input.data);
    let elements = elements.filter(|elements| match input.shape.as_slice() {
        [] => elements.len() == 1,
        [count] | [count, 1] => elements.len() == *count,
        _ => false,
    });
    match elements {
        None => wrong("the number of elements does not match its shape, or it is not a list"),
        Some(elements) if elements.is_empty() => wrong("has no elements"),
        Some(elements) => {
            let texts = elements
                .iter()
                .map(|text| std::str::from_utf8(text).map(str::to_owned));
            let texts = texts.collect::<Result<_, _>>();
            texts.map_err(|_| PredictError::invalid("is not text (UTF-8)"))
        }
    }
}

/// The single element of a tensor.
fn single(input: &RawTensor) -> Option<ParamValue> {
    let typed = contents::to_typed(&input.datatype, &input.data)?;
    let float = |value: f64| ParamValue::Float(value);
    let value = match input.datatype.as_str() {
        "BOOL" => ParamValue::Bool(one(&typed.bool_contents)?),
        "INT8" | "INT16" | "INT32" => ParamValue::Int(one(&typed.int_contents)?.into()),
        "INT64" => ParamValue::Int(one(&typed.int64_contents)?),
        "UINT8" | "UINT16" | "UINT32" => ParamValue::Int(one(&typed.uint_contents)?.into()),
        "UINT64" => ParamValue::Int(i64::try_from(one(&typed.uint64_contents)?).ok()?),
        "FP32" => float(one(&typed.fp32_contents)?.into()),
        "FP64" => float(one(&typed.fp64_contents)?),
        _ => {
            let [text] = typed.bytes_contents.as_slice() else {
                return None;
            };
            ParamValue::Text(std::str::from_utf8(text).ok()?.to_owned())
        }
    };
    Some(value)
}

fn one<T: Copy>(values: &[T]) -> Option<T> {
    match values {
        [value] => Some(*value),
        _ => None,
    }
}
