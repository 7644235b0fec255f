//! The model and its KV cache: prefills prompts into slots, and decodes all running slots.
//!
//! There are two kinds of models. Models with grouped-query attention write new keys and values
//! into the buffer from which they read the old ones ([`shared`]): all running slots are one run.
//! All other models return keys and values as new tensors that grow with each run ([`growing`]):
//! each slot is a separate run.

mod fixed;
mod growing;
mod layout;
mod logits;
mod shared;
mod trim;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use volley_onnx_runtime::ort::logging::LogLevel;
use volley_onnx_runtime::ort::session::Session;
use volley_onnx_runtime::ort::value::{TensorValueTypeMarker, Value};
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use self::growing::{Graph, GrowingCacheDecoder};
use self::shared::SharedCacheDecoder;
use super::model::ModelFiles;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::session::SharedRunOptions;
use volley_onnx_runtime::{OnnxConfig, Runtime};

/// Tolerance for logits of the same prompt: larger than the effect of the order of sums, also in 16
/// bits, and far smaller than that of another prompt.
const SAME: f32 = 0.02;
/// Tokens of test runs; every vocabulary has them. They differ, because with equal tokens the
/// effect of attention to other positions would not show.
const TRIED: [u32; 3] = [0, 1, 2];

/// A loaded decoder.
pub(crate) struct Decoder {
    kind: Kind,
    place: ExecutionDevice,
    slots: usize,
    cache_bytes: usize,
    // Both are determined by the warm-up.
    reads_together: bool,
    reads_on: bool,
    watch: Option<RunTimeout>,
}

enum Kind {
    Shared(SharedCacheDecoder),
    Growing(GrowingCacheDecoder),
}

impl Kind {
    fn options(&self) -> Arc<SharedRunOptions> {
        match self {
            Self::Shared(decoder) => decoder.options(),
            Self::Growing(decoder) => decoder.options(),
        }
    }
}

impl Decoder {
    /// Loads the model and allocates the configured number of slots. If the graph allows it, it is
    /// changed to compute only the needed logits ([`trim`]).
    ///
    /// # Errors
    /// `InvalidInput` when the model cannot be loaded or has an unsupported layout.
    pub(crate) fn load(
        runtime: &Runtime,
        directory: &Path,
        files: &ModelFiles,
        config: &OnnxConfig,
    ) -> Result<Self, PredictError> {
        Self::load_with(runtime, directory, files, config, true)
    }

    /// As [`Decoder::load`], with the unchanged graph.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub(crate) fn load_as_exported(
        runtime: &Runtime,
        directory: &Path,
        files: &ModelFiles,
        config: &OnnxConfig,
    ) -> Result<Self, PredictError> {
        Self::load_with(runtime, directory, files, config, false)
    }

    fn load_with(
        runtime: &Runtime,
        directory: &Path,
        files: &ModelFiles,
        config: &OnnxConfig,
        trims: bool,
    ) -> Result<Self, PredictError> {
        let config = &OnnxConfig {
            cuda_graphs: config.cuda_graphs && files.shared,
            ..*config
        };
        let build = |graph: &Path| {
            let (path, logits) = (directory.join(graph), &files.names.logits);
            let trimmed = trims.then(|| trimmed(runtime, &path, logits, config));
            match trimmed.flatten() {
                Some(session) => Ok((session, ExecutionDevice::Host)),
                None => session::build_placed(runtime, &path, config),
            }
        };
        let (session, place) = build(&files.onnx)?;
        let fixed = config.cuda_graphs && place != ExecutionDevice::Host;
        let layout = layout::check(&session, files)?;
        let slots = config.slots.max(1);
        let kind = if files.shared {
            Kind::Shared(SharedCacheDecoder::new(
                session, place, files, layout, slots, fixed,
            )?)
        } else {
            let prompts = match &files.prompts {
                Some(prompts) => {
                    let session = build(prompts)?.0;
                    let layout = layout::check_prompts(&session, files, layout)?;
                    Some(Graph { session, layout })
                }
                None => None,
            };
            let graph = Graph { session, layout };
            Kind::Growing(GrowingCacheDecoder::new(
                graph, prompts, place, files, slots,
            )?)
        };
        Ok(Self {
            kind,
            place,
            slots,
            cache_bytes: files.cache_bytes(slots, layout.value_bytes()),
            reads_together: false,
            reads_on: true,
            watch: None,
        })
    }

    /// Sets the watch that stops runs exceeding the run timeout.
    pub(crate) fn limit(&mut self, watch: RunTimeout) {
        self.watch = Some(watch);
    }

    /// Prefills one token and decodes another, so that the first request finds the model warm, and
    /// a model that cannot run is not served.
    ///
    /// # Errors
    /// `InvalidInput` when a run fails.
    pub(crate) fn warm_up(&mut self) -> Result<(), PredictError> {
        let ran = self.prefill(0, 0, &[0], |_| ());
        ran.and_then(|()| self.decode(&[0], &[1], |_| ()))
            .map_err(session::cannot_run)?;
        self.choose_prompt_graph();
        self.reads_together = self.batches_prefill_correctly();
        if !self.reads_together {
            tracing::debug!("decoder prefills one prompt per run");
        }
        self.reads_on = self.goes_on();
        if !self.reads_on {
            tracing::info!("decoder prefills a prompt in one run and shares no prefixes");
        }
        Ok(())
    }

    /// For a model in two graphs: keeps the graph for prompts only if the other one, with an empty
    /// past, fails or returns different logits, because each graph holds all weights.
    fn choose_prompt_graph(&mut self) {
        let Kind::Growing(decoder) = &mut self.kind else {
            return;
        };
        let told = decoder.prefill(0, 0, &TRIED, <[f32]>::to_vec);
        let Some(prompts) = decoder.take_prompts() else {
            return;
        };
        let found = decoder.prefill(0, 0, &TRIED, <[f32]>::to_vec);
        let same = matches!((&told, &found), (Ok(told), Ok(found)) if are_near(told, found));
        if !same {
            decoder.put_prompts(prompts);
        }
        tracing::info!(kept = !same, "decoder has a separate prefill graph");
    }

    /// Whether a separate graph prefills prompts.
    pub(crate) fn reads_apart(&self) -> bool {
        matches!(&self.kind, Kind::Growing(decoder) if decoder.reads_apart())
    }

    /// Whether several tokens after a past give the same logits as in a single run. Graphs that
    /// were traced with one token after a past accept only one there.
    fn goes_on(&mut self) -> bool {
        if matches!(self.kind, Kind::Shared(_)) {
            return true;
        }
        let Ok(whole) = self.prefill(0, 0, &TRIED, <[f32]>::to_vec) else {
            return false;
        };
        let first = self.prefill(0, 0, &TRIED[..1], |_| ());
        let behind = first.and_then(|()| self.prefill(0, 1, &TRIED[1..], <[f32]>::to_vec));
        behind.is_ok_and(|behind| are_near(&whole, &behind))
    }

    /// Whether a short prompt beside a longer one gives the same logits as alone. Some graphs do
    /// not support padding, or do not return the logits of all positions.
    fn batches_prefill_correctly(&mut self) -> bool {
        if self.slots < 2 || !matches!(self.kind, Kind::Shared(_)) {
            return false;
        }
        let Ok(alone) = self.prefill(0, 0, &TRIED[..1], <[f32]>::to_vec) else {
            return false;
        };
        let mut beside = Vec::new();
        let prompts: [&[u32]; 2] = [&TRIED, &TRIED[..1]];
        let ran = self.prefill_together(0, &prompts, |index, logits| {
            if index == 1 {
                beside.extend_from_slice(logits);
            }
        });
        ran.is_ok() && are_near(&alone, &beside)
    }

    /// Bytes of the KV cache when it is completely used.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Prefills `tokens` into `slot`, which already holds `length` tokens, and passes the logits
    /// after the last token to `read`: one number for each token of the vocabulary.
    ///
    /// # Errors
    /// `Internal` when the run fails; `TooLarge` when it lacks memory; `DeadlineExceeded` when it
    /// exceeds the run timeout.
    pub(crate) fn prefill<T>(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        self.run(slot, |kind| match kind {
            Kind::Shared(decoder) => decoder.prefill(slot, length, tokens, read),
            Kind::Growing(decoder) => decoder.prefill(slot, length, tokens, read),
        })
    }

    /// As [`Decoder::prefill`], with the logits after each token, by its index in `tokens`.
    ///
    /// # Errors
    /// As [`Decoder::prefill`].
    pub(crate) fn prefill_all(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        mut read: impl FnMut(usize, &[f32]),
    ) -> Result<(), PredictError> {
        let all = self.run(slot, |kind| match kind {
            Kind::Shared(decoder) => decoder.prefill_all(slot, length, tokens, &mut read),
            Kind::Growing(decoder) => decoder.prefill_all(slot, length, tokens, &mut read),
        })?;
        if all {
            return Ok(());
        }
        // The model only returns the logits after the last token, so prefill one token at a time.
        for (index, token) in tokens.iter().enumerate() {
            let one = std::slice::from_ref(token);
            self.prefill(slot, length + index, one, |logits| read(index, logits))?;
        }
        Ok(())
    }

    /// Executes one run within the run timeout. If it lacks memory, the content of `slot` is lost.
    fn run<T>(
        &mut self,
        slot: usize,
        step: impl FnOnce(&mut Kind) -> Result<T, PredictError>,
    ) -> Result<T, PredictError> {
        let kind = &mut self.kind;
        let ran = match &mut self.watch {
            Some(watch) => watch.over(&kind.options(), |_| step(kind)),
            None => step(kind),
        };
        self.give_back_after(ran, slot)
    }

    /// After a run that lacked memory: shrinks the session's arena by a run of one token in a slot
    /// whose content is already lost.
    fn give_back_after<T>(
        &mut self,
        ran: Result<T, PredictError>,
        slot: usize,
    ) -> Result<T, PredictError> {
        if matches!(&ran, Err(error) if error.code == ErrorCode::TooLarge) {
            let shrunk = session::shrinking(self.place).map_err(refused);
            let shrunk = shrunk.and_then(|options| match &mut self.kind {
                Kind::Shared(decoder) => decoder.shrink(slot, options),
                Kind::Growing(decoder) => decoder.shrink(slot, options),
            });
            if let Err(error) = shrunk {
                tracing::warn!(error = error.chain(), "session memory not released");
            }
        }
        ran
    }

    /// Whether [`Decoder::prefill_together`] is supported.
    pub(crate) fn reads_together(&self) -> bool {
        self.reads_together
    }

    /// Whether a prompt can be prefilled in parts and from a shared prefix. If not, a prompt is
    /// prefilled in one run into an empty slot.
    pub(crate) fn reads_on(&self) -> bool {
        self.reads_on
    }

    /// Prefills whole prompts in one run, each into its own slot from slot `first` on, replacing
    /// the slots' content. Passes the index in `prompts` and the logits after the last token to
    /// `read`.
    ///
    /// # Errors
    /// `Internal` when the run fails or the model does not support this. The content of the slots
    /// is then undefined.
    pub(crate) fn prefill_together(
        &mut self,
        first: usize,
        prompts: &[&[u32]],
        read: impl FnMut(usize, &[f32]),
    ) -> Result<(), PredictError> {
        self.run(first, |kind| match kind {
            Kind::Shared(decoder) => decoder.prefill_together(first, prompts, read),
            Kind::Growing(_) => Err(failed("each slot is a run of its own")),
        })
    }

    /// Decodes one token in each of the first `tokens.len()` slots, which hold `lengths` tokens.
    /// Passes all logits to `read`: one row of the vocabulary for each slot.
    ///
    /// # Errors
    /// As [`Decoder::prefill`].
    pub(crate) fn decode<T>(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        self.run(0, |kind| match kind {
            Kind::Shared(decoder) => decoder.decode(tokens, lengths, read),
            Kind::Growing(decoder) => decoder.decode(tokens, lengths, read),
        })
    }

    /// Copies the first `length` positions of slot `from` to slot `to`, which may be the same.
    ///
    /// # Errors
    /// `Internal` when the copy fails.
    pub(crate) fn reuse_prefix(
        &mut self,
        from: usize,
        to: usize,
        length: usize,
    ) -> Result<(), PredictError> {
        match &mut self.kind {
            Kind::Shared(decoder) => decoder.reuse_prefix(from, to, length),
            Kind::Growing(decoder) => decoder.reuse_prefix(from, to, length),
        }
    }

    /// Swaps the contents of two slots; `length` is the length of the longer one.
    ///
    /// # Errors
    /// `Internal` when a copy on a GPU fails; the content of both slots is then undefined.
    pub(crate) fn swap_slots(
        &mut self,
        one: usize,
        other: usize,
        length: usize,
    ) -> Result<(), PredictError> {
        match &mut self.kind {
            Kind::Shared(decoder) => decoder.swap_slots(one, other, length)?,
            Kind::Growing(decoder) => decoder.swap_slots(one, other),
        }
        Ok(())
    }
}

/// A CPU session that computes only the needed logits; `None` for sessions on a GPU and for
/// unsupported graphs.
fn trimmed(runtime: &Runtime, path: &Path, logits: &str, config: &OnnxConfig) -> Option<Session> {
    let is_small = std::fs::metadata(path).is_ok_and(|file| file.len() <= trim::MOST);
    if !is_small || !matches!(session::place(runtime, config), Ok(ExecutionDevice::Host)) {
        return None;
    }
    let model = trim::trimmed(&std::fs::read(path).ok()?, logits)?;
    match session::build_in_memory(runtime, &model, path, config) {
        Ok(session) => Some(session),
        Err(error) => {
            let error = error.chain();
            tracing::debug!(
                error,
                "decoder graph not trimmed; it computes the logits of all positions"
            );
            None
        }
    }
}

/// Whether two runs returned the same logits, within the tolerance.
fn are_near(one: &[f32], other: &[f32]) -> bool {
    let near = |(one, other): (&f32, &f32)| {
        (one - other).abs() <= SAME * (1.0 + one.abs()) || one.to_bits() == other.to_bits()
    };
    one.len() == other.len() && one.iter().zip(other).all(near)
}

/// Options for runs that log only warnings. By default every run formats log messages that are
/// usually discarded.
fn quiet() -> Result<SharedRunOptions, PredictError> {
    let mut options = SharedRunOptions::new().map_err(refused)?;
    options.set_log_level(LogLevel::Warning).map_err(refused)?;
    Ok(options)
}

fn refused(error: volley_onnx_runtime::ort::Error) -> PredictError {
    let message = error.to_string();
    if !session::lacks_memory(&message) {
        return failed(&message);
    }
    let told = "not enough free memory for this prompt beside the running requests; send a shorter \
         prompt, or lower 'slots' of this worker";
    PredictError::new(ErrorCode::TooLarge, told)
        .with_origin(ErrorOrigin::Model)
        .with_source(message)
}

fn failed(cause: &str) -> PredictError {
    PredictError::internal("the model could not run", cause.to_owned())
        .with_origin(ErrorOrigin::Model)
}

/// Converts the last `count` numbers of `given` to `f32` and appends them to `to`.
fn append_last<M: TensorValueTypeMarker + ?Sized>(
    given: &Value<M>,
    count: usize,
    to: &mut Vec<f32>,
) -> Result<(), PredictError> {
    append(given, |length| Some(length.checked_sub(count)?..length), to)
}

/// Converts the chosen range of the numbers of `given` to `f32` and appends it to `to`. `choose`
/// gets the total count.
fn append<M: TensorValueTypeMarker + ?Sized>(
    given: &Value<M>,
    choose: impl FnOnce(usize) -> Option<Range<usize>>,
    to: &mut Vec<f32>,
) -> Result<(), PredictError> {
    let range = |length: usize| {
        let range = choose(length).filter(|range| range.end <= length);
        range.ok_or_else(|| failed("the model returned too few logits"))
    };
    if let Ok((_, values)) = given.try_extract_tensor::<f32>() {
        to.extend_from_slice(&values[range(values.len())?]);
    } else if let Ok((_, values)) = given.try_extract_tensor::<f16>() {
        let chosen = values[range(values.len())?].iter();
        to.extend(chosen.map(|value| value.to_f32()));
    } else {
        let (_, values) = given.try_extract_tensor::<bf16>().map_err(refused)?;
        let chosen = values[range(values.len())?].iter();
        to.extend(chosen.map(|value| value.to_f32()));
    }
    Ok(())
}
