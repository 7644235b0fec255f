//! Converts rows to `ModelInferResponse`s.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::{Bytes, BytesMut};
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::model_infer_response::InferOutputTensor;
use volley_proto::inference::triton::{InferParameter, ModelInferResponse};
use volley_proto::tensor_contents::{put_element, to_typed};
use volley_types::{FinishReason, ModelName, PredictError, Usage};

use crate::describe::TEXT_OUTPUT;
use crate::outputs::{self, RequestedOutputs};
use crate::tensors::RawTensor;
use crate::text_parameters;
use volley_dialect_kit::answer;
use volley_shared_memory::{OFFSET, REGION, SIZE, Slice};

/// Format of the response to one request.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) model_name: ModelName,
    pub(super) model_version: String,
    pub(super) id: String,
    /// Whether outputs are raw instead of typed.
    pub(super) raw: bool,
    pub(super) form: OutputEncoding,
    /// Whether a generation, or a stream of events, ends with a message without outputs.
    pub(super) empty_final: bool,
}

/// Encoding of the outputs.
#[derive(Clone, Debug)]
pub(super) enum OutputEncoding {
    /// Tensors of a tensor model.
    Tensors {
        schema: SchemaRef,
        wanted: RequestedOutputs,
        batched: bool,
    },
    /// Texts in a tensor of this shape.
    Texts(Vec<usize>),
}

/// Finish reason and usage of a generation, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GenerationEnd {
    pub(super) finish_reason: Option<FinishReason>,
    pub(super) usage: Option<Usage>,
}

impl Reply {
    /// Formats the complete response from all rows.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown output; errors of a generation; `Unimplemented` for a column
    /// that cannot be a tensor.
    pub(super) fn whole(
        &self,
        batches: &[RecordBatch],
    ) -> Result<(ModelInferResponse, Vec<(Slice, Bytes)>), PredictError> {
        match &self.form {
            OutputEncoding::Tensors {
                schema,
                wanted,
                batched,
            } => {
                let outputs = outputs::binary(batches, schema, wanted, *batched)?;
                Ok(self.shared_response(outputs))
            }
            OutputEncoding::Texts(shape) => {
                let choices = answer::choices(batches)?;
                if choices.iter().any(|choice| choice.choice != 0) {
                    return Err(text_parameters::several());
                }
                let mut end = GenerationEnd {
                    usage: answer::usage(&choices),
                    ..GenerationEnd::default()
                };
                let mut texts = Vec::new();
                for choice in &choices {
                    texts.push(choice.text.as_str());
                    end.finish_reason = choice.finish_reason.or(end.finish_reason);
                }
                let mut response = self.response(vec![text_tensor(shape.clone(), &texts)?]);
                response.parameters = end.parameters();
                Ok((response, Vec::new()))
            }
        }
    }

    /// Formats a response with these tensors. Also returns those that go to shared memory instead.
    fn shared_response(
        &self,
        outputs: Vec<(RawTensor, Option<Slice>)>,
    ) -> (ModelInferResponse, Vec<(Slice, Bytes)>) {
        let (mut tensors, mut places) = (Vec::new(), Vec::new());
        for (tensor, slice) in outputs {
            tensors.push(tensor);
            places.push(slice);
        }
        let data: Vec<Bytes> = tensors.iter().map(|tensor| tensor.data.clone()).collect();
        let mut response = self.response(tensors);
        let mut shared = Vec::new();
        for (index, (slice, data)) in places.into_iter().zip(data).enumerate() {
            let Some(slice) = slice else {
                continue;
            };
            // The entry of such a tensor stays, but empty, because clients find contents by index.
            if let Some(raw) = response.raw_output_contents.get_mut(index) {
                *raw = Bytes::new();
            }
            if let Some(output) = response.outputs.get_mut(index) {
                output.contents = None;
                let size = i64::try_from(data.len()).unwrap_or(i64::MAX);
                let offset = i64::try_from(slice.offset).unwrap_or(i64::MAX);
                let region = ParameterChoice::StringParam(slice.region.clone());
                let parameters = [
                    (REGION, region),
                    (SIZE, ParameterChoice::Int64Param(size)),
                    (OFFSET, ParameterChoice::Int64Param(offset)),
                ];
                output.parameters = parameters
                    .map(|(name, value)| (name.to_owned(), parameter(value)))
                    .into();
            }
            shared.push((slice, data));
        }
        (response, shared)
    }

    /// Formats a piece of a generated text.
    ///
    /// # Errors
    /// `InvalidInput` for a text that is too long.
    pub(super) fn piece(
        &self,
        text: &str,
        choice: u32,
    ) -> Result<ModelInferResponse, PredictError> {
        let mut response = self.response(vec![text_tensor(vec![1], &[text])?]);
        if choice != 0 {
            let choice = ParameterChoice::Int64Param(choice.into());
            response
                .parameters
                .insert("choice".to_owned(), parameter(choice));
        }
        Ok(response)
    }

    /// A message without outputs.
    pub(super) fn empty(&self) -> ModelInferResponse {
        self.response(Vec::new())
    }

    /// Number of prompts of a generation.
    pub(super) fn prompts(&self) -> usize {
        match &self.form {
            OutputEncoding::Texts(shape) => shape.iter().product(),
            OutputEncoding::Tensors { .. } => 1,
        }
    }

    fn response(&self, tensors: Vec<RawTensor>) -> ModelInferResponse {
        let typed: Option<Vec<_>> = if self.raw {
            None
        } else {
            // A response has only raw or only typed outputs, so one output without a typed form
            // makes all of them raw.
            let typed = tensors.iter();
            typed
                .map(|tensor| to_typed(&tensor.datatype, &tensor.data))
                .collect()
        };
        let raw = typed.is_none();
        let mut contents = typed.into_iter().flatten();
        let mut response = ModelInferResponse {
            model_name: self.model_name.as_str().to_owned(),
            model_version: self.model_version.clone(),
            id: self.id.clone(),
            ..ModelInferResponse::default()
        };
        for tensor in tensors {
            response.outputs.push(InferOutputTensor {
                name: tensor.name,
                datatype: tensor.datatype,
                shape: tensor.shape.into_iter().map(|dim| dim as i64).collect(),
                parameters: BTreeMap::new(),
                contents: contents.next(),
            });
            if raw {
                response.raw_output_contents.push(tensor.data);
            }
        }
        response
    }
}

impl GenerationEnd {
    /// The known values as parameters of a response.
    pub(super) fn parameters(self) -> BTreeMap<String, InferParameter> {
        let reason = self.finish_reason.map(|reason| {
            let reason = ParameterChoice::StringParam(reason.as_str().to_owned());
            ("finish_reason", reason)
        });
        let tokens = self.usage.map(|usage| {
            let count = |count: u32| ParameterChoice::Int64Param(count.into());
            [
                ("prompt_tokens", count(usage.prompt_tokens)),
                ("completion_tokens", count(usage.completion_tokens)),
            ]
        });
        let known = reason.into_iter().chain(tokens.into_iter().flatten());
        known
            .map(|(name, value)| (name.to_owned(), parameter(value)))
            .collect()
    }
}

/// Builds a parameter of a response.
pub(super) fn parameter(value: ParameterChoice) -> InferParameter {
    InferParameter {
        parameter_choice: Some(value),
    }
}

fn text_tensor(shape: Vec<usize>, texts: &[&str]) -> Result<RawTensor, PredictError> {
    let mut data = BytesMut::new();
    for text in texts {
        put_element(text.as_bytes(), &mut data)?;
    }
    Ok(RawTensor {
        name: TEXT_OUTPUT.to_owned(),
        datatype: "BYTES".to_owned(),
        shape,
        data: data.freeze(),
    })
}
