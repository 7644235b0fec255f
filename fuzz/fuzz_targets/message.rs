//! Any text as a message of a WebSocket's client.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volley_gateway::fuzzing::message(bytes));
