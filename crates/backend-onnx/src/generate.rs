//! Streamed text generation with a KV cache.
//!
//! One thread per replica ([`engine`]) decodes all running generations together, one token
//! each per step: a request joins at the next step and leaves when it is done, and never waits
//! for another to end. Each has a slot: a row of the KV cache ([`decoder`], [`kv`]). Prompts
//! are read in chunks between steps. Logits become tokens ([`sampler`]) and tokens text
//! ([`text`]) on that thread; rows leave through one bounded channel per request, so that a
//! reader who is slow holds up nobody but itself.

pub(crate) mod decoder;
mod engine;
mod kv;
mod model;
mod options;
mod prompt;
mod sampler;
mod text;

use std::path::Path;
use std::sync::Arc;

use async_stream::try_stream;
use async_trait::async_trait;
use volley_backend::{Backend, items};
use volley_types::{
    ChunkStream, ErrorCode, GenerationChunk, GenerationChunks, ModelName, ModelRef, Parameters,
    Predict, PredictError, PredictRequest, Signature, Usage,
};

use self::engine::{Engine, Request};
use self::model::ModelFiles;
use self::options::Options;
use crate::{OnnxConfig, Runtime};

/// Rows of one record batch, at most.
const MAX_BATCH: usize = 64;

/// A loaded generation model.
struct Generator {
    model: ModelName,
    defaults: Parameters,
    files: Arc<ModelFiles>,
    engine: Engine,
    slots: usize,
}

/// Loads a directory with `genai_config.json`. Blocks.
pub(crate) fn load(
    runtime: &Runtime,
    directory: &Path,
    model: ModelName,
    defaults: Parameters,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let files = Arc::new(ModelFiles::read(directory, config.max_context)?);
    let decoder = decoder::Decoder::load(runtime, directory, &files, &config)?;
    let engine = Engine::start(&model, decoder, files.clone())?;
    Ok(Arc::new(Generator {
        model,
        defaults,
        files,
        engine,
        slots: config.slots.max(1),
    }))
}

impl Backend for Generator {
    fn capacity(&self) -> usize {
        self.slots
    }
}

#[async_trait]
impl Predict for Generator {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let parameters = request.parameters.or_defaults(&self.defaults);
        let options = Options::read(&parameters, self.files.context)?;
        let (files, engine) = (self.files.clone(), self.engine.clone());
        let batches = try_stream! {
            let rows = items::collect(request.input).await?;
            let prompts = {
                let (files, options) = (files.clone(), options.clone());
                // Tokenising a long prompt takes longer than a runtime's thread should be held.
                tokio::task::spawn_blocking(move || encode_all(&files, &rows, &options))
                    .await
                    .map_err(|error| PredictError::internal("tokenising failed", error))??
            };
            let (sender, mut chunks) = tokio::sync::mpsc::channel(engine::CHUNKS_PER_READER);
            let items = prompts.len();
            for (item, prompt) in (0_u32..).zip(prompts) {
                engine.submit(Request { item, prompt, options: options.clone(), sender: sender.clone() })?;
            }
            drop(sender);
            let mut merge = Merge::new(items);
            let mut ready = Vec::with_capacity(MAX_BATCH);
            while 0 < chunks.recv_many(&mut ready, MAX_BATCH).await {
                let mut rows = GenerationChunks::default();
                for chunk in ready.drain(..) {
                    merge.push(chunk?, &mut rows);
                }
                if !rows.is_empty() {
                    yield rows.finish();
                }
            }
            if !merge.complete() {
                Err(PredictError::new(ErrorCode::Internal, "the model's thread has ended"))?;
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

fn encode_all(
    files: &ModelFiles,
    rows: &[items::Item],
    options: &Options,
) -> Result<Vec<Vec<u32>>, PredictError> {
    rows.iter()
        .map(|row| prompt::encode(files, row, options))
        .collect()
}

/// Several items as one stream: sequences run over the whole stream, usage adds up, and only
/// the last item's end is the stream's.
struct Merge {
    left: usize,
    sequence: u32,
    usage: Usage,
}

impl Merge {
    fn new(items: usize) -> Self {
        Self {
            left: items,
            sequence: 0,
            usage: Usage::default(),
        }
    }

    fn push(&mut self, mut chunk: GenerationChunk, rows: &mut GenerationChunks) {
        chunk.sequence = self.sequence;
        self.sequence += 1;
        if let Some(usage) = chunk.usage.take() {
            self.usage.prompt_tokens += usage.prompt_tokens;
            self.usage.completion_tokens += usage.completion_tokens;
        }
        if chunk.last {
            self.left -= 1;
            chunk.last = self.left == 0;
            chunk.usage = chunk.last.then_some(self.usage);
        }
        rows.push(&chunk);
    }

    fn complete(&self) -> bool {
        self.left == 0
    }
}

/// The files and the prompt's tokens, for bare runs.
pub(crate) fn bare_files(
    directory: &Path,
    prompt: &str,
    max_context: Option<usize>,
) -> Result<(ModelFiles, Vec<u32>), PredictError> {
    let files = ModelFiles::read(directory, max_context)?;
    let options = Options::read(&Parameters::default(), files.context)?;
    let tokens = prompt::encode(&files, &items::Item::Prompt(prompt.to_owned()), &options)?;
    Ok((files, tokens))
}

/// The most likely token.
pub(crate) fn greedy(logits: &[f32]) -> u32 {
    sampler::argmax(logits.iter().copied())
}
