//! The KV cache: for each layer one buffer of keys and one of values, of shape `[slots, heads,
//! context, head size]`, which the model reads as its past and writes as its present.
//!
//! The model's attention writes new keys and values into the buffer from which it reads the old
//! ones, so past and present must share memory. A batch of `n` slots must be a tensor of the
//! buffer's first `n` rows, and a prompt is read into a single row. The binding's safe tensors can
//! be neither shared nor sliced like this, so this module uses `unsafe` code.
//!
//! The buffer is in the memory of the session's device: the host's, or a GPU's. Only the model and
//! copies on the device access a buffer on a GPU.

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

/// The shape and type of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Rows of the cache: the maximum number of concurrent sequences.
    pub slots: usize,
    /// Number of key and value heads.
    pub heads: usize,
    /// Positions of a slot, in tokens.
    pub context: usize,
    /// Elements of a head.
    pub head_size: usize,
    /// A 16-bit or 32-bit floating-point type.
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

    /// Bytes of one slot; `None` on overflow.
    fn row_bytes(&self) -> Option<usize> {
        let sizes = [self.context, self.head_size, self.element_bytes()];
        let mut sizes = sizes.iter();
        sizes.try_fold(self.heads, |bytes, size| bytes.checked_mul(*size))
    }
}

/// One buffer, never moved and never borrowed as a slice.
#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// How the memory is freed.
#[derive(Debug)]
enum Owner {
    Host(Layout),
    // Dropping the tensor frees the memory.
    Device { _tensor: DynTensor },
}

// SAFETY: `Memory` is an allocation and nothing else. Only `Cache::copy_row`, `swap_rows` and,
// through views, session runs access it. All of them need `&mut` of the decoder that owns the cache
// and its bindings, so never at the same time.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared reference gives no access to the contents.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of the host; `None` when the allocation fails.
    fn host(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not zero. The system provides zeroed pages, which take no memory
        // until they are written.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self {
            start,
            bytes,
            owner: Owner::Host(layout),
        })
    }

    /// Memory of a GPU, from the session's own allocator; `None` when the allocation fails.
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
            // SAFETY: `start` was allocated with this layout in `host`, and is freed only here.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// A tensor over rows of a [`Cache`]; it keeps the cache's memory alive.
#[derive(Debug)]
pub struct View {
    // Dropped before the memory that it points to.
    tensor: DynTensor,
    _memory: Arc<Memory>,
}

impl View {
    /// The tensor, for binding. The binding must be dropped before this view.
    pub fn tensor(&mut self) -> &mut DynTensor {
        &mut self.tensor
    }
}

/// The keys or values of one layer for all slots.
#[derive(Debug)]
pub struct Cache {
    memory: Arc<Memory>,
    form: KvShape,
    row_bytes: usize,
    place: ExecutionDevice,
}

impl Cache {
    /// Allocates a cache in the memory of `place`, the device of `session`.
    ///
    /// # Errors
    /// `InvalidInput` when the memory cannot be allocated.
    pub fn new(
        session: &Session,
        place: ExecutionDevice,
        form: KvShape,
    ) -> Result<Self, PredictError> {
        // On a GPU, swapping two rows needs a spare row.
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

    /// A tensor of shape `[rows, heads, context, head size]`, from row `first` on.
    ///
    /// # Errors
    /// `Internal` when the rows are not in the cache or the tensor cannot be created.
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
        // SAFETY: offset and size were checked against the allocation, which the view keeps alive
        // and which is in the memory of `info`. The product of the shape and the element size is
        // the size. All pointers are valid for the call.
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
        // SAFETY: `value` is a new tensor without another owner. It does not own its data, so the
        // allocator never frees it.
        let tensor: DynTensor = unsafe { DynTensor::from_ptr(value, Some(&host)) };
        Ok(View {
            tensor,
            _memory: self.memory.clone(),
        })
    }

    /// Copies the first `length` positions of row `from` over row `to`; on a GPU, the whole row.
    /// Takes `&mut self`, because no run may be in progress.
    ///
    /// # Errors
    /// `Internal` when a copy on a GPU fails. On the host, never.
    pub fn copy_row(&mut self, from: usize, to: usize, length: usize) -> Result<(), PredictError> {
        if self.place != ExecutionDevice::Host {
            return self.copy_on_device(from, to);
        }
        for (source, target, bytes) in self.heads_of(from, to, length) {
            // SAFETY: `heads_of` returns ranges inside the allocation that do not overlap; no run
            // is in progress.
            unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
        }
        Ok(())
    }

    /// Swaps the first `length` positions of two rows; on a GPU, the whole rows.
    ///
    /// # Errors
    /// As [`Cache::copy_row`]. After an error the contents of both rows are undefined.
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

    /// Copies a whole row on the device.
    fn copy_on_device(&mut self, from: usize, to: usize) -> Result<(), PredictError> {
        if from == to {
            return Ok(());
        }
        let mut target = self.view(to, 1)?;
        let source = self.view(from, 1)?;
        source.tensor.copy_into(target.tensor()).map_err(refused)
    }

    /// Pointers to the first `length` positions of each head in two rows, and their size in bytes.
    /// Empty if the rows are the same or one of them does not exist.
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
            // SAFETY: both rows exist, and each head lies inside its row; `length` is limited to
            // the context. Heads of different rows do not overlap.
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
