//! Any bytes as an answer of any provider, whole and in pieces.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_backend_remote::fuzzing::answer(bytes));
