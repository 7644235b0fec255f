//! Decoders that return keys and values as new tensors, as most exports do. The output of one run
//! is the input of the next. Each slot is a separate run, because rows of different lengths would
//! have to be padded and copied at every step.
//!
//! Exports in two files have a graph for whole prompts without a past, and a graph that continues
//! from a past. If the second one can also prefill prompts, the first one is dropped.

use std::sync::Arc;

use half::{bf16, f16};
use volley_onnx_runtime::ort::memory::{Allocator, MemoryInfo};
use volley_onnx_runtime::ort::session::{IoBinding, Session};
use volley_onnx_runtime::ort::value::{
    DynValue, PrimitiveTensorElementType, Shape, Tensor, TensorElementType,
};
use volley_types::PredictError;

use super::layout::{GraphLayout, LogitsInput, SWITCH};
use super::shared::each_of_all;
use super::trim::LAST;
use super::{append_last, failed, quiet, refused};
use crate::memory;
use crate::model::{ModelFiles, Names};
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::session::SharedRunOptions;

/// A loaded decoder with a KV cache for each slot.
pub(super) struct GrowingCacheDecoder {
    // Their memory belongs to the session.
    slots: Vec<CacheTensors>,
    graph: Graph,
    /// The graph for prompts from the first token on, if the main graph cannot prefill them.
    prompts: Option<Graph>,
    run_options: Arc<SharedRunOptions>,
    names: Names,
    place: ExecutionDevice,
    vocabulary: usize,
    /// Shape of an empty past.
    empty: [usize; 4],
}

/// Keys and values of one sequence, in the order of the names; empty before its first run.
type CacheTensors = Vec<DynValue>;

/// A session and the layout of its inputs.
pub(super) struct Graph {
    pub(super) session: Session,
    pub(super) layout: GraphLayout,
}

impl GrowingCacheDecoder {
    /// Creates a decoder with `slots` slots for the model in `graph`. If `prompts` is given, that
    /// graph prefills whole prompts.
    ///
    /// # Errors
    /// `InvalidInput` when the machine has less memory than the full KV cache needs.
    pub(super) fn new(
        graph: Graph,
        prompts: Option<Graph>,
        place: ExecutionDevice,
        files: &ModelFiles,
        slots: usize,
    ) -> Result<Self, PredictError> {
        if place == ExecutionDevice::Host {
            memory::check_fits(files.cache_bytes(slots, graph.layout.value_bytes()))?;
        }
        Ok(Self {
            slots: (0..slots).map(|_| CacheTensors::new()).collect(),
            graph,
            prompts,
            run_options: Arc::new(quiet()?),
            names: files.names.clone(),
            place,
            vocabulary: files.vocabulary,
            empty: [1, files.kv_heads, 0, files.head_size],
        })
    }

    /// As [`Decoder::prefill`](super::Decoder::prefill).
    pub(super) fn prefill<T>(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        let mut logits = Vec::with_capacity(self.vocabulary);
        self.run_last(slot, length, tokens, &mut logits)?;
        Ok(read(&logits))
    }

    /// As [`Decoder::prefill_all`](super::Decoder::prefill_all). Returns false if the model does
    /// not return the logits of all positions.
    pub(super) fn prefill_all(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        read: impl FnMut(usize, &[f32]),
    ) -> Result<bool, PredictError> {
        let (count, vocabulary) = (tokens.len(), self.vocabulary);
        let all = self.run(slot, length, tokens, count, |logits| {
            each_of_all(logits, count, vocabulary, read)
        })?;
        if !all {
            // Restores the state before the run.
            match length {
                0 => self.slots[slot] = CacheTensors::new(),
                length => self.reuse_prefix(slot, slot, length)?,
            }
        }
        Ok(all)
    }

    /// The options through which runs are stopped.
    pub(super) fn options(&self) -> Arc<SharedRunOptions> {
        self.run_options.clone()
    }

    /// Prefills one token into `slot` with these options; the slot's content is lost.
    ///
    /// # Errors
    /// `Internal` when the run fails.
    pub(super) fn shrink(
        &mut self,
        slot: usize,
        options: SharedRunOptions,
    ) -> Result<(), PredictError> {
        let usual = std::mem::replace(&mut self.run_options, Arc::new(options));
        // Each session has its own arena.
        let ran = self.prefill(slot, 0, &[0], |_| ());
        let ran = ran.and_then(|()| match self.reads_apart() {
            true => self.prefill(slot, 1, &[0], |_| ()),
            false => Ok(()),
        });
        self.run_options = usual;
        ran
    }

    /// Whether a separate graph prefills prompts.
    pub(super) fn reads_apart(&self) -> bool {
        self.prompts.is_some()
    }

    /// Removes the graph for prompts, and returns it so that it can be put back. Clears all slots.
    pub(super) fn take_prompts(&mut self) -> Option<Graph> {
        self.slots.fill_with(CacheTensors::new);
        self.prompts.take()
    }

    /// Puts the graph for prompts back.
    pub(super) fn put_prompts(&mut self, prompts: Graph) {
        self.prompts = Some(prompts);
    }

    /// As [`Decoder::decode`](super::Decoder::decode).
    pub(super) fn decode<T>(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        let mut logits = Vec::with_capacity(tokens.len() * self.vocabulary);
        for (slot, (token, length)) in tokens.iter().zip(lengths).enumerate() {
            self.run_last(slot, *length, &[*token], &mut logits)?;
        }
        Ok(read(&logits))
    }

    /// As [`Decoder::swap_slots`](super::Decoder::swap_slots).
    pub(super) fn swap_slots(&mut self, one: usize, other: usize) {
        if one.max(other) < self.slots.len() {
            self.slots.swap(one, other);
        }
    }

    /// As [`Decoder::reuse_prefix`](super::Decoder::reuse_prefix).
    pub(super) fn reuse_prefix(
        &mut self,
        from: usize,
        to: usize,
        length: usize,
    ) -> Result<(), PredictError> {
        let past = &self.slots[from];
        let cut = past.iter().map(|value| beginning(value, length));
        self.slots[to] = cut.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Runs one slot, and appends the logits after the last token to `logits`.
    fn run_last(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        logits: &mut Vec<f32>,
    ) -> Result<(), PredictError> {
        let vocabulary = self.vocabulary;
        self.run(slot, length, tokens, 1, |given| {
            append_last(given, vocabulary, logits)
        })
    }

    /// Runs one slot, and passes the logits after at least the last `kept` tokens to `read`.
    fn run<T>(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        kept: usize,
        read: impl FnOnce(&DynValue) -> Result<T, PredictError>,
    ) -> Result<T, PredictError> {
        let held = std::mem::take(&mut self.slots[slot]);
        let begins = length == 0 || held.is_empty();
        // The graph for prompts has no inputs for a past.
        let past = match (begins, &self.prompts) {
            (true, Some(_)) => None,
            (true, None) => Some(self.no_past()?),
            (false, _) => Some(held),
        };
        let ids = tokens.iter().map(|token| i64::from(*token)).collect();
        let names = &self.names;
        let Graph { session, layout } = match (&past, &mut self.prompts) {
            (None, Some(prompts)) => prompts,
            _ => &mut self.graph,
        };
        let mut binding = session.create_binding().map_err(refused)?;
        let mut bind = |name: &str, values| {
            let tensor = row(values)?;
            binding.bind_input(name, &tensor).map_err(refused)
        };
        bind(&names.input_ids, ids)?;
        bind(&names.attention_mask, vec![1; length + tokens.len()])?;
        if layout.positions {
            let positions = (length..length + tokens.len()).map(|position| position as i64);
            bind(&names.position_ids, positions.collect())?;
        }
        if layout.chooses {
            let chosen = (tokens.len() - kept..tokens.len()).map(|place| place as i64);
            let chosen = Tensor::from_array(([1, kept, 1], chosen.collect::<Vec<_>>()));
            let chosen = chosen.map_err(refused)?;
            binding.bind_input(LAST, &chosen).map_err(refused)?;
        }
        let extras = layout.extras;
        if extras.switch {
            let past = Tensor::from_array(([1], vec![0 < length])).map_err(refused)?;
            binding.bind_input(SWITCH, &past).map_err(refused)?;
        }
        if let Some(LogitsInput { name, rank }) = extras.kept {
            let count = Tensor::from_array((vec![1_i64; rank], vec![kept as i64]));
            let count = count.map_err(refused)?;
            binding.bind_input(name, &count).map_err(refused)?;
        }
        let held = past.as_deref().unwrap_or_default();
        bind_caches(&mut binding, names, held, self.place)?;
        binding
            .bind_output_to_device(&names.logits, &MemoryInfo::default())
            .map_err(refused)?;
        let run = session.run_binding_with_options(&binding, &self.run_options);
        let mut outputs = run.map_err(refused)?;
        let given = outputs
            .get(names.logits.as_str())
            .ok_or_else(|| failed("no logits"))?;
        let told = read(given)?;
        let present = names.caches.iter().map(|(_, name)| outputs.remove(name));
        self.slots[slot] = present
            .collect::<Option<_>>()
            .ok_or_else(|| failed("no keys and values"))?;
        Ok(told)
    }

    fn no_past(&self) -> Result<CacheTensors, PredictError> {
        let allocator = Allocator::default();
        let empty = || match self.graph.layout.cache {
            TensorElementType::Float16 => {
                Tensor::<f16>::new(&allocator, self.empty).map(Tensor::into_dyn)
            }
            TensorElementType::Bfloat16 => {
                Tensor::<bf16>::new(&allocator, self.empty).map(Tensor::into_dyn)
            }
            _ => Tensor::<f32>::new(&allocator, self.empty).map(Tensor::into_dyn),
        };
        let past = self.names.caches.iter().map(|_| empty());
        past.collect::<Result<_, _>>().map_err(refused)
    }
}

/// Binds the earlier keys and values, and keeps the new ones on the device of the model.
fn bind_caches(
    binding: &mut IoBinding,
    names: &Names,
    past: &[DynValue],
    place: ExecutionDevice,
) -> Result<(), PredictError> {
    let there = place.memory().map_err(refused)?;
    for ((name, _), value) in names.caches.iter().zip(past) {
        binding.bind_input(name, value).map_err(refused)?;
    }
    for (_, present) in &names.caches {
        binding
            .bind_output_to_device(present, &there)
            .map_err(refused)?;
    }
    Ok(())
}

/// The first `length` positions of a tensor `[1, heads, positions, head size]`.
fn beginning(value: &DynValue, length: usize) -> Result<DynValue, PredictError> {
    if let Ok((shape, values)) = value.try_extract_tensor::<f32>() {
        return cut(shape, values, length);
    }
    if let Ok((shape, values)) = value.try_extract_tensor::<f16>() {
        return cut(shape, values, length);
    }
    let (shape, values) = value.try_extract_tensor::<bf16>().map_err(refused)?;
    cut(shape, values, length)
}

fn cut<T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static>(
    shape: &Shape,
    values: &[T],
    length: usize,
) -> Result<DynValue, PredictError> {
    let [_, heads, positions, size] = shape[..] else {
        return Err(failed("keys and values of another rank"));
    };
    let [heads, positions, size] = [heads, positions, size].map(|dim| dim as usize);
    let length = length.min(positions);
    let kept: Vec<T> = values
        .chunks(positions.max(1) * size.max(1))
        .flat_map(|head| &head[..length * size])
        .cloned()
        .collect();
    let cut = Tensor::from_array(([1, heads, length, size], kept));
    cut.map(Tensor::into_dyn).map_err(refused)
}

fn row(values: Vec<i64>) -> Result<Tensor<i64>, PredictError> {
    Tensor::from_array(([1, values.len()], values)).map_err(refused)
}
