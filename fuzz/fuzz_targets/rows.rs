//! Any bytes as vectors or scores.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_backend_remote::fuzzing::rows(bytes));
