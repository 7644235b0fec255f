//! Any text as a connector's template and path.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_backend_remote::fuzzing::connector(bytes));
