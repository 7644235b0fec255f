//! The model and its KV cache: reads prompts into slots, decodes all running slots.
//!
//! There are two kinds of models. Those with grouped-query attention write new keys and values
//! into the buffer that they read the old ones from ([`shared`]): all running slots are one run.
//! All others give keys and values out as new tensors, longer by what they read ([`growing`]):
//! each slot is a run of its own.

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

/// How far logits of the same prompt may be apart: what the order of sums does, also in 16 bits,
/// and far less than what another prompt does.
const SAME: f32 = 0.02;
/// Tokens that a model is tried with, of which every vocabulary has as many. They differ, as what a
/// position sees of others does not show where all are the same.
const TRIED: [u32; 3] = [0, 1, 2];

/// A loaded decoder.
pub(crate) struct Decoder {
    kind: Kind,
    place: ExecutionDevice,
    slots: usize,
    cache_bytes: usize,
    // Both found out as it warms up.
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
    /// Loads the model and makes room for the configured number of slots. Logits are only of the
    /// positions that are asked for, where the graph allows it.
    ///
    /// # Errors
    /// `InvalidInput` when the model cannot be loaded or has another layout.
    pub(crate) fn load(
        runtime: &Runtime,
        directory: &Path,
        files: &ModelFiles,
        config: &OnnxConfig,
    ) -> Result<Self, PredictError> {
        Self::load_with(runtime, directory, files, config, true)
    }

    /// As [`Decoder::load`], with the graph as it was exported.
    ///
    /// # Errors
    /// As there.
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

    /// Has `watch` stop runs from now on.
    pub(crate) fn limit(&mut self, watch: RunTimeout) {
        self.watch = Some(watch);
    }

    /// Reads one token and decodes another, so that the first request finds the model warm, and a
    /// model that cannot run is never served.
    ///
    /// # Errors
    /// `InvalidInput` when it cannot run.
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

    /// Of a model in two graphs, keeps the one for prompts only where the other, from an empty past,
    /// gives other logits than that does, or fails: it holds all weights again.
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

    /// Whether prompts are read by a graph of their own.
    pub(crate) fn reads_apart(&self) -> bool {
        matches!(&self.kind, Kind::Growing(decoder) if decoder.reads_apart())
    }

    /// Whether several tokens are read behind others as they are all at once. Graphs that were
    /// traced with one token behind a past read only one there.
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

    /// Whether a short prompt beside a longer one is read as it is alone. Not all graphs take
    /// padding, or give the logits of all positions.
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

    /// Bytes of the KV cache once all of it is in use.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Reads `tokens` into `slot`, which holds `length` tokens already, and gives the logits
    /// after the last of them to `read`.
    ///
    /// # Errors
    /// `Internal` when the run fails, `TooLarge` when there is no memory for it,
    /// `DeadlineExceeded` when it takes too long.
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

    /// As [`Decoder::prefill`], with the logits after each of the tokens, by its place among them.
    ///
    /// # Errors
    /// As there.
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
        // The model gives those after the last token only: one token at a time.
        for (index, token) in tokens.iter().enumerate() {
            let one = std::slice::from_ref(token);
            self.prefill(slot, length + index, one, |logits| read(index, logits))?;
        }
        Ok(())
    }

    /// One step of the decoder, within its limit. Should it lack memory, `slot` is lost.
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

    /// After a run that lacked memory: sets the session's arena back by a run of one token in a
    /// slot whose content is lost anyway.
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

    /// Whether [`Decoder::prefill_together`] can be used.
    pub(crate) fn reads_together(&self) -> bool {
        self.reads_together
    }

    /// Whether a prompt can be read in parts, and from where another one's reading stands. Where it
    /// cannot, all of it is read at once, into a slot that holds nothing.
    pub(crate) fn reads_on(&self) -> bool {
        self.reads_on
    }

    /// Reads whole prompts, each into a slot of its own from slot `first` on, in one run; what the
    /// slots held is gone. Gives each one's place among `prompts` with the logits after its last
    /// token to `read`.
    ///
    /// # Errors
    /// `Internal` when the run fails, or the model cannot do this. What the slots hold is not
    /// known then.
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

    /// Decodes one token in each of the first `tokens.len()` slots, which hold `lengths`
    /// tokens, and gives all logits, one row of the vocabulary for each slot, to `read`.
    ///
    /// # Errors
    /// `Internal` when the run fails, `TooLarge` when there is no memory for it,
    /// `DeadlineExceeded` when it takes too long.
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

    /// Makes slot `to` hold the first `length` positions of slot `from`, which may be itself.
    ///
    /// # Errors
    /// `Internal` when there is no room for a copy.
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

    /// Exchanges what two slots hold; `length` is the longer one's.
    ///
    /// # Errors
    /// `Internal` when a GPU cannot copy; what the slots hold is not known then.
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

/// A session on the CPU that gives logits of chosen positions only; `None` where sessions run
/// elsewhere, or the graph is none of those.
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

/// Whether two runs gave the same logits.
fn are_near(one: &[f32], other: &[f32]) -> bool {
    let near = |(one, other): (&f32, &f32)| {
        (one - other).abs() <= SAME * (1.0 + one.abs()) || one.to_bits() == other.to_bits()
    };
    one.len() == other.len() && one.iter().zip(other).all(near)
}

/// Options for runs that log no more than warnings. Otherwise every run writes its course as text
/// for a log that is seldom read.
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

/// Appends the last `count` numbers of `given`, whatever its type, to `to`.
fn append_last<M: TensorValueTypeMarker + ?Sized>(
    given: &Value<M>,
    count: usize,
    to: &mut Vec<f32>,
) -> Result<(), PredictError> {
    append(given, |length| Some(length.checked_sub(count)?..length), to)
}

/// Appends those numbers of `given` that `choose` names by their number, whatever their type.
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
