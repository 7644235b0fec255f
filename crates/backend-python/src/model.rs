//! Requests on one process of a Python model.

mod events;

use std::sync::Arc;
use std::time::Instant;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch, UInt32Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, FieldRef, SchemaRef};
use async_stream::try_stream;
use async_trait::async_trait;
use futures::TryStreamExt;
use serde_json::{Map, Value};
use volley_backend::items::{self, Item};
use volley_types::signature::{DIMENSIONS, ModelMetadata, SERVED_VERSION, with_route};
use volley_types::{
    ChatMessage, ChunkStream, Deadline, Dialect, ErrorCode, ErrorOrigin, FinishReason,
    GenerationChunk, GenerationChunks, ModelName, ModelRef, Predict, PredictError, PredictRequest,
    RequestId, Signature, Task, TraceContext, unknown_parameter,
};

use crate::column::{self, Body, Column, ValueType};
use crate::frame::{Command, Interface, PythonTask};
use crate::session::{AnswerPart, CREDIT, Call, Session};
use crate::settings::json;

/// Parameter that routes of plain prompts set: the prompt is not put into a chat template. Python
/// models always get it as it is.
const RAW: &str = "raw";

/// A loaded model in one process.
pub(crate) struct PythonModel {
    name: ModelName,
    interface: Arc<Interface>,
    signature: Signature,
    session: Session,
}

impl PythonModel {
    /// The model behind `session`, which the process described as `interface`.
    ///
    /// # Errors
    /// `InvalidInput` when an embedding model does not know the length of its vectors.
    pub(crate) fn new(
        name: ModelName,
        interface: Interface,
        session: Session,
    ) -> Result<Self, PredictError> {
        let signature = match interface.task {
            PythonTask::Generate => Signature::generation(),
            PythonTask::Embed => Signature::embed(interface.dimensions.ok_or_else(|| {
                PredictError::invalid(
                    "the embedding model did not report the length of its vectors",
                )
            })?),
            PythonTask::Tensors => Signature {
                task: Task::Tensors,
                input: column::schema(&interface.inputs),
                output: column::schema(&interface.outputs),
            },
            PythonTask::Events => Signature::events(
                column::schema(&interface.inputs),
                &column::schema(&interface.outputs),
            )?,
        };
        let signature = match &interface.route {
            Some(route) => with_route(signature, route)?,
            None => signature,
        };
        let served = ModelMetadata {
            versions: Vec::new(),
            config: interface.config.clone(),
        };
        Ok(Self {
            name,
            interface: Arc::new(interface),
            signature: served.on(signature),
            session,
        })
    }

    /// The parameters of a request that the model takes.
    ///
    /// # Errors
    /// `InvalidInput` for a parameter that the model does not take, with the nearest one that it
    /// does. The Open Inference Protocol has servers ignore those.
    fn parameters(&self, request: &PredictRequest) -> Result<Map<String, Value>, PredictError> {
        let names = || self.interface.parameters.iter().map(String::as_str);
        let mut taken = Map::new();
        for (name, value) in request.parameters.iter() {
            if name == SERVED_VERSION {
                // There is one version; the coordinator has checked the name.
                continue;
            }
            if self.interface.any_parameter || names().any(|known| known == name) {
                taken.insert(name.to_owned(), json(value));
            } else if name != RAW && request.dialect != Dialect::OpenInference {
                return Err(unknown_parameter(name, names()));
            }
        }
        Ok(taken)
    }
}

#[async_trait]
impl Predict for PythonModel {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let caller = Caller {
            parameters: self.parameters(&request)?,
            request_id: request.request_id.clone(),
            deadline: request.deadline,
            trace: request.trace,
            session: self.session.clone(),
            whole: request.whole,
        };
        let input = request.input.into_inner();
        let output = self.signature.output.clone();
        let stream = match self.interface.task {
            PythonTask::Generate => ChunkStream::new(
                output,
                try_stream! {
                    let items = items::collect(input).await?;
                    let mut call = caller.generate(&items)?;
                    let mut answer = Generation::new(items.len());
                    while let Some(part) = call.next().await? {
                        if let Some(batch) = answer.chunks(&part)? {
                            yield batch;
                        }
                    }
                    yield answer.end();
                },
            ),
            PythonTask::Events => events::stream(caller, input, self.signature.clone()),
            PythonTask::Embed | PythonTask::Tensors => {
                let signature = self.signature.clone();
                let is_embedding = self.interface.task == PythonTask::Embed;
                ChunkStream::new(
                    output,
                    try_stream! {
                        let mut batches = input.into_stream();
                        while let Some(batch) = batches.try_next().await? {
                            if batch.num_rows() == 0 {
                                yield RecordBatch::new_empty(signature.output.clone());
                                continue;
                            }
                            let mut call = caller.rows(&batch, &signature)?;
                            let mut answered = 0;
                            while let Some(part) = call.next().await? {
                                answered += part.rows;
                                check_rows(answered, batch.num_rows(), false)?;
                                yield match is_embedding {
                                    true => vectors(&part, &signature.output)?,
                                    false => decoded(&part, &signature.output)?,
                                };
                            }
                            check_rows(answered, batch.num_rows(), true)?;
                        }
                    },
                )
            }
        };
        Ok(stream)
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.signature.clone())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.name.clone()]
    }
}

/// What every call of a request carries.
struct Caller {
    parameters: Map<String, Value>,
    request_id: RequestId,
    deadline: Option<Deadline>,
    trace: TraceContext,
    session: Session,
    whole: bool,
}

impl Caller {
    fn call(
        &self,
        rows: usize,
        encode: impl FnOnce(&mut Body) -> Result<Vec<Column>, PredictError>,
    ) -> Result<Call, PredictError> {
        self.session.call(|id, body| {
            let left = self
                .deadline
                .map(|deadline| deadline.remaining(Instant::now()));
            Ok(Command::Call {
                id,
                rows,
                columns: encode(body)?,
                parameters: self.parameters.clone(),
                request_id: self.request_id.to_string(),
                deadline_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                trace: Some(self.trace.to_string()),
                credit: CREDIT,
                whole: self.whole,
            })
        })
    }

    fn generate(&self, items: &[Item]) -> Result<Call, PredictError> {
        let (mut prompts, mut chats) = (StringBuilder::new(), StringBuilder::new());
        for item in items {
            match item {
                Item::Prompt(prompt) => {
                    prompts.append_value(prompt);
                    chats.append_null();
                }
                Item::Chat(messages) => {
                    prompts.append_null();
                    let messages: Vec<_> = messages.iter().map(message).collect();
                    chats.append_value(Value::Array(messages).to_string());
                }
            }
        }
        self.call(items.len(), |body| {
            Ok(vec![
                column::texts("prompt", ValueType::Utf8, &prompts.finish(), body),
                column::texts("messages", ValueType::Json, &chats.finish(), body),
            ])
        })
    }

    fn rows(&self, batch: &RecordBatch, signature: &Signature) -> Result<Call, PredictError> {
        self.call(batch.num_rows(), |body| {
            column::encode(batch, &signature.input, body)
        })
    }
}

/// A message as a model gets it: `role` and `content`, and where they are given `tool_calls`,
/// `tool_call_id` and the other details.
fn message(message: &ChatMessage) -> Value {
    let mut fields = Map::new();
    fields.insert("role".to_owned(), message.role.as_str().into());
    fields.insert("content".to_owned(), message.content.as_str().into());
    if let Some(id) = &message.tool_call_id {
        fields.insert("tool_call_id".to_owned(), id.as_str().into());
    }
    let parsed = |text: &Option<String>| serde_json::from_str::<Value>(text.as_deref()?).ok();
    if let Some(calls) = parsed(&message.tool_calls) {
        fields.insert("tool_calls".to_owned(), calls);
    }
    if let Some(Value::Object(details)) = parsed(&message.details) {
        fields.extend(details);
    }
    Value::Object(fields)
}

/// Chunks of the answers to the rows of one request.
struct Generation {
    finished: Vec<FinishReason>,
    sequence: u32,
}

impl Generation {
    fn new(items: usize) -> Self {
        Self {
            finished: vec![FinishReason::Stop; items],
            sequence: 0,
        }
    }

    /// The chunks of a part; `None` when it has no text.
    fn chunks(&mut self, part: &AnswerPart) -> Result<Option<RecordBatch>, PredictError> {
        let items = required(part, "item", DataType::UInt32)?;
        let items = items.as_primitive::<UInt32Type>();
        let texts = required(part, "text", DataType::Utf8)?;
        let texts = texts.as_string::<i32>();
        let reasons = optional(part, "finish_reason", DataType::Utf8)?;
        let reasons = reasons.as_ref().map(|reasons| reasons.as_string::<i32>());
        let mut chunks = GenerationChunks::default();
        for row in 0..part.rows {
            let item = items.value(row);
            let finished = self.finished.get_mut(item as usize);
            let finished =
                finished.ok_or_else(|| malformed("an answer to a row that does not exist"))?;
            let reason = reasons.filter(|reasons| reasons.is_valid(row));
            if let Some(reasons) = reason {
                let named = FinishReason::from_name(reasons.value(row));
                *finished = named.ok_or_else(|| malformed("an unknown 'finish_reason'"))?;
            }
            if texts.is_null(row) || texts.value(row).is_empty() {
                continue;
            }
            chunks.push(&GenerationChunk {
                item,
                sequence: self.sequence,
                text: Some(texts.value(row).to_owned()),
                ..GenerationChunk::default()
            });
            self.sequence += 1;
        }
        Ok((!chunks.is_empty()).then(|| chunks.finish()))
    }

    /// The last rows: one for each item.
    fn end(&self) -> RecordBatch {
        let mut chunks = GenerationChunks::default();
        for (item, reason) in (0_u32..).zip(&self.finished) {
            chunks.push(&GenerationChunk {
                item,
                sequence: self.sequence + item,
                finish_reason: Some(*reason),
                last: item as usize + 1 == self.finished.len(),
                ..GenerationChunk::default()
            });
        }
        chunks.finish()
    }
}

fn required(part: &AnswerPart, name: &str, of: DataType) -> Result<ArrayRef, PredictError> {
    let found = optional(part, name, of)?;
    found.ok_or_else(|| malformed(&format!("no column '{name}'")))
}

fn optional(part: &AnswerPart, name: &str, of: DataType) -> Result<Option<ArrayRef>, PredictError> {
    let found = part.columns.iter().find(|column| column.name == name);
    let field: FieldRef = Arc::new(Field::new(name, of, true));
    let decoded = found.map(|column| column::decode_column(column, part.rows, &part.body, &field));
    decoded.transpose()
}

fn decoded(part: &AnswerPart, output: &SchemaRef) -> Result<RecordBatch, PredictError> {
    column::decode(&part.columns, part.rows, &part.body, output)
}

/// The rows of an embedding answer. The count of tokens is 0 where the model reports none.
fn vectors(part: &AnswerPart, output: &SchemaRef) -> Result<RecordBatch, PredictError> {
    let found = part
        .columns
        .iter()
        .find(|column| column.name == "embedding");
    let found = found.ok_or_else(|| malformed("no column 'embedding'"))?;
    let dimensions = output.field(0).metadata().get(DIMENSIONS);
    let dimensions = dimensions
        .and_then(|dimensions| dimensions.parse().ok())
        .unwrap_or_default();
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let declared = column::tensor_field("embedding", &item, &[dimensions], false);
    let values = column::decode_column(found, part.rows, &part.body, &Arc::new(declared))?;
    let values = values.as_fixed_size_list().values().clone();
    let lengths = OffsetBuffer::from_repeated_length(dimensions, part.rows);
    let lists = ListArray::try_new(item, lengths, values, None);
    let lists = lists.map_err(|_| malformed("vectors of the wrong length"))?;
    let tokens = match optional(part, "tokens", DataType::UInt32)? {
        Some(tokens) => tokens,
        None => Arc::new(UInt32Array::from_value(0, part.rows)),
    };
    RecordBatch::try_new(output.clone(), vec![Arc::new(lists), tokens])
        .map_err(|_| malformed("the columns of an embedding do not fit together"))
}

fn check_rows(answered: usize, expected: usize, at_end: bool) -> Result<(), PredictError> {
    match answered == expected || !at_end && answered < expected {
        true => Ok(()),
        false => Err(malformed(&format!("{answered} rows for {expected}"))),
    }
}

fn malformed(what: &str) -> PredictError {
    let message = format!("the model's answer is malformed: {what}");
    PredictError::new(ErrorCode::Internal, message).with_origin(ErrorOrigin::Model)
}
