//! Calls of a pipeline's models, and conversion of their responses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_select::concat::concat_batches;
use futures::TryStreamExt;
use volley_types::chunk::generation_schema;
use volley_types::registry::{PARAMETERS, PipelineSpec, Shape, StepKind};
use volley_types::{
    ChunkStream, Deadline, Dialect, ErrorCode, FinishReason, GenerationChunk, GenerationChunks,
    GenerationRow, Input, Parameters, PredictError, PredictRequest, Priority, RequestId, TenantId,
    TraceContext, Usage,
};

use super::typecheck::TypedPipeline;
use crate::Coordinator;
use crate::alias::{Mirroring, StickinessKeys};

/// Maximum size of a step's response to one wave, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// One request to a pipeline.
pub(super) struct PipelineRequest {
    pub(super) coordinator: Coordinator,
    pub(super) spec: Arc<PipelineSpec>,
    pub(super) shape: Shape,
    pub(super) typed: TypedPipeline,
    /// The request's own.
    pub(super) parameters: Parameters,
    /// Tenant, deadline and other data of the call.
    pub(super) head: CallHead,
}

/// Data of a request that all its calls share.
pub(super) struct CallHead {
    request_id: RequestId,
    deadline: Option<Deadline>,
    trace: TraceContext,
    tenant: TenantId,
    priority: Priority,
    affinity: Option<u64>,
    session: Option<String>,
    dialect: Dialect,
}

impl CallHead {
    pub(super) fn of(request: &PredictRequest) -> Self {
        Self {
            request_id: request.request_id.clone(),
            deadline: request.deadline,
            trace: request.trace,
            tenant: request.tenant.clone(),
            priority: request.priority,
            affinity: request.affinity,
            session: request.session.clone(),
            dialect: request.dialect,
        }
    }
}

impl PipelineRequest {
    /// The steps whose chunks are forwarded: an answering generation, or all branches of an
    /// answering merge if they generate and no other step needs them.
    pub(super) fn streamed(&self) -> Vec<usize> {
        let output = self.shape.output;
        if self.typed.generates(output) {
            return vec![output];
        }
        let step = &self.spec.steps[output];
        let StepKind::Merge(branches) = &step.kind else {
            return Vec::new();
        };
        let places: Vec<_> = branches
            .iter()
            .filter_map(|name| self.spec.step(name))
            .collect();
        let others = self
            .spec
            .steps
            .iter()
            .filter(|other| other.name != step.name);
        let needed: BTreeSet<_> = others.flat_map(|other| other.needs()).collect();
        let streams = |place: &usize| {
            let name = self.spec.steps[*place].name.as_str();
            self.typed.generates(*place) && !needed.contains(name)
        };
        match places.iter().all(streams) {
            true => places,
            false => Vec::new(),
        }
    }

    /// A parameter as a text.
    pub(super) fn text_parameter(&self, name: &str) -> Result<String, PredictError> {
        self.parameters.text(name).ok_or_else(|| {
            PredictError::invalid(format!("needs the parameter '{name}', which is missing"))
        })
    }

    /// Calls the model of a step. The request's parameters go to the steps that answer; the step's
    /// own go to every one. A model that was scaled to zero during the previous steps is activated.
    pub(super) async fn call(
        &self,
        place: usize,
        batch: RecordBatch,
    ) -> Result<ChunkStream, PredictError> {
        let step = &self.spec.steps[place];
        let StepKind::Model {
            model, parameters, ..
        } = &step.kind
        else {
            let cause = format!("step '{}' is not a model", step.name);
            return Err(PredictError::internal("a step cannot be called", cause));
        };
        let mut request = PredictRequest::new(model.clone(), Input::Batch(batch));
        request.request_id = self.head.request_id.clone();
        request.deadline = self.head.deadline;
        request.trace = self.head.trace;
        request.tenant = self.head.tenant.clone();
        request.priority = self.head.priority;
        request.affinity = self.head.affinity;
        request.session.clone_from(&self.head.session);
        // Callers of that protocol may set all its parameters for each model.
        if self.head.dialect == Dialect::OpenInference {
            request.dialect = Dialect::OpenInference;
        }
        // All models of an ensemble get the sequence parameters, as in Triton.
        let gets_all = self.spec.ensemble.is_some() || self.answers(place);
        request.parameters = match gets_all {
            true => self.passed_on().or_defaults(parameters),
            false => parameters.clone(),
        };
        let (keys, deadline) = (StickinessKeys::of(&request), request.deadline);
        let activated = self
            .coordinator
            .activate_for(&request.model, keys, deadline);
        activated.await?;
        self.coordinator.answer(request, None, Mirroring::Enabled)
    }

    fn answers(&self, place: usize) -> bool {
        place == self.shape.output || self.streamed().contains(&place)
    }

    /// The request's parameters that no step uses.
    fn passed_on(&self) -> Parameters {
        let columns = self.spec.steps.iter().flat_map(|step| step.columns());
        let taken = columns.filter(|column| column.step == PARAMETERS);
        let mut parameters = self.parameters.clone();
        for column in taken {
            parameters.remove(&column.column);
        }
        parameters
    }
}

fn malformed(cause: String) -> PredictError {
    PredictError::internal(
        "returned an answer that does not match its signature",
        cause,
    )
}

fn too_large() -> PredictError {
    let message = format!("answers with more than {MAX_BYTES} bytes");
    PredictError::new(ErrorCode::TooLarge, message)
}

/// Collects the complete response of a model with one row for each input row.
pub(super) async fn rows(
    answer: ChunkStream,
    rows: usize,
) -> Result<BTreeMap<String, ArrayRef>, PredictError> {
    let (mut answer, mut batches, mut bytes) = (answer, Vec::new(), 0);
    while let Some(batch) = answer.try_next().await? {
        bytes += batch.get_array_memory_size();
        if MAX_BYTES < bytes {
            return Err(too_large());
        }
        batches.push(batch);
    }
    let schema = batches
        .first()
        .map_or_else(|| answer.schema(), RecordBatch::schema);
    let all = concat_batches(&schema, &batches);
    let all = all.map_err(|error| malformed(error.to_string()))?;
    if all.num_rows() != rows {
        return Err(malformed(format!("{} rows for {rows}", all.num_rows())));
    }
    let names = schema.fields().iter().map(|field| field.name().clone());
    Ok(names.zip(all.columns().iter().cloned()).collect())
}

/// Collects the complete texts of a generation, with their usage.
pub(super) async fn texts(
    mut answer: ChunkStream,
    rows: usize,
) -> Result<(Vec<String>, Vec<Usage>), PredictError> {
    let mut texts = vec![String::new(); rows];
    let mut usage = vec![Usage::default(); rows];
    let mut bytes = 0;
    while let Some(batch) = answer.try_next().await? {
        for row in GenerationRow::rows(&batch)? {
            if let Some(error) = row.failure() {
                return Err(error);
            }
            let item = row.item() as usize;
            if rows <= item {
                return Err(malformed(format!("item {item} of {rows}")));
            }
            if let Some(told) = row.usage() {
                usage[item] += told;
            }
            // A step uses only the first choice.
            if let (0, Some(text)) = (row.choice(), row.text()) {
                bytes += text.len();
                if MAX_BYTES < bytes {
                    return Err(too_large());
                }
                texts[item].push_str(text);
            }
        }
    }
    Ok((texts, usage))
}

/// Converts texts to generations of one chunk each; the sender sets the sequence numbers.
pub(super) fn chunks(texts: Vec<String>, usage: Vec<Usage>) -> RecordBatch {
    let mut chunks = GenerationChunks::default();
    let count = texts.len();
    for ((item, text), usage) in (0..).zip(texts).zip(usage) {
        chunks.push(&GenerationChunk {
            item,
            text: Some(text),
            finish_reason: Some(FinishReason::Stop),
            usage: Some(usage),
            last: item as usize + 1 == count,
            ..GenerationChunk::default()
        });
    }
    match count {
        0 => RecordBatch::new_empty(generation_schema()),
        _ => chunks.finish(),
    }
}

/// Converts a received row to a chunk, without its sequence number.
pub(super) fn chunk(row: &GenerationRow<'_>) -> GenerationChunk {
    let owned = |text: &str| text.to_owned();
    let error = row.error();
    GenerationChunk {
        item: row.item(),
        choice: row.choice(),
        sequence: 0,
        text: row.text().map(owned),
        thinking: row.thinking().map(owned),
        tool_calls: row.tool_calls().map(owned),
        token_id: row.token_id(),
        logprob: row.logprob(),
        finish_reason: row.finish_reason(),
        usage: row.usage(),
        prompt: row.prompt(),
        error: error.map(|(code, message)| (code.to_owned(), message.to_owned())),
        citations: row.citations().map(owned),
        last: row.last(),
        token_logprobs: row.token_logprobs().map(owned),
        token_ids: None,
        details: row.details().map(str::to_owned),
    }
}
