//! One request to a remote model, with a call for each answer to each item.

use std::sync::Arc;
use std::time::Instant;

use async_stream::try_stream;
use async_trait::async_trait;
use futures::{Stream, StreamExt, stream};
use serde_json::Value;
use volley_backend::Backend;
use volley_backend::items::{self, Item};
use volley_provider_kit::options::RequestOptions;
use volley_remote_http::client::Clients;
use volley_remote_http::config::RemoteConfig;
use volley_types::params::COUNT_TOKENS;
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, Native, ParamValue, Parameters, Predict,
    PredictError, PredictRequest, Signature,
};

use crate::account::CallRecord;
use crate::answer::Part;
use crate::call::UpstreamCall;
use crate::merge::{AnswerIndex, Merge};
use crate::servers::Servers;
use volley_remote_http::naming::named;

/// Maximum number of concurrent calls of one request. It is small because a request holds one
/// permit regardless of its items, and because servers have rate limits.
const ITEMS_AT_ONCE: usize = 8;
/// Parameter with the number of answers to each item, and its maximum.
const CHOICES: &str = "n";
const MAX_CHOICES: u32 = 16;

/// A replica of a remote model.
pub(crate) struct RemoteModel {
    model: ModelName,
    servers: Arc<Servers>,
    /// The model version's defaults, then the connector's.
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
        let (mut given, defaults) = (request.parameters, self.defaults.clone());
        let (dialect, whole) = (request.dialect, request.whole);
        let (servers, clients) = (self.servers.clone(), self.clients.clone());
        let (deadline, config) = (request.deadline, self.config.clone());
        let traceparent = request.trace.to_string();
        let input = request.input.into_inner();
        let batches = try_stream! {
            refuse_count(&mut given)?;
            let choices = take_choices(&mut given, &defaults)?;
            let native = Native::take(&mut given)?.map(Arc::new);
            let items = match &native {
                // The native body is the only copy of the messages.
                Some(native) if native.lost.is_some() => vec![Item::Chat(Vec::new())],
                _ => items::collect(input).await?,
            };
            let options = RequestOptions::read(given, &defaults, dialect, whole)?;
            let call = UpstreamCall { options, native, traceparent, deadline, clients, config };
            let mut merge = Merge::new(items.len() * choices as usize);
            let mut parts = answers(servers, calls(call, choices), items);
            while let Some((to, part)) = parts.next().await {
                match part {
                    Ok(part) => if let Some(rows) = merge.part(to, part) {
                        yield rows;
                    },
                    Err(error) => yield merge.failed(to, error)?,
                }
            }
        };
        Ok(ChunkStream::new(Signature::generation().output, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature::generation().taking_native(&self.servers.forms()))
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

/// Parameters that need the tokenizer, which only the provider has.
const OF_TOKENS: [&str; 4] = [COUNT_TOKENS, "tokenize", "detokenize", "token_inputs"];

/// Rejects requests to count, tokenize or detokenize.
fn refuse_count(parameters: &mut Parameters) -> Result<(), PredictError> {
    for name in OF_TOKENS {
        if parameters.boolean(name)?.unwrap_or(false) {
            return Err(PredictError::new(
                ErrorCode::Unimplemented,
                "this model is remote and its tokenizer belongs to the provider; tokens cannot be \
                 counted, tokenized or detokenized here, and the usage of a response has their \
                 number",
            ));
        }
        parameters.remove(name);
    }
    Ok(())
}

/// Takes the number of answers to each item from the parameters. Each answer is a call of its own,
/// which asks its server for one answer.
fn take_choices(given: &mut Parameters, defaults: &Parameters) -> Result<u32, PredictError> {
    let choices = given.unsigned(CHOICES)?;
    let Some(choices) = choices.map_or_else(|| defaults.unsigned(CHOICES), |it| Ok(Some(it)))?
    else {
        return Ok(1);
    };
    let choices = u32::try_from(choices).unwrap_or(u32::MAX);
    if choices == 0 || MAX_CHOICES < choices {
        return Err(PredictError::invalid(format!(
            "parameter '{CHOICES}' must be 1 to {MAX_CHOICES}"
        )));
    }
    given.set(CHOICES, ParamValue::Int(1))?;
    Ok(choices)
}

/// Creates a call for each choice. Seeds differ, because equal seeds would yield equal answers.
fn calls(call: UpstreamCall, choices: u32) -> Vec<Arc<UpstreamCall>> {
    let seed = call.options.fields.get("seed").and_then(Value::as_i64);
    let others = (1..choices).map(|choice| {
        let mut other = call.clone();
        if let Some(seed) = seed {
            let seed = seed.wrapping_add(i64::from(choice));
            other.options.fields.insert("seed".to_owned(), seed.into());
        }
        Arc::new(other)
    });
    let others: Vec<_> = others.collect();
    std::iter::once(Arc::new(call)).chain(others).collect()
}

type PartResult = Result<Part, PredictError>;

/// The parts of all answers in order of arrival. The last part of an answer is its end or its
/// error.
fn answers(
    servers: Arc<Servers>,
    calls: Vec<Arc<UpstreamCall>>,
    items: Vec<Item>,
) -> impl Stream<Item = (AnswerIndex, PartResult)> + Send + Unpin {
    let alone = items.len() == 1 && calls.len() == 1;
    let items = (0_u32..).zip(items);
    let all = items.flat_map(move |(number, item)| {
        let each = (0_u32..).zip(calls.clone());
        each.map(move |(choice, call)| {
            let to = AnswerIndex {
                item: number,
                choice,
            };
            (to, call, item.clone())
        })
    });
    let answers = all.map(move |(to, call, item)| {
        let parts = answer(servers.clone(), call, item);
        parts.map(move |part| (to, part)).boxed()
    });
    let answers = stream::iter(answers);
    // A single answer is read directly: `flatten_unordered` makes the caller wait after every part,
    // so that parts that arrived together would be forwarded one by one.
    if alone {
        answers.flatten().boxed()
    } else {
        answers.flatten_unordered(ITEMS_AT_ONCE).boxed()
    }
}

/// The answer to one item, as a stream of parts.
fn answer(
    servers: Arc<Servers>,
    call: Arc<UpstreamCall>,
    item: Item,
) -> impl Stream<Item = PartResult> + Send {
    try_stream! {
        let _permit = servers.limits.permit(call.patience(Instant::now())).await?;
        let mut opened = servers.open(&call, &item).await?;
        let mut under_way = CallRecord::new(&servers.account, &opened.server.connector);
        while let Some(part) = opened.reading.next().await {
            match &part {
                Err(error) => {
                    under_way.ended(Some(error.code));
                    opened.server.failed(error).await;
                }
                Ok(Part { end: Some(end), .. }) => {
                    under_way.ended(None);
                    servers.account.used(end.usage);
                    if end.details.unterminated {
                        servers.account.unterminated();
                    }
                }
                Ok(_) => {}
            }
            yield part.map_err(|error| named(error, &opened.server.connector))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_counted_and_no_provider_hears_of_them() {
        let of = |value| {
            [("n".to_owned(), ParamValue::Int(value))]
                .into_iter()
                .collect()
        };
        let mut three: Parameters = of(3);
        let none = Parameters::default();
        assert_eq!(take_choices(&mut three, &none).unwrap(), 3);
        assert_eq!(three.unsigned("n").unwrap(), Some(1));
        assert_eq!(take_choices(&mut Parameters::default(), &none).unwrap(), 1);
        let mut plain = Parameters::default();
        assert_eq!(take_choices(&mut plain, &of(2)).unwrap(), 2);
        for wrong in [0, 17, -1] {
            let mut given: Parameters = of(wrong);
            let error = take_choices(&mut given, &none).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput);
        }
    }
}
