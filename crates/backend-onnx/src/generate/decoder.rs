//! The model and its KV cache: reads prompts into slots, decodes all running slots at once.
//!
//! Slots that decode are the first rows of the cache, without a hole, so that a step is one run
//! over them. Bindings of cache views are made once for each number of rows and each slot.

use std::path::Path;

use ort::logging::LogLevel;
use ort::memory::MemoryInfo;
use ort::session::{IoBinding, NoSelectedOutputs, RunOptions, Session};
use ort::value::{Outlet, Tensor, TensorElementType, ValueType};
use volley_types::{ErrorOrigin, PredictError};

use super::kv::{Cache, View};
use super::memory;
use super::model::{ModelFiles, Names};
use crate::{OnnxConfig, Runtime, session};

/// A binding with the views that it is bound to.
struct Bound {
    // Dropped before the views.
    binding: IoBinding,
    _views: Vec<View>,
}

/// A loaded decoder.
pub(crate) struct Decoder {
    // Bindings hold on to the session and to views of the caches: first out.
    batches: Vec<Option<Bound>>,
    singles: Vec<Option<Bound>>,
    session: Session,
    run_options: RunOptions<NoSelectedOutputs>,
    caches: Vec<Cache>,
    names: Names,
    vocabulary: usize,
    slots: usize,
}

impl Decoder {
    /// Loads the model and makes room for the configured number of slots.
    ///
    /// # Errors
    /// `InvalidInput` when the model cannot be loaded or has another layout.
    pub(crate) fn load(
        runtime: &Runtime,
        directory: &Path,
        files: &ModelFiles,
        config: &OnnxConfig,
    ) -> Result<Self, PredictError> {
        let session = session::build(runtime, &directory.join(&files.onnx), config)?;
        let names = files.names.clone();
        check_layout(&session, &names, files.vocabulary)?;
        let slots = config.slots.max(1);
        let values = [
            names.caches.len(),
            files.kv_heads,
            files.context,
            files.head_size,
        ]
        .iter()
        .fold(slots, |values, size| values.saturating_mul(*size));
        memory::check_fits(values.saturating_mul(size_of::<f32>()))?;
        let cache = || Cache::new(slots, files.kv_heads, files.context, files.head_size);
        Ok(Self {
            batches: (0..=slots).map(|_| None).collect(),
            singles: (0..slots).map(|_| None).collect(),
            caches: names
                .caches
                .iter()
                .map(|_| cache())
                .collect::<Result<_, _>>()?,
            session,
            run_options: quiet()?,
            names,
            vocabulary: files.vocabulary,
            slots,
        })
    }

    /// Bytes of the KV cache once all of it is in use.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.caches.iter().map(Cache::bytes).sum()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Reads `tokens` into `slot`, which holds `length` tokens already, and gives the logits
    /// after the last of them to `read`.
    ///
    /// # Errors
    /// `Internal` when the run fails.
    pub(crate) fn prefill<T>(
        &mut self,
        slot: usize,
        length: usize,
        tokens: &[u32],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let mask = vec![1_i64; length + tokens.len()];
        let mut bound = match self.singles[slot].take() {
            Some(bound) => bound,
            None => self.bind(slot, 1)?,
        };
        let (names, vocabulary) = (&self.names, self.vocabulary);
        // A run leaves its output bound, in its shape: another prompt has another length.
        bind_logits(&mut bound.binding, names)?;
        let result = step(
            &mut self.session,
            &self.run_options,
            names,
            &mut bound,
            1,
            (ids, mask),
            |logits| {
                logits
                    .len()
                    .checked_sub(vocabulary)
                    .map(|start| read(&logits[start..]))
            },
        );
        self.singles[slot] = Some(bound);
        result?.ok_or_else(|| failed("the model gave too few logits"))
    }

    /// Decodes one token in each of the first `tokens.len()` slots, which hold `lengths`
    /// tokens, and gives all logits, one row of the vocabulary for each slot, to `read`.
    ///
    /// # Errors
    /// `Internal` when the run fails.
    pub(crate) fn decode<T>(
        &mut self,
        tokens: &[u32],
        lengths: &[usize],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        let rows = tokens.len();
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        // The model counts the ones of each row; what is behind them is padding.
        let width = lengths.iter().max().copied().unwrap_or(0) + 1;
        let mut mask = vec![0_i64; rows * width];
        for (row, length) in mask.chunks_mut(width).zip(lengths) {
            row[..=*length].fill(1);
        }
        let mut bound = match self.batches[rows].take() {
            Some(bound) => bound,
            None => self.bind(0, rows)?,
        };
        let (names, vocabulary) = (&self.names, self.vocabulary);
        let result = step(
            &mut self.session,
            &self.run_options,
            names,
            &mut bound,
            rows,
            (ids, mask),
            |logits| (rows * vocabulary == logits.len()).then(|| read(logits)),
        );
        self.batches[rows] = Some(bound);
        result?.ok_or_else(|| failed("the model gave too few logits"))
    }

    /// Moves what slot `from` holds to slot `to`.
    pub(crate) fn move_slot(&mut self, from: usize, to: usize, length: usize) {
        for cache in &mut self.caches {
            cache.copy_row(from, to, length);
        }
    }

    /// Exchanges what two slots hold; `length` is the longer one's.
    pub(crate) fn swap_slots(&mut self, one: usize, other: usize, length: usize) {
        for cache in &mut self.caches {
            cache.swap_rows(one, other, length);
        }
    }

    fn bind(&self, first: usize, rows: usize) -> Result<Bound, PredictError> {
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
        Ok(Bound {
            binding,
            _views: views,
        })
    }
}

/// Checks that the model is one whose cache can be shared, before the first request finds out.
fn check_layout(session: &Session, names: &Names, vocabulary: usize) -> Result<(), PredictError> {
    let find = |outlets: &[Outlet], name: &str| {
        let outlet = outlets.iter().find(|outlet| outlet.name() == name);
        outlet.map(|outlet| outlet.dtype().clone()).ok_or_else(|| {
            PredictError::invalid(format!(
                "the model has no input or output '{name}', which genai_config.json names"
            ))
        })
    };
    for name in [&names.input_ids, &names.attention_mask] {
        expect(
            name,
            &find(session.inputs(), name)?,
            TensorElementType::Int64,
        )?;
    }
    for (past, present) in &names.caches {
        expect(
            past,
            &find(session.inputs(), past)?,
            TensorElementType::Float32,
        )?;
        expect(
            present,
            &find(session.outputs(), present)?,
            TensorElementType::Float32,
        )?;
    }
    let logits = find(session.outputs(), &names.logits)?;
    expect(&names.logits, &logits, TensorElementType::Float32)?;
    let last = logits
        .tensor_shape()
        .and_then(|shape| shape.last().copied());
    if last.is_some_and(|last| 0 <= last && usize::try_from(last) != Ok(vocabulary)) {
        return Err(PredictError::invalid(
            "genai_config.json: 'vocab_size' is not the size of the model's logits",
        ));
    }
    if session.inputs().len() != names.caches.len() + 2 {
        return Err(PredictError::invalid(
            "the model has inputs that genai_config.json does not name; only decoders with \
             grouped-query attention and a shared KV cache are served",
        ));
    }
    Ok(())
}

fn expect(name: &str, found: &ValueType, wanted: TensorElementType) -> Result<(), PredictError> {
    if found.tensor_type() == Some(wanted) {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "the model's '{name}' is {found}, and only {wanted} is served; export the model with \
         32-bit inputs and outputs (its weights may be int4 or int8)"
    )))
}

fn bind_logits(binding: &mut IoBinding, names: &Names) -> Result<(), PredictError> {
    binding
        .bind_output_to_device(names.logits.as_str(), &MemoryInfo::default())
        .map_err(refused)
}

/// Options for runs that log no more than warnings. Otherwise every run writes its course as text
/// for a log that is seldom read.
fn quiet() -> Result<RunOptions<NoSelectedOutputs>, PredictError> {
    let mut options = RunOptions::new().map_err(refused)?;
    options.set_log_level(LogLevel::Warning).map_err(refused)?;
    Ok(options)
}

fn step<T>(
    session: &mut Session,
    run_options: &RunOptions<NoSelectedOutputs>,
    names: &Names,
    bound: &mut Bound,
    rows: usize,
    (ids, mask): (Vec<i64>, Vec<i64>),
    read: impl FnOnce(&[f32]) -> T,
) -> Result<T, PredictError> {
    let shape = |values: &[i64]| [rows, values.len() / rows.max(1)];
    let ids = Tensor::from_array((shape(&ids), ids)).map_err(refused)?;
    let mask = Tensor::from_array((shape(&mask), mask)).map_err(refused)?;
    bound
        .binding
        .bind_input(names.input_ids.as_str(), &ids)
        .map_err(refused)?;
    bound
        .binding
        .bind_input(names.attention_mask.as_str(), &mask)
        .map_err(refused)?;
    let outputs = session
        .run_binding_with_options(&bound.binding, run_options)
        .map_err(refused)?;
    let logits = outputs
        .get(names.logits.as_str())
        .ok_or_else(|| failed("no logits"))?;
    let (_, logits) = logits.try_extract_tensor::<f32>().map_err(refused)?;
    Ok(read(logits))
}

fn refused(error: ort::Error) -> PredictError {
    failed(&error.to_string())
}

fn failed(cause: &str) -> PredictError {
    PredictError::internal("the model could not run", cause.to_owned())
        .with_origin(ErrorOrigin::Model)
}
