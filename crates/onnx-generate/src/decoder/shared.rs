//! Decoders with grouped-query attention, whose past and present share one buffer.
//!
//! Decoding slots are the first rows of the cache, without gaps, so that a step is one run over
//! them. The bindings of cache views are created once for each number of rows and each slot.

use std::sync::Arc;

use volley_onnx_runtime::ort::memory::MemoryInfo;
use volley_onnx_runtime::ort::session::{IoBinding, Session};
use volley_onnx_runtime::ort::value::{DynValue, Tensor};
use volley_types::PredictError;

use super::fixed::{FixedSteps, Parts, without_graph};
use super::layout::GraphLayout;
use super::logits::last;
use super::trim::LAST;
use super::{append, failed, quiet, refused};
use crate::memory;
use crate::model::{ModelFiles, Names};
use volley_onnx_runtime::kv::{Cache, KvShape, View};
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::session::SharedRunOptions;

/// A binding and the cache views that it refers to.
struct BoundViews {
    // Dropped before the views.
    binding: IoBinding,
    _views: Vec<View>,
}

/// A loaded decoder with one KV cache for all slots.
pub(super) struct SharedCacheDecoder {
    // Bindings refer to the session and to views of the caches, so they are dropped first.
    /// Decode steps as CUDA graphs, if configured.
    fixed: Option<FixedSteps>,
    batches: Vec<Option<BoundViews>>,
    singles: Vec<Option<BoundViews>>,
    session: Session,
    run_options: Arc<SharedRunOptions>,
    caches: Vec<Cache>,
    names: Names,
    /// Whether the model has an input of positions.
    positions: bool,
    /// Whether the graph has the input of positions with logits.
    chooses: bool,
    vocabulary: usize,
}

/// The inputs of a run, row by row.
struct Rows {
    ids: Vec<i64>,
    mask: Vec<i64>,
    /// `None` if the model has no such input.
    positions: Option<Vec<i64>>,
    /// Positions with logits, the same number for each row; `None` if the model has no such input.
    last: Option<Vec<i64>>,
}

impl SharedCacheDecoder {
    /// Creates a decoder with `slots` slots for the model in `session`. With `fixed`, decode steps
    /// have fixed shapes and addresses.
    ///
    /// # Errors
    /// `InvalidInput` when the memory for the KV cache is not available.
    pub(super) fn new(
        session: Session,
        place: ExecutionDevice,
        files: &ModelFiles,
        layout: GraphLayout,
        slots: usize,
        fixed: bool,
    ) -> Result<Self, PredictError> {
        let names = files.names.clone();
        if place == ExecutionDevice::Host {
            memory::check_fits(files.cache_bytes(slots, layout.value_bytes()))?;
        }
        let form = KvShape {
            slots,
            heads: files.kv_heads,
            context: files.context,
            head_size: files.head_size,
            element: layout.cache,
        };
        let cache = || Cache::new(&session, place, form);
        Ok(Self {
            batches: (0..=slots).map(|_| None).collect(),
            singles: (0..slots).map(|_| None).collect(),
            caches: names
                .caches
                .iter()
                .map(|_| cache())
                .collect::<Result<_, _>>()?,
            session,
            run_options: Arc::new(if fixed { without_graph()? } else { quiet()? }),
            names,
            positions: layout.positions,
            chooses: layout.chooses,
            vocabulary: files.vocabulary,
            fixed: fixed
                .then(|| FixedSteps::new(place, layout, files.context))
                .flatten(),
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
        let last_one = vec![tokens.len() as i64 - 1];
        let vocabulary = self.vocabulary;
        self.read_in(slot, length, tokens, last_one, |logits| {
            last(logits, vocabulary, read)
        })?
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
        let count = tokens.len();
        let all = (0..count as i64).collect();
        let vocabulary = self.vocabulary;
        self.read_in(slot, length, tokens, all, |logits| {
            each_of_all(logits, count, vocabulary, read)
        })?
    }

    /// Prefills `tokens` into `slot`. If the graph has the input for it, only the positions
    /// `chosen` have logits.
    fn read_in<T>(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        chosen: Vec<i64>,
        read: impl FnOnce(&DynValue) -> T,
    ) -> Result<T, PredictError> {
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let mask = vec![1_i64; length + tokens.len()];
        let positions = (length..length + tokens.len()).map(|place| place as i64);
        let positions = self.positions.then(|| positions.collect());
        let mut bound = match self.singles[slot].take() {
            Some(bound) => bound,
            None => self.bind(slot, 1)?,
        };
        let names = &self.names;
        // A run leaves its output bound with its shape, but the next prompt has another length.
        bind_logits(&mut bound.binding, names)?;
        let (session, options) = (&mut self.session, &self.run_options);
        let rows = Rows {
            ids,
            mask,
            positions,
            last: self.chooses.then_some(chosen),
        };
        let result = step(session, options, names, &mut bound, 1, rows, read);
        self.singles[slot] = Some(bound);
        result
    }

    /// As [`Decoder::prefill_together`](super::Decoder::prefill_together).
    pub(super) fn prefill_together(
        &mut self,
        first: usize,
        prompts: &[&[u32]],
        read: impl FnMut(usize, &[f32]),
    ) -> Result<(), PredictError> {
        let rows = prompts.len();
        let width = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        if width == 0 {
            return Err(failed("no prompts"));
        }
        // Padding is at the end: the ones in a row's mask mark its valid part, and later tokens of
        // the slot overwrite the rest.
        let (mut ids, mut mask) = (vec![0; rows * width], vec![0; rows * width]);
        let padded = ids.chunks_mut(width).zip(mask.chunks_mut(width));
        for (prompt, (ids, mask)) in prompts.iter().zip(padded) {
            mask[..prompt.len()].fill(1);
            for (id, token) in ids.iter_mut().zip(*prompt) {
                *id = i64::from(*token);
            }
        }
        // The position of padding is that of the last token, which every position table contains.
        let place = |prompt: &[u32], place: usize| place.min(prompt.len().saturating_sub(1)) as i64;
        let positions = prompts
            .iter()
            .flat_map(|prompt| (0..width).map(move |index| place(prompt, index)));
        let positions = self.positions.then(|| positions.collect());
        let mut bound = self.bind(first, rows)?;
        let (names, vocabulary) = (&self.names, self.vocabulary);
        let (session, options) = (&mut self.session, &self.run_options);
        let ends = prompts.iter().map(|prompt| prompt.len().saturating_sub(1));
        let last = self
            .chooses
            .then(|| ends.clone().map(|end| end as i64).collect());
        // Number of positions with logits in each row.
        let given = if self.chooses { 1 } else { width };
        let ends = ends
            .enumerate()
            .map(|(row, end)| row * given + end.min(given - 1));
        step(
            session,
            options,
            names,
            &mut bound,
            rows,
            Rows {
                ids,
                mask,
                positions,
                last,
            },
            |logits| each(logits, rows * given, vocabulary, ends, read),
        )?
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
        let ran = self.prefill(slot, 0, &[0], |_| ());
        self.run_options = usual;
        ran
    }

    /// As [`Decoder::decode`](super::Decoder::decode).
    pub(super) fn decode<T>(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        if let Some(fixed) = &mut self.fixed {
            let parts = Parts {
                session: &mut self.session,
                caches: &self.caches,
                names: &self.names,
                vocabulary: self.vocabulary,
            };
            return fixed.decode(parts, tokens, lengths, read);
        }
        let rows = tokens.len();
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        // The model uses the ones of each row; the rest of the mask is padding.
        let width = lengths.iter().max().copied().unwrap_or(0) + 1;
        let mut mask = vec![0_i64; rows * width];
        for (row, length) in mask.chunks_mut(width).zip(lengths) {
            row[..=*length].fill(1);
        }
        let positions = lengths.iter().map(|length| *length as i64);
        let positions = self.positions.then(|| positions.collect());
        let only = self.chooses.then(|| vec![0; rows]);
        let mut bound = match self.batches[rows].take() {
            Some(bound) => bound,
            None => self.bind(0, rows)?,
        };
        let (names, vocabulary) = (&self.names, self.vocabulary);
        let (session, options) = (&mut self.session, &self.run_options);
        let result = step(
            session,
            options,
            names,
            &mut bound,
            rows,
            Rows {
                ids,
                mask,
                positions,
                last: only,
            },
            |logits| last(logits, rows * vocabulary, read),
        );
        self.batches[rows] = Some(bound);
        result?
    }

    /// As [`Decoder::reuse_prefix`](super::Decoder::reuse_prefix).
    pub(super) fn reuse_prefix(
        &mut self,
        from: usize,
        to: usize,
        length: usize,
    ) -> Result<(), PredictError> {
        let mut caches = self.caches.iter_mut();
        caches.try_for_each(|cache| cache.copy_row(from, to, length))
    }

    /// As [`Decoder::swap_slots`](super::Decoder::swap_slots).
    pub(super) fn swap_slots(
        &mut self,
        one: usize,
        other: usize,
        length: usize,
    ) -> Result<(), PredictError> {
        let mut caches = self.caches.iter_mut();
        caches.try_for_each(|cache| cache.swap_rows(one, other, length))
    }

    fn bind(&self, first: usize, rows: usize) -> Result<BoundViews, PredictError> {
        let mut binding = self.session.create_binding().map_err(refused)?;
        let mut views = Vec::with_capacity(self.caches.len());
        for (cache, (past, present)) in self.caches.iter().zip(&self.names.caches) {
            let mut view = cache.view(first, rows)?;
            binding
                .bind_input(past.as_str(), view.tensor())
                .map_err(refused)?;
            binding
                .bind_output(present.as_str(), view.tensor())
                .map_err(refused)?;
            views.push(view);
        }
        bind_logits(&mut binding, &self.names)?;
        Ok(BoundViews {
            binding,
            _views: views,
        })
    }
}

fn bind_logits(binding: &mut IoBinding, names: &Names) -> Result<(), PredictError> {
    binding
        .bind_output_to_device(names.logits.as_str(), &MemoryInfo::default())
        .map_err(refused)
}

fn step<T>(
    session: &mut Session,
    run_options: &SharedRunOptions,
    names: &Names,
    bound: &mut BoundViews,
    rows: usize,
    read_in: Rows,
    read: impl FnOnce(&DynValue) -> T,
) -> Result<T, PredictError> {
    let Rows {
        ids,
        mask,
        positions,
        last,
    } = read_in;
    let mut bind = |name: &str, values: Vec<i64>| {
        let shape = [rows, values.len() / rows.max(1)];
        let tensor = Tensor::from_array((shape, values)).map_err(refused)?;
        bound.binding.bind_input(name, &tensor).map_err(refused)
    };
    bind(&names.input_ids, ids)?;
    bind(&names.attention_mask, mask)?;
    if let Some(positions) = positions {
        bind(&names.position_ids, positions)?;
    }
    if let Some(last) = last {
        let last = Tensor::from_array(([rows, last.len() / rows.max(1), 1], last));
        let last = last.map_err(refused)?;
        bound.binding.bind_input(LAST, &last).map_err(refused)?;
    }
    let outputs = session
        .run_binding_with_options(&bound.binding, run_options)
        .map_err(refused)?;
    let logits = outputs
        .get(names.logits.as_str())
        .ok_or_else(|| failed("no logits"))?;
    Ok(read(logits))
}

/// Passes the logits of all `positions` to `read`, in order. Returns false if there are fewer.
pub(super) fn each_of_all(
    logits: &DynValue,
    positions: usize,
    vocabulary: usize,
    read: impl FnMut(usize, &[f32]),
) -> Result<bool, PredictError> {
    let given: i64 = logits.shape().iter().product();
    if usize::try_from(given).ok() != Some(positions * vocabulary) {
        return Ok(false);
    }
    each(logits, positions, vocabulary, 0..positions, read).map(|()| true)
}

/// Passes the logits of the `chosen` ones of all `positions` to `read`, in order.
fn each(
    logits: &DynValue,
    positions: usize,
    vocabulary: usize,
    chosen: impl Iterator<Item = usize>,
    mut read: impl FnMut(usize, &[f32]),
) -> Result<(), PredictError> {
    let range = |position: usize| position * vocabulary..(position + 1) * vocabulary;
    let whole = |length: usize| length == positions * vocabulary;
    if let Ok((_, values)) = logits.try_extract_tensor::<f32>() {
        if !whole(values.len()) {
            return Err(failed("the model returns logits of some positions only"));
        }
        for (index, position) in chosen.enumerate() {
            read(index, &values[range(position)]);
        }
        return Ok(());
    }
    let mut values = Vec::with_capacity(vocabulary);
    for (index, position) in chosen.enumerate() {
        values.clear();
        let choose = |length| whole(length).then(|| range(position));
        append(logits, choose, &mut values)?;
        read(index, &values);
    }
    Ok(())
}
