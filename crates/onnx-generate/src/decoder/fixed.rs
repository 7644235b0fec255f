//! Decode steps of fixed shapes at fixed addresses, as CUDA graphs need them: a step that has been
//! captured is launched as a whole, without the driver's work for each kernel.
//!
//! Inputs and outputs of a step are tensors that live as long as the decoder. The number of rows is
//! that of the generations, since a row more would write into a slot that others may take over. The
//! mask is as wide as the longest row may grow within its bucket; what is behind a row's ones counts
//! as nothing, as it does between rows of different lengths. So there is one graph for each number
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

/// The narrowest mask.
const FIRST_WIDTH: usize = 256;

/// What all steps have in common.
pub(super) struct FixedSteps {
    steps: BTreeMap<(usize, usize), Step>,
    place: ExecutionDevice,
    context: usize,
    logits: TensorElementType,
    /// Whether there is a dimension of positions among those of the logits.
    positions: bool,
}

/// One step with what it is bound to.
struct Step {
    // Dropped before the tensors.
    binding: IoBinding,
    options: RunOptions<NoSelectedOutputs>,
    ids: Tensor<i64>,
    mask: Tensor<i64>,
    logits: DynTensor,
    /// Where the logits are read, if not where the model writes them.
    here: Option<DynTensor>,
    _views: Vec<View>,
}

/// What a decoder's steps run on.
pub(super) struct Parts<'d> {
    pub(super) session: &'d mut Session,
    pub(super) caches: &'d [Cache],
    pub(super) names: &'d Names,
    pub(super) vocabulary: usize,
}

impl FixedSteps {
    /// Steps at `place`; `None` where the logits have another form than a decoder's, or the model
    /// wants positions.
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

    /// One token in each of the first `tokens.len()` slots, as
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

/// Options for runs that are no graph, in a session whose runs may be.
pub(super) fn without_graph() -> Result<RunOptions<NoSelectedOutputs>, PredictError> {
    let mut options = quiet()?;
    options.set(GRAPH, NO_GRAPH).map_err(refused)?;
    Ok(options)
}

/// Writes numbers into a tensor where it is.
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

/// The width of the mask for rows of up to `longest` tokens before this one: powers of two, so that
/// a generation comes through few of them.
fn width(longest: usize, context: usize) -> usize {
    let wanted = (longest + 1).next_power_of_two().max(FIRST_WIDTH);
    wanted.min(context)
}

/// The number of a graph, which no other has.
fn graph(rows: usize, width: usize) -> usize {
    // Widths are powers of two, or the context.
    rows * 256
        + 2 * (usize::BITS - width.leading_zeros()) as usize
        + usize::from(!width.is_power_of_two())
}

#[cfg(test)]
mod tests;
