//! Any bytes as a body of JSON lines.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_gateway::fuzzing::json_lines(bytes));
