//! Remote models that embed or rerank. Each row of a request has a row in the answer. A call takes
//! several rows if the server allows it.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_stream::try_stream;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use volley_backend::Backend;
use volley_provider_kit::options::RequestOptions;
use volley_provider_kit::rows::format::groups;
use volley_provider_kit::rows::group::RowGroup;
use volley_provider_kit::rows::post_process::RowValues;
use volley_remote_http::client::Clients;
use volley_remote_http::config::RemoteConfig;
use volley_types::params::{
    DETOKENIZE, ROW_DETAILS, ROW_PARAMETERS, TOKEN_INPUTS, TOKEN_VECTORS, TOKENIZE,
};
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, Parameters, Predict, PredictError, PredictRequest,
    Signature, Task,
};

use crate::call::UpstreamCall;
use crate::servers::Servers;

/// Maximum number of concurrent calls of one request.
const CALLS_AT_ONCE: usize = 8;

/// A replica of a remote model that embeds or reranks.
pub(crate) struct RemoteRows {
    model: ModelName,
    servers: Arc<Servers>,
    signature: Signature,
    defaults: Parameters,
    clients: Arc<Clients>,
    config: RemoteConfig,
}

impl RemoteRows {
    /// # Errors
    /// `InvalidInput` if parameter `dimensions` is not a number.
    pub(crate) fn new(
        model: ModelName,
        servers: Arc<Servers>,
        task: Task,
        defaults: Parameters,
        clients: Arc<Clients>,
        config: RemoteConfig,
    ) -> Result<Self, PredictError> {
        let signature = match (task, defaults.unsigned("dimensions")?) {
            (Task::Rerank, _) => Signature::rerank(),
            (_, Some(dimensions)) => {
                Signature::embed(usize::try_from(dimensions).unwrap_or(usize::MAX))
            }
            (_, None) => of_unknown_length(Signature::embed(0)),
        };
        Ok(Self {
            model,
            servers,
            signature: signature.taking_native(&[ROW_PARAMETERS]),
            defaults,
            clients,
            config,
        })
    }
}

/// The signature for vectors of unknown length.
fn of_unknown_length(signature: Signature) -> Signature {
    let fields = signature.output.fields().iter();
    let fields = fields.map(|field| field.as_ref().clone().with_metadata(Default::default()));
    Signature {
        output: Arc::new(Schema::new(fields.collect::<Vec<Field>>())),
        ..signature
    }
}

/// Parameters that need the tokenizer, which only the provider has.
const OF_TOKENS: [&str; 3] = [TOKENIZE, DETOKENIZE, TOKEN_VECTORS];

impl Backend for RemoteRows {
    fn capacity(&self) -> usize {
        self.config.max_streams.max(1)
    }
}

#[async_trait]
impl Predict for RemoteRows {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.signature.check(&mut request.input)?;
        let schema = self.signature.answer(&request.parameters);
        let (mut given, dialect) = (request.parameters, request.dialect);
        for name in OF_TOKENS {
            if given.boolean(name)?.unwrap_or(false) {
                return Err(PredictError::new(
                    ErrorCode::Unimplemented,
                    "this model is remote and its tokenizer belongs to the provider; texts cannot \
                     be tokenized, detokenized or embedded by token here",
                ));
            }
            given.remove(name);
        }
        let is_tokens = given.boolean(TOKEN_INPUTS)?.unwrap_or(false);
        given.remove(TOKEN_INPUTS);
        let details = given.boolean(ROW_DETAILS)?.unwrap_or(false);
        given.remove(ROW_DETAILS);
        let call = Arc::new(UpstreamCall {
            options: RequestOptions::read(given, &self.defaults, dialect, true)?,
            native: None,
            traceparent: request.trace.to_string(),
            deadline: request.deadline,
            clients: self.clients.clone(),
            config: self.config.clone(),
        });
        let (servers, task, answer) = (self.servers.clone(), self.signature.task, schema.clone());
        let batches = try_stream! {
            let mut input = request.input.into_inner().into_stream();
            while let Some(rows) = input.try_next().await? {
                let groups = groups(&rows, task, servers.step())?;
                let groups = groups.into_iter().map(|group| RowGroup { is_tokens, details, ..group });
                let asked = groups.map(|group| ask(&servers, &call, group));
                let mut answered = stream::iter(asked).buffered(CALLS_AT_ONCE);
                while let Some(answered) = answered.next().await {
                    yield columns(&answer, answered?)?;
                }
            }
        };
        Ok(ChunkStream::new(schema, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.signature.clone())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

/// Makes one call for a group of rows.
async fn ask(
    servers: &Servers,
    call: &UpstreamCall,
    group: RowGroup,
) -> Result<RowValues, PredictError> {
    let _permit = servers.limits.permit(call.patience(Instant::now())).await?;
    servers.ask(call, &group).await
}

/// The rows of an answer with these columns: the values, the tokens and, if requested, the details.
fn columns(schema: &SchemaRef, answered: RowValues) -> Result<RecordBatch, PredictError> {
    let detailed = 2 < schema.fields().len();
    let tokens = answered.tokens().map(|tokens| match detailed {
        true => tokens,
        // Without details, an unknown number is 0.
        false => Some(tokens.unwrap_or(0)),
    });
    let tokens: ArrayRef = Arc::new(UInt32Array::from_iter(tokens));
    let values: ArrayRef = match schema.field(0).data_type() {
        DataType::List(item) => {
            let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item.clone());
            for vector in &answered.values {
                lists.values().append_slice(vector);
                lists.append(true);
            }
            Arc::new(lists.finish())
        }
        _ => {
            let scores = answered.values.iter().map(|values| values.first().copied());
            Arc::new(Float32Array::from_iter_values(
                scores.map(|score| score.unwrap_or(0.0)),
            ))
        }
    };
    let mut columns = vec![values, tokens];
    if detailed {
        let first = answered.details.as_ref().map(Value::to_string);
        let rest = std::iter::repeat_n(None, answered.values.len().saturating_sub(1));
        let details = std::iter::once(first)
            .chain(rest)
            .take(answered.values.len());
        columns.push(Arc::new(details.collect::<StringArray>()));
    }
    RecordBatch::try_new(schema.clone(), columns).map_err(|error| {
        let message = "the upstream's vectors or scores do not match the model's signature";
        PredictError::internal(message, error)
    })
}
