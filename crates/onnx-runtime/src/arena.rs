//! One bounded arena for the runs of all CPU sessions of a process.
//!
//! A graph may create tensors of any size from a few numbers, and a session's own arena grows until
//! the machine's memory is exhausted. With a memory limit, all sessions share one arena that cannot
//! grow beyond the limit. A run that needs more fails, and its allocations are freed. Weights are
//! outside the arena; they are counted when a model is loaded.

#![allow(
    unsafe_code,
    reason = "the library's own interface offers no arena; see the module's text"
)]

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use ort::AsPointer;
use ort::environment::Environment;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use volley_types::PredictError;

/// The arena option for its maximum size in bytes.
const MOST: &CStr = c"max_mem";

static LIMIT: Mutex<Option<u64>> = Mutex::new(None);

/// Registers a shared arena of at most `bytes` bytes for sessions that use the environment's
/// allocators. Only the first call of a process takes effect.
///
/// # Errors
/// `Internal` when the library cannot create the arena.
pub(crate) fn limit(environment: &Environment, bytes: u64) -> Result<(), PredictError> {
    let mut set = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    if set.is_some() {
        return Ok(());
    }
    register(environment, usize::try_from(bytes).unwrap_or(usize::MAX)).map_err(|error| {
        PredictError::internal(
            "the memory limit of runs could not be set",
            error.to_string(),
        )
    })?;
    tracing::info!(bytes, "shared run arena created");
    *set = Some(bytes);
    Ok(())
}

fn register(environment: &Environment, most: usize) -> ort::Result<()> {
    let host = MemoryInfo::new(
        AllocationDevice::CPU,
        0,
        AllocatorType::Arena,
        MemoryType::Default,
    )?;
    let (keys, values) = ([MOST.as_ptr()], [most]);
    let mut arena = std::ptr::null_mut();
    // SAFETY: there are as many keys as values, all of them outlive the call, and `arena` is a
    // valid place for the result.
    let status = unsafe {
        (ort::api().CreateArenaCfgV2)(keys.as_ptr(), values.as_ptr(), keys.len(), &raw mut arena)
    };
    // SAFETY: the status comes from the call above and is checked exactly once.
    unsafe { ort::Error::result_from_status(status) }?;
    // SAFETY: the environment, the memory info and the configuration of the arena are live. The
    // library locks the environment itself, and copies what it keeps of the configuration.
    let status = unsafe {
        (ort::api().CreateAndRegisterAllocator)(environment.ptr().cast_mut(), host.ptr(), arena)
    };
    // SAFETY: this function owns the configuration, and nothing uses it after this call.
    unsafe { (ort::api().ReleaseArenaCfg)(arena) };
    // SAFETY: the status comes from the call above and is checked exactly once.
    unsafe { ort::Error::result_from_status(status) }
}
