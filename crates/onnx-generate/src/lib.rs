//! Streamed text generation with a KV cache (continuous batching).
//!
//! One thread per replica (`engine`) decodes all running generations together, one token each per
//! step. A request joins at the next step and leaves when it is done, and never waits for the end
//! of another. Each generation has a slot: a row of the KV cache (`decoder`). Prompts are prefilled
//! in chunks between steps. On the same thread, logits become tokens (`sampler`) and tokens become
//! text (`output_assembler`). Rows leave through one bounded channel per request (`merge`), so that
//! a slow reader only delays itself. See `docs/explanation/batching-and-kv-cache.md`.

pub mod bare;
mod decoder;
mod engine;
mod event;
mod memory;
mod merge;
mod model;
mod options;
mod output_assembler;
mod prepare;
mod prompt;
mod reasoning;
mod sampler;
mod token_view;

use std::path::Path;
use std::sync::Arc;

use async_stream::try_stream;
use async_trait::async_trait;
use volley_backend::{Backend, items};
use volley_types::{
    ChunkStream, Continuation, ErrorCode, GenerationChunks, ModelName, ModelRef, Parameters,
    Predict, PredictError, PredictRequest, Signature,
};

use self::engine::Engine;
use self::model::ModelFiles;
use self::options::Options;
use self::prepare::PreparedRequest;
use self::token_view::TokenView;
use volley_chat_template::{CancelFlag, ChatTemplate};
use volley_model_directory::overrides::VARIANT;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::{Device, OnnxConfig, Runtime, graph};

/// Maximum number of rows of one record batch.
const MAX_BATCH: usize = 64;

/// A loaded generation model.
struct Generator {
    model: ModelName,
    defaults: Parameters,
    files: Arc<ModelFiles>,
    engine: Engine,
    slots: usize,
    memory_bytes: u64,
}

/// Loads the directory of a decoder and warms it up. Blocks, and must be called inside a tokio
/// runtime.
///
/// Streams of the model are cancel safe: dropping one ends its generations and frees their slots
/// after the current step.
///
/// # Errors
/// `InvalidInput` when a file is missing or malformed, the graph is not a supported decoder, the KV
/// cache does not fit this machine, or the model cannot run; `Internal` when its thread cannot be
/// started.
pub fn load(
    runtime: &Runtime,
    directory: &Path,
    model: ModelName,
    defaults: Parameters,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let variant = defaults.text(VARIANT);
    let files = Arc::new(ModelFiles::read(
        directory,
        variant.as_deref(),
        config.max_context,
    )?);
    let mut decoder = decoder::Decoder::load(runtime, directory, &files, &config)?;
    decoder.warm_up()?;
    decoder.limit(RunTimeout::new(config.run_timeout)?);
    let weights_of = |graph: &Path| {
        let outline = graph::outline(&directory.join(graph))?;
        Ok::<_, PredictError>(config.weights_of_session(&outline))
    };
    let mut weights = weights_of(&files.onnx)?;
    if let Some(prompts) = &files.prompts
        && decoder.reads_apart()
    {
        weights = weights.saturating_add(weights_of(prompts)?);
    }
    let memory_bytes = weights.saturating_add(decoder.cache_bytes() as u64);
    let engine = Engine::start(&model, decoder, files.clone(), config.prefix_reuse)?;
    Ok(Arc::new(Generator {
        model,
        defaults,
        files,
        engine,
        slots: config.slots.max(1),
        memory_bytes,
    }))
}

/// Estimates the bytes of a decoder's weights and of its completely used KV cache, before it is
/// loaded. Does not read the tokenizer.
///
/// # Errors
/// `InvalidInput` when the directory is malformed, or the KV cache does not fit this machine.
pub fn estimate(
    directory: &Path,
    variant: Option<&str>,
    config: &OnnxConfig,
) -> Result<u64, PredictError> {
    let (graphs, numbers) = model::sizes(directory, variant, config)?;
    let outline = graph::outline(&directory.join(graphs.steps))?;
    // Whether the graph for prompts is kept is only known after loading both.
    let prompts = graphs
        .prompts
        .map(|graph| graph::outline(&directory.join(graph)));
    let prompts = prompts
        .transpose()?
        .map_or(0, |outline| config.weights_of_session(&outline));
    let value_bytes = if outline.half_inputs { 2 } else { 4 };
    let cache_bytes = numbers.saturating_mul(value_bytes);
    if config.device != Device::Cuda {
        memory::check_fits(cache_bytes)?;
    }
    let weights = config.weights_of_session(&outline);
    let all = weights.saturating_add(prompts);
    Ok(all.saturating_add(cache_bytes as u64))
}

impl Backend for Generator {
    fn capacity(&self) -> usize {
        self.slots
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

#[async_trait]
impl Predict for Generator {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let template = self.files.chat.as_ref().map(ChatTemplate::source);
        options::check_names(&request.parameters, template)?;
        let parameters = options::or_defaults(request.parameters, &self.defaults);
        let parameters = options::or_defaults(parameters, &self.files.recommended);
        let Continuation { seed, sent } = request.continuation;
        let options = Options::read(&parameters, self.files.context)?.or_seed(seed);
        options.check(self.files.vocabulary)?;
        if let Some(look) = TokenView::read(&parameters)? {
            let batches = token_view::inspect_tokens(
                self.files.clone(),
                request.input.into_inner(),
                options,
                look,
            );
            let batches = futures::stream::once(batches);
            return Ok(ChunkStream::new(Signature::generation().output, batches));
        }
        let (files, engine, slots) = (self.files.clone(), self.engine.clone(), self.slots);
        let batches = try_stream! {
            let rows = items::collect(request.input.into_inner()).await?;
            let answers = answers(rows.len(), &options)?;
            let readable = engine::CHUNKS_PER_READER * answers.min(slots);
            let (sender, mut events) = tokio::sync::mpsc::channel(readable);
            let begun = prepare::begin(&files, rows, options, sent, sender).await?;
            let PreparedRequest { requests, mut merge, mut ready } = begun;
            for request in requests {
                engine.submit(request)?;
            }
            // First deliver the rows that are already there, then rows as they arrive.
            loop {
                let mut rows = GenerationChunks::default();
                for event in ready.drain(..) {
                    merge.push(event, &mut rows)?;
                }
                if !rows.is_empty() {
                    yield rows.finish();
                }
                if events.recv_many(&mut ready, MAX_BATCH).await == 0 {
                    break;
                }
            }
            if !merge.complete() {
                Err(PredictError::new(ErrorCode::Internal, "the model's thread has ended"))?;
            }
        };
        Ok(ChunkStream::new(Signature::generation().output, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature::generation().within(self.files.context))
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

/// Number of answers to a request.
///
/// # Errors
/// `TooLarge`.
fn answers(items: usize, options: &Options) -> Result<usize, PredictError> {
    let answers = items.saturating_mul(options.choices as usize);
    if items::MAX_ITEMS < answers {
        let message = format!(
            "the request asks for {answers} answers; the limit is {}",
            items::MAX_ITEMS
        );
        return Err(PredictError::new(ErrorCode::TooLarge, message));
    }
    Ok(answers)
}

/// The settings of a decoder's files, for people.
///
/// # Errors
/// `InvalidInput` when a file is missing or malformed.
pub fn details(
    directory: &Path,
    variant: Option<&str>,
    config: &OnnxConfig,
) -> Result<Vec<(&'static str, String)>, PredictError> {
    let files = ModelFiles::read(directory, variant, config.max_context)?;
    let cache = if files.shared { "shared" } else { "growing" };
    let chat = match &files.chat {
        Some(chat) if chat.takes_tools() => "yes, with tools",
        Some(_) => "yes",
        None => "no",
    };
    let eos: Vec<_> = files.eos.iter().map(ToString::to_string).collect();
    let mut details = vec![
        ("described by", files.described_by.to_owned()),
        ("graph", files.onnx.display().to_string()),
        ("KV cache", cache.to_owned()),
        ("context", format!("{} tokens", files.context)),
        ("vocabulary", format!("{} tokens", files.vocabulary)),
        ("ends at token", eos.join(", ")),
        ("chat template", chat.to_owned()),
    ];
    if let Some(prompts) = &files.prompts {
        details.insert(2, ("reads prompts", prompts.display().to_string()));
    }
    let recommended = files.recommended.iter().filter_map(|(name, _)| {
        let value = files.recommended.text(name)?;
        Some(format!("{name} = {value}"))
    });
    let recommended: Vec<_> = recommended.collect();
    if !recommended.is_empty() {
        details.push(("recommended", recommended.join(", ")));
    }
    Ok(details)
}

/// The files, and the tokens of the prompt, for bare runs.
pub(crate) fn bare_files(
    directory: &Path,
    prompt: &str,
    max_context: Option<usize>,
) -> Result<(ModelFiles, Vec<u32>), PredictError> {
    let files = ModelFiles::read(directory, None, max_context)?;
    let options = Options::read(&Parameters::default(), files.context)?;
    let item = items::Item::Prompt(prompt.to_owned());
    let ids = prompt::encode(&files, &item, &options, &CancelFlag::default())?.ids;
    Ok((files, ids))
}

/// The most likely token.
pub(crate) fn greedy(logits: &[f32]) -> u32 {
    sampler::argmax(logits)
}
