//! Any bytes cut into events: SSE, JSON lines, AWS's frames.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_backend_remote::fuzzing::events(bytes));
