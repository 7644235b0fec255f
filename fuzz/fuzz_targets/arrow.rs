//! Any bytes as a body of Arrow's streaming format. Arrow's reader may panic where the ingress
//! catches it; only what escapes is a finding, so the hook that aborts on any panic goes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use volley_flight::ingress::Decoder;

fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    volley_gateway::fuzzing::arrow(bytes, Box::new(Decoder::default()));
});
