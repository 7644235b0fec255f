//! Any bytes as tensors of the Open Inference Protocol, in JSON and in binary.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_gateway::fuzzing::tensors(bytes));
