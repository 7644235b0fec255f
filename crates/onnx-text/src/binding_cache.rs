//! LRU cache of `IoBinding`s by shape. Recurring shapes reuse fixed input and output buffers, so a
//! run neither allocates nor copies tensors.

use std::collections::VecDeque;

use volley_onnx_runtime::ort::memory::Allocator;
use volley_onnx_runtime::ort::session::{IoBinding, Session};
use volley_onnx_runtime::ort::value::{DynTensor, Tensor, TensorElementType};
use volley_types::PredictError;

use super::padding::{GraphInput, Padding};
use super::texts::Tokens;
use volley_onnx_runtime::failure::internal;

/// Maximum number of cached shapes.
const SHAPES: usize = 32;
/// Maximum bytes of all cached tensors.
const BYTES: usize = 16 << 20;
/// Number of recent shapes that are remembered; a shape that recurs among them is cached.
const SEEN: usize = 64;

/// Number of rows, and of tokens per row including padding.
pub(super) type BatchShape = [usize; 2];

/// The bound output.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) name: String,
    pub(super) element: TensorElementType,
    /// Whether there is one vector for each row instead of one for each token.
    pub(super) pooled: bool,
    pub(super) width: usize,
}

impl Output {
    fn shape(&self, [rows, longest]: BatchShape) -> Vec<usize> {
        match self.pooled {
            true => vec![rows, self.width],
            false => vec![rows, longest, self.width],
        }
    }

    /// Bytes of this output and of all `inputs`; an upper bound for narrow types.
    fn bytes(&self, shape: BatchShape, inputs: usize) -> usize {
        let sizes = self.shape(shape).into_iter();
        let numbers = sizes.fold(1_usize, usize::saturating_mul);
        let ids = shape.into_iter().fold(inputs, usize::saturating_mul);
        numbers
            .saturating_mul(4)
            .saturating_add(ids.saturating_mul(8))
    }
}

/// The cached bindings of one session on the host.
#[derive(Debug, Default)]
pub(super) struct BindingCache {
    // Ordered by last use, the most recent last.
    bound: Vec<CachedBinding>,
    seen: VecDeque<BatchShape>,
    /// The graph returns another shape than it declares.
    given_up: bool,
}

/// The tensors of one shape, and their binding.
#[derive(Debug)]
pub(super) struct CachedBinding {
    // Dropped before the tensors.
    pub(super) binding: IoBinding,
    inputs: Vec<Ids>,
    pub(super) output: DynTensor,
    shape: BatchShape,
    bytes: usize,
}

/// An input tensor in the integer type of the graph.
#[derive(Debug)]
enum Ids {
    Wide(Tensor<i64>),
    Narrow(Tensor<i32>),
}

impl BindingCache {
    /// Returns the binding of `shape`, and creates it if the shape recurs; `None` if the shape is
    /// new or too large.
    ///
    /// # Errors
    /// `Internal` when the binding cannot be created.
    pub(super) fn find(
        &mut self,
        session: &Session,
        inputs: &[GraphInput],
        output: &Output,
        shape: BatchShape,
    ) -> Result<Option<&mut CachedBinding>, PredictError> {
        let bytes = output.bytes(shape, inputs.len());
        if self.given_up || BYTES < bytes {
            return Ok(None);
        }
        if let Some(at) = self.bound.iter().position(|bound| bound.shape == shape) {
            self.bound[at..].rotate_left(1);
            return Ok(self.bound.last_mut());
        }
        if !self.comes_again(shape) {
            return Ok(None);
        }
        let held = |bound: &[CachedBinding]| bound.iter().map(|bound| bound.bytes).sum::<usize>();
        while SHAPES <= self.bound.len() || BYTES < held(&self.bound) + bytes {
            self.bound.remove(0);
        }
        let bound = CachedBinding::new(session, inputs, output, shape, bytes);
        let bound = bound.map_err(|error| {
            internal("the model's inputs could not be bound", error.to_string())
        })?;
        self.bound.push(bound);
        Ok(self.bound.last_mut())
    }

    /// Whether `shape` occurred recently. Remembers it otherwise.
    fn comes_again(&mut self, shape: BatchShape) -> bool {
        if let Some(at) = self.seen.iter().position(|seen| *seen == shape) {
            self.seen.remove(at);
            return true;
        }
        if SEEN <= self.seen.len() {
            self.seen.pop_front();
        }
        self.seen.push_back(shape);
        false
    }

    /// Disables the cache.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
        self.bound.clear();
    }
}

impl CachedBinding {
    fn new(
        session: &Session,
        inputs: &[GraphInput],
        output: &Output,
        shape: BatchShape,
        bytes: usize,
    ) -> volley_onnx_runtime::ort::Result<Self> {
        let host = Allocator::default();
        let mut binding = session.create_binding()?;
        let mut tensors = Vec::with_capacity(inputs.len());
        for input in inputs {
            tensors.push(if input.narrow {
                let ids = Tensor::<i32>::new(&host, shape)?;
                binding.bind_input(input.name.as_str(), &ids)?;
                Ids::Narrow(ids)
            } else {
                let ids = Tensor::<i64>::new(&host, shape)?;
                binding.bind_input(input.name.as_str(), &ids)?;
                Ids::Wide(ids)
            });
        }
        let mut numbers = DynTensor::new(&host, output.element, output.shape(shape))?;
        binding.bind_output(output.name.as_str(), &mut numbers)?;
        Ok(Self {
            binding,
            inputs: tensors,
            output: numbers,
            shape,
            bytes,
        })
    }

    /// Writes `rows` into the input tensors.
    pub(super) fn fill(&mut self, padding: Padding, inputs: &[GraphInput], rows: &[&Tokens]) {
        for (input, ids) in inputs.iter().zip(&mut self.inputs) {
            match ids {
                Ids::Wide(ids) => {
                    padding.fill(rows, input.kind, i64::from, ids.extract_tensor_mut().1);
                }
                Ids::Narrow(ids) => {
                    padding.fill(
                        rows,
                        input.kind,
                        u32::cast_signed,
                        ids.extract_tensor_mut().1,
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_kept_when_it_comes_again_soon() {
        let mut kept = BindingCache::default();
        assert!(!kept.comes_again([1, 8]));
        assert!(!kept.comes_again([8, 1]));
        assert!(kept.comes_again([1, 8]));
        for rows in 2..2 + SEEN {
            assert!(!kept.comes_again([rows, 9]));
        }
        assert!(!kept.comes_again([8, 1]), "it came too long ago");
        assert!(kept.seen.len() <= SEEN);
    }

    #[test]
    fn what_is_too_large_for_all_is_counted_so() {
        let output = |pooled| Output {
            name: "logits".to_owned(),
            element: TensorElementType::Float32,
            pooled,
            width: 30_000,
        };
        assert_eq!(output(true).bytes([2, 8], 3), 2 * 30_000 * 4 + 3 * 16 * 8);
        assert!(BYTES < output(false).bytes([8, 128], 3));
        assert_eq!(output(false).bytes([usize::MAX, 2], 3), usize::MAX);
    }
}
