//! Decode steps with fixed shapes and addresses, as CUDA graphs require: a captured step is
//! launched as a whole, without the driver's overhead for each kernel.
//!
//! The input and output tensors of a step live as long as the decoder. The number of rows equals
//! the number of running generations, because an additional row would write into a slot that
//! another prompt may use. The width of the mask is the upper bound of the longest row in its
//! bucket. Positions after a row's ones are ignored, as with rows of different lengths. So there is
//! one graph for each number of rows and each bucket.
//! of rows and each bucket.

use std::collections::BTreeMap;

use volley_onnx_runtime::ort::memory::Allocator;
use volley_onnx_runtime::ort::session::{IoBinding, NoSelectedOutputs, RunOptions, Session};
use volley_onnx_runtime::ort::value::{DynTensor, Tensor, TensorElementType};
use volley_types::PredictError;

use super::layout::GraphLayout;
use super::logits::last;
use super::{quiet, refused};
use crate::model::Names;
use volley_onnx_runtime::kv::{Cache, View};
use volley_onnx_runtime::session::{ExecutionDevice, GRAPH, NO_GRAPH};

/// Minimum width of the mask.
const FIRST_WIDTH: usize = 256;

/// All steps of a decoder, by number of rows and width of the mask.
pub(super) struct FixedSteps {
    steps: BTreeMap<(usize, usize), Step>,
    place: ExecutionDevice,
    context: usize,
    logits: TensorElementType,
    /// Whether the logits have a dimension of positions.
    positions: bool,
}

/// One step with its bindings.
struct Step {
    // Dropped before the tensors.
    binding: IoBinding,
    options: RunOptions<NoSelectedOutputs>,
    ids: Tensor<i64>,
    mask: Tensor<i64>,
    logits: DynTensor,
    /// The host copy of the logits, if the model runs on a GPU.
    here: Option<DynTensor>,
    _views: Vec<View>,
}

/// The parts of a decoder that its steps use.
pub(super) struct Parts<'d> {
    pub(super) session: &'d mut Session,
    pub(super) caches: &'d [Cache],
    pub(super) names: &'d Names,
    pub(super) vocabulary: usize,
}

impl FixedSteps {
    /// Creates steps on `place`; `None` if the logits have an unsupported rank, or the model has an
    /// input of positions.
    pub(super) fn new(place: ExecutionDevice, layout: GraphLayout, context: usize) -> Option<Self> {
        let positions = match layout.logits_rank {
            Some(2) if !layout.positions => false,
            Some(3) if !layout.positions => true,
            _ => return None,
        };
        Some(Self {
            steps: BTreeMap::new(),
            place,
            context,
            logits: layout.logits,
            positions,
        })
    }

    /// Decodes one token in each of the first `tokens.len()` slots, as
    /// [`Decoder::decode`](super::Decoder::decode).
    pub(super) fn decode<T>(
        &mut self,
        parts: Parts<'_>,
        tokens: &[u32],
        lengths: &[usize],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        let rows = tokens.len();
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let width = width(longest, self.context);
        let mut step = match self.steps.remove(&(rows, width)) {
            Some(step) => step,
            None => self.step(&parts, rows, width)?,
        };
        let ran = step.run(parts, self.place, tokens, lengths, read);
        self.steps.insert((rows, width), step);
        ran
    }

    fn step(&self, parts: &Parts<'_>, rows: usize, width: usize) -> Result<Step, PredictError> {
        let Parts {
            session,
            caches,
            names,
            vocabulary,
        } = parts;
        let allocator = match self.place {
            ExecutionDevice::Host => Allocator::default(),
            ExecutionDevice::Cuda(_) => {
                let memory = self.place.memory().map_err(refused)?;
                Allocator::new(session, memory).map_err(refused)?
            }
        };
        let shape: &[usize] = match self.positions {
            true => &[rows, 1, *vocabulary],
            false => &[rows, *vocabulary],
        };
        let logits = |at: &Allocator| DynTensor::new(at, self.logits, shape).map_err(refused);
        let ids = Tensor::<i64>::new(&allocator, [rows, 1]).map_err(refused)?;
        let mask = Tensor::<i64>::new(&allocator, [rows, width]).map_err(refused)?;
        let mut output = logits(&allocator)?;
        let mut binding = session.create_binding().map_err(refused)?;
        let inputs = [(&names.input_ids, &ids), (&names.attention_mask, &mask)];
        for (name, tensor) in inputs {
            binding.bind_input(name.as_str(), tensor).map_err(refused)?;
        }
        let mut views = Vec::with_capacity(caches.len());
        for (cache, (past, present)) in caches.iter().zip(&names.caches) {
            let mut view = cache.view(0, rows)?;
            binding
                .bind_input(past.as_str(), view.tensor())
                .map_err(refused)?;
            binding
                .bind_output(present.as_str(), view.tensor())
                .map_err(refused)?;
            views.push(view);
        }
        binding
            .bind_output(names.logits.as_str(), &mut output)
            .map_err(refused)?;
        let mut options = quiet()?;
        options
            .set(GRAPH, graph(rows, width).to_string())
            .map_err(refused)?;
        let here = match self.place {
            ExecutionDevice::Host => None,
            ExecutionDevice::Cuda(_) => Some(logits(&Allocator::default())?),
        };
        Ok(Step {
            binding,
            options,
            ids,
            mask,
            logits: output,
            here,
            _views: views,
        })
    }
}

impl Step {
    fn run<T>(
        &mut self,
        parts: Parts<'_>,
        place: ExecutionDevice,
        tokens: &[u32],
        lengths: &[usize],
        read: impl FnOnce(&[f32]) -> T,
    ) -> Result<T, PredictError> {
        let rows = tokens.len();
        let width = self.mask.shape().last().map_or(0, |width| *width as usize);
        let ids = tokens.iter().map(|token| i64::from(*token)).collect();
        let mut mask = vec![0; rows * width];
        for (row, length) in mask.chunks_mut(width.max(1)).zip(lengths) {
            row[..=*length].fill(1);
        }
        write(place, &mut self.ids, [rows, 1], ids)?;
        write(place, &mut self.mask, [rows, width], mask)?;
        let ran = parts
            .session
            .run_binding_with_options(&self.binding, &self.options);
        drop(ran.map_err(refused)?);
        let logits = match &mut self.here {
            None => &self.logits,
            Some(here) => {
                self.logits.copy_into(&mut *here).map_err(refused)?;
                here
            }
        };
        last(logits, rows * parts.vocabulary, read)
    }
}

/// Options for runs without a graph, in a session with CUDA graphs.
pub(super) fn without_graph() -> Result<RunOptions<NoSelectedOutputs>, PredictError> {
    let mut options = quiet()?;
    options.set(GRAPH, NO_GRAPH).map_err(refused)?;
    Ok(options)
}

/// Writes numbers into an existing tensor.
fn write(
    place: ExecutionDevice,
    target: &mut Tensor<i64>,
    shape: [usize; 2],
    values: Vec<i64>,
) -> Result<(), PredictError> {
    if place == ExecutionDevice::Host {
        target.extract_tensor_mut().1.copy_from_slice(&values);
        return Ok(());
    }
    let values = Tensor::from_array((shape, values)).map_err(refused)?;
    values.copy_into(target).map_err(refused)
}

/// The width of the mask for rows of up to `longest` tokens before this one. Widths are powers of
/// two, so that a generation passes through few of them.
fn width(longest: usize, context: usize) -> usize {
    let wanted = (longest + 1).next_power_of_two().max(FIRST_WIDTH);
    wanted.min(context)
}

/// The unique number of a graph.
fn graph(rows: usize, width: usize) -> usize {
    // Widths are powers of two, or the maximum context.
    rows * 256
        + 2 * (usize::BITS - width.leading_zeros()) as usize
        + usize::from(!width.is_power_of_two())
}

#[cfg(test)]
mod tests;
