//! The word-splitting backend: streams each item's prompt back, one word per chunk. It needs no
//! model and is used to try a cluster and for tests.
//!
//! Parameters: `delay_ms` (before each chunk, default 0, at most 60,000). Parameters of a model
//! version are defaults for its requests.

use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use async_trait::async_trait;
use volley_types::params::COUNT_TOKENS;
use volley_types::registry::{Assignment, BackendInfo, BackendName, SourceKind};
use volley_types::{
    ChunkStream, FinishReason, GenerationChunk, GenerationChunks, ModelName, ModelRef, Parameters,
    Predict, PredictError, PredictRequest, Signature, Usage,
};

use crate::items::{self, Item};
use crate::{Backend, BackendLoader};

/// Maximum number of concurrent streams.
const CAPACITY: usize = 4_096;
/// The longest delay before a chunk.
const MAX_DELAY_MS: u64 = 60_000;

/// This backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::TEXT,
    summary: "streams the prompt back, word by word",
    source: SourceKind::None,
    takes_model_config: false,
};

/// Loads [`TextBackend`]s.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextLoader;

#[async_trait]
impl BackendLoader for TextLoader {
    fn name(&self) -> BackendName {
        BackendName::TEXT
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        Ok(Arc::new(TextBackend {
            model: assignment.model.clone(),
            defaults: assignment.spec.parameters.clone(),
        }))
    }
}

/// A loaded word-splitter.
#[derive(Clone, Debug)]
pub struct TextBackend {
    model: ModelName,
    defaults: Parameters,
}

impl Backend for TextBackend {
    fn capacity(&self) -> usize {
        CAPACITY
    }
}

#[async_trait]
impl Predict for TextBackend {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let parameters = request.parameters.or_defaults(&self.defaults);
        let delay_ms = parameters.unsigned("delay_ms")?.unwrap_or(0);
        if MAX_DELAY_MS < delay_ms {
            return Err(PredictError::invalid(format!(
                "parameter 'delay_ms' must be at most {MAX_DELAY_MS}"
            )));
        }
        let delay = Duration::from_millis(delay_ms);
        let counted = parameters.boolean(COUNT_TOKENS)?.unwrap_or(false);
        let batches = try_stream! {
            let items = items::collect(request.input.into_inner()).await?;
            let mut usage = Usage::default();
            let mut sequence = 0;
            if counted {
                let words = items.iter().map(|item| text_of(item).split_inclusive(char::is_whitespace));
                let words = words.map(Iterator::count).sum::<usize>();
                usage.prompt_tokens = u32::try_from(words).unwrap_or(u32::MAX);
                yield GenerationChunks::single(&end(&items, sequence, usage));
                return;
            }
            for (item, text) in (0_u32..).zip(items.iter().map(text_of)) {
                for word in text.split_inclusive(char::is_whitespace) {
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    usage.prompt_tokens += 1;
                    usage.completion_tokens += 1;
                    let text = Some(word.to_owned());
                    let chunk = GenerationChunk { item, sequence, text, ..GenerationChunk::default() };
                    yield GenerationChunks::single(&chunk);
                    sequence += 1;
                    // A long prompt without delays must not block the thread.
                    tokio::task::consume_budget().await;
                }
            }
            yield GenerationChunks::single(&end(&items, sequence, usage));
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

fn end(items: &[Item], sequence: u32, usage: Usage) -> GenerationChunk {
    GenerationChunk {
        item: u32::try_from(items.len() - 1).unwrap_or(u32::MAX),
        sequence,
        finish_reason: Some(FinishReason::Stop),
        usage: Some(usage),
        last: true,
        ..GenerationChunk::default()
    }
}

fn text_of(item: &Item) -> &str {
    match item {
        Item::Prompt(prompt) => prompt,
        Item::Chat(messages) => messages.last().map_or("", |message| &message.content),
    }
}
