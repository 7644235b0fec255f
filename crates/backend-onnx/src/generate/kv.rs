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

use std::ptr::NonNull;
use std::sync::Arc;

use ort::AsPointer;
use ort::memory::Allocator;
use ort::value::{Tensor, TensorElementType};
use volley_types::PredictError;

/// One buffer of f32, zeroed, never moved and never handed out as a reference.
#[derive(Debug)]
struct Memory {
    start: NonNull<f32>,
    length: usize,
}

// SAFETY: `Memory` is an allocation and nothing else. It is read and written only by
// `Cache::copy_row` and, through views, by session runs; both need `&mut` of the decoder that
// owns the cache and its bindings, so never at the same time.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives no access to the contents.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(length: usize) -> Self {
        // Zeroed pages come from the system and take no memory until they are written.
        let start = Box::into_raw(vec![0_f32; length].into_boxed_slice()).cast::<f32>();
        Self {
            start: NonNull::new(start).expect("a box is not null"),
            length,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.length);
        // SAFETY: `start` and `length` come from the box in `new`, which nobody else frees.
        drop(unsafe { Box::from_raw(slice) });
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
    pub(crate) fn new(slots: usize, heads: usize, context: usize, head_size: usize) -> Self {
        let memory = Arc::new(Memory::new(slots * heads * context * head_size));
        Self {
            memory,
            heads,
            context,
            head_size,
        }
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
        let (row, head) = (self.row(), self.context * self.head_size);
        let count = length.min(self.context) * self.head_size;
        let rows = self.memory.length / row;
        if from == to || rows <= from || rows <= to {
            return;
        }
        for index in 0..self.heads {
            // SAFETY: both ranges lie inside the allocation (rows and count were checked) and do
            // not overlap, as they are in different rows; no run is under way.
            unsafe {
                let source = self.memory.start.as_ptr().add(from * row + index * head);
                let target = self.memory.start.as_ptr().add(to * row + index * head);
                std::ptr::copy_nonoverlapping(source, target, count);
            }
        }
    }
}
