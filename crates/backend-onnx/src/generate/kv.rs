//! The KV cache: for each layer one buffer of keys and one of values, `[slots, heads, context,
//! head size]`, which the model reads as its past and writes as its present.
//!
//! The model's attention writes new keys and values into the buffer that it reads the old ones
//! from, so past and present must be one piece of memory; a batch of `n` slots must be a tensor
//! of the buffer's first `n` rows, and a prompt is read into a single row. Safe tensors can be
//! neither shared nor cut like this. This is the one place of the workspace with `unsafe` code.

#![allow(
    unsafe_code,
    reason = "tensors that are views into one buffer; see the module's text"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use ort::AsPointer;
use ort::memory::Allocator;
use ort::value::{Tensor, TensorElementType};
use volley_types::PredictError;

/// A cache line, and the widest vector register.
const ALIGNMENT: usize = 64;

/// One buffer of f32, zeroed, never moved and never handed out as a reference.
#[derive(Debug)]
struct Memory {
    start: NonNull<f32>,
    length: usize,
    layout: Layout,
}

// SAFETY: `Memory` is an allocation and nothing else. It is read and written only by
// `Cache::copy_row` and, through views, by session runs; both need `&mut` of the decoder that
// owns the cache and its bindings, so never at the same time.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives no access to the contents.
unsafe impl Sync for Memory {}

impl Memory {
    /// `None` when there is not so much memory.
    fn new(length: usize) -> Option<Self> {
        let layout = Layout::array::<f32>(length)
            .ok()?
            .align_to(ALIGNMENT)
            .ok()?;
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not zero. Zeroed pages come from the system and take no memory
        // until they are written.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?.cast();
        Some(Self {
            start,
            length,
            layout,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout in `new`, and nobody else frees it.
        unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
    }
}

/// A tensor over rows of a [`Cache`], which it keeps alive.
#[derive(Debug)]
pub(crate) struct View {
    // Dropped before the memory that it points to.
    tensor: Tensor<f32>,
    _memory: Arc<Memory>,
}

impl View {
    /// The tensor, for binding. What it is bound to must be dropped before this view.
    pub(crate) fn tensor(&mut self) -> &mut Tensor<f32> {
        &mut self.tensor
    }
}

/// One layer's keys or values for all slots.
#[derive(Debug)]
pub(crate) struct Cache {
    memory: Arc<Memory>,
    heads: usize,
    context: usize,
    head_size: usize,
}

impl Cache {
    /// A cache of zeroes.
    ///
    /// # Errors
    /// `InvalidInput` when there is not so much memory.
    pub(crate) fn new(
        slots: usize,
        heads: usize,
        context: usize,
        head_size: usize,
    ) -> Result<Self, PredictError> {
        let sizes = [heads, context, head_size];
        let length = sizes
            .iter()
            .try_fold(slots, |length, size| length.checked_mul(*size));
        let memory = length.and_then(Memory::new).ok_or_else(|| {
            PredictError::invalid(
                "there is no memory for the KV cache; lower 'slots' or 'max_context' of this worker",
            )
        })?;
        Ok(Self {
            memory: Arc::new(memory),
            heads,
            context,
            head_size,
        })
    }

    fn row(&self) -> usize {
        self.heads * self.context * self.head_size
    }

    /// A tensor of `rows` rows from row `first` on.
    ///
    /// # Errors
    /// `Internal` when the rows are not in the cache or the tensor cannot be made.
    pub(crate) fn view(&self, first: usize, rows: usize) -> Result<View, PredictError> {
        let failed = |cause: String| PredictError::internal("a view of the KV cache failed", cause);
        let (offset, length) = (first * self.row(), rows * self.row());
        if self.memory.length < offset + length {
            return Err(failed(format!("rows {first} to {}", first + rows)));
        }
        let shape = [rows, self.heads, self.context, self.head_size].map(|dim| dim as i64);
        let allocator = Allocator::default();
        let mut value = std::ptr::null_mut();
        // SAFETY: offset and length were checked against the allocation, which the view keeps
        // alive; the shape's product is the length; all pointers are valid for the call.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                allocator.memory_info().ptr(),
                self.memory.start.as_ptr().add(offset).cast(),
                length * size_of::<f32>(),
                shape.as_ptr(),
                shape.len(),
                TensorElementType::Float32.into(),
                &raw mut value,
            )
        };
        // SAFETY: the status comes from the call above and is checked exactly once.
        unsafe { ort::Error::result_from_status(status) }
            .map_err(|error| failed(error.to_string()))?;
        let value = NonNull::new(value).ok_or_else(|| failed("no tensor".to_owned()))?;
        // SAFETY: `value` is a fresh tensor that nobody else owns. It does not own its data, so
        // the allocator is never asked to free it.
        let tensor: Tensor<f32> = unsafe { Tensor::from_ptr(value, Some(&allocator)) };
        Ok(View {
            tensor,
            _memory: self.memory.clone(),
        })
    }

    /// Copies the first `length` positions of row `from` over row `to`. Takes `&mut self`, as
    /// no run may be under way.
    pub(crate) fn copy_row(&mut self, from: usize, to: usize, length: usize) {
        for (source, target, count) in self.heads_of(from, to, length) {
            // SAFETY: `heads_of` gives ranges inside the allocation that do not overlap; no run
            // is under way.
            unsafe { std::ptr::copy_nonoverlapping(source, target, count) };
        }
    }

    /// Exchanges the first `length` positions of two rows; otherwise as [`Cache::copy_row`].
    pub(crate) fn swap_rows(&mut self, one: usize, other: usize, length: usize) {
        for (one, other, count) in self.heads_of(one, other, length) {
            // SAFETY: as in `copy_row`.
            unsafe { std::ptr::swap_nonoverlapping(one, other, count) };
        }
    }

    /// Where the first `length` positions of each head are, in two rows, and how many values
    /// they have: nothing where the rows are the same or one of them does not exist.
    fn heads_of(
        &self,
        one: usize,
        other: usize,
        length: usize,
    ) -> impl Iterator<Item = (*mut f32, *mut f32, usize)> + use<> {
        let (row, head) = (self.row(), self.context * self.head_size);
        let count = length.min(self.context) * self.head_size;
        let rows = self.memory.length / row;
        let apart = one != other && one < rows && other < rows;
        let start = self.memory.start.as_ptr();
        let heads = if apart { self.heads } else { 0 };
        (0..heads).map(move |index| {
            // SAFETY: both rows exist, and a head of a row lies inside it; positions beyond the
            // context were cut off. Two heads of different rows do not overlap.
            unsafe {
                let one = start.add(one * row + index * head);
                let other = start.add(other * row + index * head);
                (one, other, count)
            }
        })
    }
}
