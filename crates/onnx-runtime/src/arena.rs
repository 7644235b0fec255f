//! One arena for the runs of all sessions on the CPU, with an end.
//!
//! A graph may make tensors of any size from a few numbers, and a session's own arena takes whatever
//! the machine has. Where a worker has a budget, its sessions share one arena that may not grow over
//! it: a run that needs more ends with an error, and what it had taken is free again. Weights are
//! not in it; they are counted as a model is loaded.

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

/// The largest size of the arena.
const MOST: &CStr = c"max_mem";

static LIMIT: Mutex<Option<u64>> = Mutex::new(None);

/// Has sessions that ask for the environment's allocators share an arena of at most so many bytes.
/// The first limit of a process stays.
///
/// # Errors
/// `Internal` when the library has no such arena.
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
    // SAFETY: there are as many keys as values, all of them live through the call, and `arena` is
    // where the library may write.
    let status = unsafe {
        (ort::api().CreateArenaCfgV2)(keys.as_ptr(), values.as_ptr(), keys.len(), &raw mut arena)
    };
    // SAFETY: the status comes from the call above and is checked exactly once.
    unsafe { ort::Error::result_from_status(status) }?;
    // SAFETY: the environment, the place and the arena's configuration are live; the library locks
    // the environment itself, and copies what it keeps of the configuration.
    let status = unsafe {
        (ort::api().CreateAndRegisterAllocator)(environment.ptr().cast_mut(), host.ptr(), arena)
    };
    // SAFETY: the configuration is ours, and nothing uses it any more.
    unsafe { (ort::api().ReleaseArenaCfg)(arena) };
    // SAFETY: the status comes from the call above and is checked exactly once.
    unsafe { ort::Error::result_from_status(status) }
}
