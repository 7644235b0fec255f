//! The memory allocator of ONNX Runtime's own code, which is that of the C library.

#![allow(
    unsafe_code,
    reason = "the standard library does not offer this call of the C library"
)]

/// Returns freed memory to the system. The C library otherwise keeps what was freed between blocks
/// in use.
pub(crate) fn release() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the function has this signature in glibc, has no preconditions, and may be called
        // by any thread.
        let released = unsafe { malloc_trim(0) };
        tracing::debug!(released, "freed memory returned to the system");
    }
}
