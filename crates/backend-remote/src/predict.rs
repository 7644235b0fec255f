//! One request to a remote model: a call for each of its items.

use std::sync::Arc;
use std::time::Instant;

use async_stream::try_stream;
use async_trait::async_trait;
use futures::{Stream, StreamExt, stream};
use volley_backend::Backend;
use volley_backend::items::{self, Item};
use volley_types::params::COUNT_TOKENS;
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, Parameters, Predict, PredictError, PredictRequest,
    Signature,
};

use crate::account::UnderWay;
use crate::answer::Part;
use crate::call::Call;
use crate::merge::Merge;
use crate::servers::Servers;
use crate::{Clients, RemoteConfig, provider};

/// Items of one request that are asked for at a time. A request holds one permit however many
/// items it has, so this is small; and servers limit their callers.
const ITEMS_AT_ONCE: usize = 8;

/// The way to a remote model.
pub(crate) struct RemoteModel {
    model: ModelName,
    servers: Arc<Servers>,
    /// The model version's defaults over the connector's.
    defaults: Parameters,
    clients: Arc<Clients>,
    config: RemoteConfig,
}

impl RemoteModel {
    pub(crate) fn new(
        model: ModelName,
        servers: Arc<Servers>,
        defaults: Parameters,
        clients: Arc<Clients>,
        config: RemoteConfig,
    ) -> Self {
        Self {
            model,
            servers,
            defaults,
            clients,
            config,
        }
    }
}

impl Backend for RemoteModel {
    fn capacity(&self) -> usize {
        self.config.max_streams.max(1)
    }
}

#[async_trait]
impl Predict for RemoteModel {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let mut parameters = request.parameters.or_defaults(&self.defaults);
        let (servers, clients) = (self.servers.clone(), self.clients.clone());
        let (deadline, config) = (request.deadline, self.config.clone());
        let traceparent = request.trace.to_string();
        let input = request.input;
        let batches = try_stream! {
            refuse_count(&mut parameters)?;
            let items = items::collect(input).await?;
            let fields = provider::fields(&parameters)?;
            let call = Call { fields, traceparent, deadline, clients, config };
            let mut merge = Merge::new(items.len());
            let mut parts = answers(servers, Arc::new(call), items);
            while let Some((item, part)) = parts.next().await {
                match part {
                    Ok(part) => if let Some(rows) = merge.part(item, part) {
                        yield rows;
                    },
                    Err(error) => yield merge.failed(item, error)?,
                }
            }
        };
        Ok(ChunkStream::new(Signature::generation().output, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature::generation())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

/// Its provider alone could count tokens, and is not asked to.
fn refuse_count(parameters: &mut Parameters) -> Result<(), PredictError> {
    if parameters.boolean(COUNT_TOKENS)?.unwrap_or(false) {
        return Err(PredictError::new(
            ErrorCode::Unimplemented,
            "this model is remote: its tokens are counted by its provider, in the usage of an \
             answer, and cannot be counted alone",
        ));
    }
    parameters.remove(COUNT_TOKENS);
    Ok(())
}

type PartResult = Result<Part, PredictError>;

/// The parts of all answers as they come, each with its item's number. An answer's last part is
/// its end or its error.
fn answers(
    servers: Arc<Servers>,
    call: Arc<Call>,
    items: Vec<Item>,
) -> impl Stream<Item = (u32, PartResult)> + Send + Unpin {
    let numbered = (0_u32..).zip(items);
    let answers = numbered.map(move |(number, item)| {
        let parts = answer(servers.clone(), call.clone(), item);
        parts.map(move |part| (number, part)).boxed()
    });
    Box::pin(stream::iter(answers).flatten_unordered(ITEMS_AT_ONCE))
}

/// The answer to one item, in parts as they are read.
fn answer(
    servers: Arc<Servers>,
    call: Arc<Call>,
    item: Item,
) -> impl Stream<Item = PartResult> + Send {
    try_stream! {
        let _permit = servers.limits.permit(call.patience(Instant::now())).await?;
        let mut opened = servers.open(&call, &item).await?;
        let mut under_way = UnderWay::new(&servers.account, &opened.server.connector);
        while let Some(part) = opened.reading.next().await {
            match &part {
                Err(error) => {
                    under_way.ended(Some(error.code));
                    opened.server.failed(error).await;
                }
                Ok(Part { end: Some(end), .. }) => {
                    under_way.ended(None);
                    servers.account.used(end.usage);
                }
                Ok(_) => {}
            }
            yield part?;
        }
    }
}
