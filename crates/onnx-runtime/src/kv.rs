//! The KV cache: for each layer one buffer of keys and one of values, `[slots, heads, context,
//! head size]`, which the model reads as its past and writes as its present.
//!
//! The model's attention writes new keys and values into the buffer that it reads the old ones
//! from, so past and present must be one piece of memory; a batch of `n` slots must be a tensor
//! of the buffer's first `n` rows, and a prompt is read into a single row. Safe tensors can be
//! neither shared nor cut like this. Only this, the arena of runs and `tensors::strings` have
//! `unsafe` code.
//!
//! The buffer is where the model runs: the host's memory, or a GPU's, where nothing but the model
//! and copies on the device ever touch it.

#![allow(
    unsafe_code,
    reason = "tensors that are views into one buffer; see the module's text"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use ort::AsPointer;
use ort::memory::Allocator;
use ort::session::Session;
use ort::value::{DynTensor, TensorElementType};
use volley_types::PredictError;

use crate::session::ExecutionDevice;

/// A cache line, and the widest vector register.
const ALIGNMENT: usize = 64;

/// What a cache is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Rows of the cache: sequences at a time.
    pub slots: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Positions of a slot.
    pub context: usize,
    /// Numbers of a head.
    pub head_size: usize,
    /// A type of floating-point numbers of 16 or 32 bits.
    pub element: TensorElementType,
}

impl KvShape {
    fn element_bytes(&self) -> usize {
        if self.element == TensorElementType::Float32 {
            4
        } else {
            2
        }
    }

    /// Bytes of one slot.
    fn row_bytes(&self) -> Option<usize> {
        let sizes = [self.context, self.head_size, self.element_bytes()];
        let mut sizes = sizes.iter();
        sizes.try_fold(self.heads, |bytes, size| bytes.checked_mul(*size))
    }
}

/// One buffer, never moved and never handed out as a reference.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// Who gives the memory back.
#[derive(Debug)]
enum Owner {
    Host(Layout),
    // The tensor does, when it is dropped.
    Device { _tensor: DynTensor },
}

// SAFETY: `Memory` is an allocation and nothing else. It is read and written only by
// `Cache::copy_row` and its like and, through views, by session runs; all need `&mut` of the
// decoder that owns the cache and its bindings, so never at the same time.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives no access to the contents.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of the host; `None` when there is not so much.
    fn host(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not zero. Zeroed pages come from the system and take no memory
        // until they are written.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self {
            start,
            bytes,
            owner: Owner::Host(layout),
        })
    }

    /// Memory of a GPU, from the session's own allocator; `None` when there is not so much.
    fn device(session: &Session, place: ExecutionDevice, bytes: usize) -> Option<Self> {
        let allocator = Allocator::new(session, place.memory().ok()?).ok()?;
        let size = i64::try_from(bytes).ok()?;
        let mut tensor = DynTensor::new(&allocator, TensorElementType::Uint8, [size]).ok()?;
        Some(Self {
            start: NonNull::new(tensor.data_ptr_mut().cast())?,
            bytes,
            owner: Owner::Device { _tensor: tensor },
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Host(layout) = self.owner {
            // SAFETY: `start` was allocated with this layout in `host`, and nobody else frees it.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// A tensor over rows of a [`Cache`], which it keeps alive.
#[derive(Debug)]
pub struct View {
    // Dropped before the memory that it points to.
    tensor: DynTensor,
    _memory: Arc<Memory>,
}

impl View {
    /// The tensor, for binding. What it is bound to must be dropped before this view.
    pub fn tensor(&mut self) -> &mut DynTensor {
        &mut self.tensor
    }
}

/// One layer's keys or values for all slots.
#[derive(Debug)]
pub struct Cache {
    memory: Arc<Memory>,
    form: KvShape,
    row_bytes: usize,
    place: ExecutionDevice,
}

impl Cache {
    /// A cache in the memory that `session` runs on.
    ///
    /// # Errors
    /// `InvalidInput` when there is not so much memory.
    pub fn new(
        session: &Session,
        place: ExecutionDevice,
        form: KvShape,
    ) -> Result<Self, PredictError> {
        // On a GPU an exchange of two slots goes through one more.
        let rows = form.slots + usize::from(place != ExecutionDevice::Host);
        let row_bytes = form.row_bytes();
        let bytes = row_bytes.and_then(|row| row.checked_mul(rows));
        let memory = bytes.and_then(|bytes| match place {
            ExecutionDevice::Host => Memory::host(bytes),
            ExecutionDevice::Cuda(_) => Memory::device(session, place, bytes),
        });
        let (Some(memory), Some(row_bytes)) = (memory, row_bytes) else {
            return Err(PredictError::invalid(
                "there is no memory for the KV cache; lower 'slots' or 'max_context' of this worker",
            ));
        };
        Ok(Self {
            memory: Arc::new(memory),
            form,
            row_bytes,
            place,
        })
    }

    /// A tensor of `rows` rows from row `first` on.
    ///
    /// # Errors
    /// `Internal` when the rows are not in the cache or the tensor cannot be made.
    pub fn view(&self, first: usize, rows: usize) -> Result<View, PredictError> {
        let (offset, bytes) = (first * self.row_bytes, rows * self.row_bytes);
        if self.memory.bytes < offset + bytes {
            return Err(failed(&format!("rows {first} to {}", first + rows)));
        }
        let form = &self.form;
        let shape = [rows, form.heads, form.context, form.head_size].map(|dim| dim as i64);
        let host = Allocator::default();
        let info = self.place.memory().map_err(refused)?;
        let mut value = std::ptr::null_mut();
        // SAFETY: offset and size were checked against the allocation, which the view keeps
        // alive and which is where `info` says; the shape's product times the element's size is
        // the size; all pointers are valid for the call.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                info.ptr(),
                self.memory.start.as_ptr().add(offset).cast(),
                bytes,
                shape.as_ptr(),
                shape.len(),
                form.element.into(),
                &raw mut value,
            )
        };
        // SAFETY: the status comes from the call above and is checked exactly once.
        unsafe { ort::Error::result_from_status(status) }.map_err(refused)?;
        let value = NonNull::new(value).ok_or_else(|| failed("no tensor"))?;
        // SAFETY: `value` is a fresh tensor that nobody else owns. It does not own its data, so
        // the allocator is never asked to free it.
        let tensor: DynTensor = unsafe { DynTensor::from_ptr(value, Some(&host)) };
        Ok(View {
            tensor,
            _memory: self.memory.clone(),
        })
    }

    /// Copies the first `length` positions of row `from` over row `to`. Takes `&mut self`, as
    /// no run may be under way.
    ///
    /// # Errors
    /// `Internal` when a GPU cannot copy. The host always can.
    pub fn copy_row(&mut self, from: usize, to: usize, length: usize) -> Result<(), PredictError> {
        if self.place != ExecutionDevice::Host {
            return self.copy_on_device(from, to);
        }
        for (source, target, bytes) in self.heads_of(from, to, length) {
            // SAFETY: `heads_of` gives ranges inside the allocation that do not overlap; no run
            // is under way.
            unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
        }
        Ok(())
    }

    /// Exchanges the first `length` positions of two rows; otherwise as [`Cache::copy_row`].
    ///
    /// # Errors
    /// As there. What the rows hold is not known then.
    pub fn swap_rows(
        &mut self,
        one: usize,
        other: usize,
        length: usize,
    ) -> Result<(), PredictError> {
        if self.place != ExecutionDevice::Host {
            let spare = self.form.slots;
            self.copy_on_device(one, spare)?;
            self.copy_on_device(other, one)?;
            return self.copy_on_device(spare, other);
        }
        for (one, other, bytes) in self.heads_of(one, other, length) {
            // SAFETY: as in `copy_row`.
            unsafe { std::ptr::swap_nonoverlapping(one, other, bytes) };
        }
        Ok(())
    }

    /// Copies a whole row by the device itself.
    fn copy_on_device(&mut self, from: usize, to: usize) -> Result<(), PredictError> {
        if from == to {
            return Ok(());
        }
        let mut target = self.view(to, 1)?;
        let source = self.view(from, 1)?;
        source.tensor.copy_into(target.tensor()).map_err(refused)
    }

    /// Where the first `length` positions of each head are, in two rows, and how many bytes
    /// they have: nothing where the rows are the same or one of them does not exist.
    fn heads_of(
        &self,
        one: usize,
        other: usize,
        length: usize,
    ) -> impl Iterator<Item = (*mut u8, *mut u8, usize)> + use<> {
        let form = &self.form;
        let position = form.head_size * form.element_bytes();
        let (row, head) = (self.row_bytes, form.context * position);
        let bytes = length.min(form.context) * position;
        let rows = self.memory.bytes / row;
        let apart = one != other && one < rows && other < rows;
        let start = self.memory.start.as_ptr();
        let heads = if apart { form.heads } else { 0 };
        (0..heads).map(move |index| {
            // SAFETY: both rows exist, and a head of a row lies inside it; positions beyond the
            // context were cut off. Two heads of different rows do not overlap.
            unsafe {
                let one = start.add(one * row + index * head);
                let other = start.add(other * row + index * head);
                (one, other, bytes)
            }
        })
    }
}

fn refused(error: ort::Error) -> PredictError {
    failed(&error.to_string())
}

fn failed(cause: &str) -> PredictError {
    PredictError::internal("the KV cache failed", cause.to_owned())
}
