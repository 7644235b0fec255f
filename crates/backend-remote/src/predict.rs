//! One request to a remote model: a call for each of its items.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use async_stream::try_stream;
use async_trait::async_trait;
use futures::{Stream, StreamExt, stream};
use url::Url;
use volley_backend::Backend;
use volley_backend::items::{self, Item};
use volley_types::registry::ConnectorSpec;
use volley_types::{
    ChunkStream, ModelName, ModelRef, Parameters, Predict, PredictError, PredictRequest, Signature,
};

use crate::answer::{self, Answer, Part};
use crate::call::{self, Call};
use crate::credential::Secret;
use crate::merge::Merge;
use crate::{Clients, RemoteConfig, provider, upstream};

/// Items of one request that are asked for at a time. A request holds one permit however many
/// items it has, so this is small; and servers limit their callers.
const ITEMS_AT_ONCE: usize = 8;

/// The way to a remote model.
pub(crate) struct RemoteModel {
    model: ModelName,
    connector: Arc<ConnectorSpec>,
    /// The model version's defaults over the connector's.
    defaults: Parameters,
    url: Url,
    clients: Arc<Clients>,
    config: RemoteConfig,
}

impl RemoteModel {
    pub(crate) fn new(
        model: ModelName,
        connector: ConnectorSpec,
        defaults: Parameters,
        url: Url,
        clients: Arc<Clients>,
        config: RemoteConfig,
    ) -> Self {
        let defaults = defaults.or_defaults(&connector.parameters);
        Self {
            model,
            url: provider::url(connector.provider, url),
            connector: Arc::new(connector),
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
        let parameters = request.parameters.or_defaults(&self.defaults);
        let (connector, clients) = (self.connector.clone(), self.clients.clone());
        let (url, config) = (self.url.clone(), self.config.clone());
        let traceparent = request.trace.to_string();
        let input = request.input;
        let batches = try_stream! {
            let items = items::collect(input).await?;
            let fields = provider::fields(&parameters)?;
            let secret = match &connector.credential {
                Some(reference) => Some(Secret::read(reference).await?),
                None => None,
            };
            let headers = call::headers(&connector, secret.as_ref(), &traceparent)?;
            let call = Call { connector, fields, headers, secret, clients, url, config };
            let mut merge = Merge::new(items.len());
            let mut parts = answers(Arc::new(call), items);
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

type PartResult = Result<Part, PredictError>;

/// The parts of all answers as they come, each with its item's number. An answer's last part is
/// its end or its error.
fn answers(
    call: Arc<Call>,
    items: Vec<Item>,
) -> impl Stream<Item = (u32, PartResult)> + Send + Unpin {
    let numbered = (0_u32..).zip(items);
    let answers = numbered.map(move |(number, item)| {
        let parts = answer(call.clone(), item);
        parts.map(move |part| (number, part)).boxed()
    });
    Box::pin(stream::iter(answers).flatten_unordered(ITEMS_AT_ONCE))
}

/// The answer to one item, in parts as they are read.
fn answer(call: Arc<Call>, item: Item) -> impl Stream<Item = PartResult> + Send {
    try_stream! {
        let (provider, config) = (call.connector.provider, &call.config);
        // No two answers of this process make the same ids for their tool calls.
        let seed = RandomState::new().hash_one(0);
        let redact = |text: &str| call.redacted(text);
        let response = call.send(&item).await?;
        if call::is_json(response.headers()) {
            let body = call::bounded(response, call::MAX_WHOLE_BYTES, config).await?;
            yield answer::whole(provider, seed, &body, redact)?;
            return;
        }
        let mut pieces = response.bytes_stream();
        let mut answer = Answer::new(provider, seed);
        let mut limit = config.first_byte_timeout;
        let mut held = None;
        while !answer.has_ended() {
            let piece = match held.take() {
                Some(held) => held,
                None => call::within(limit, pieces.next()).await?,
            };
            let piece = piece
                .map(|piece| piece.map(|first| call::gather(first, &mut pieces, &mut held)));
            limit = config.stall_timeout;
            let part = match piece {
                Some(Ok(piece)) => answer.read(Some(piece), redact),
                Some(Err(failure)) => answer.break_off(upstream::broken(failure)),
                None => answer.read(None, redact),
            };
            // What was read before an error goes out before it.
            yield part;
            if let Some(error) = answer.take_failure() {
                Err(error)?;
            }
        }
    }
}
