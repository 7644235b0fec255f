//! Feeds any bytes to the Flight ingress as a sequence of messages: no input may panic, hang or
//! grow the process.
//!
//! Each message is a u16 header length, a u16 body length (both little-endian), the header and
//! the body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use volley_flight::ingress::{Decoder, decode_all, message};

/// More messages than this only repeat themselves.
const MAX_MESSAGES: usize = 16;

// Arrow's reader may panic where the ingress catches it; only what escapes is a finding, so the
// hook that aborts on any panic goes.
fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    let mut rest = bytes;
    let mut messages = Vec::new();
    while messages.len() < MAX_MESSAGES
        && let Some((lengths, tail)) = rest.split_first_chunk::<4>()
    {
        let [a, b, c, d] = *lengths;
        let (header, tail) = cut(tail, u16::from_le_bytes([a, b]));
        let (body, tail) = cut(tail, u16::from_le_bytes([c, d]));
        messages.push(message(header.to_vec(), body.to_vec()));
        rest = tail;
    }
    // As answers come to those who have columns left out; the bytes say which.
    let mut decoder = Decoder::default().with_columns_left_out();
    for message in &messages {
        let mut message = message.clone();
        if let Some((metadata, body)) = message.data_body.split_first_chunk::<8>() {
            message.app_metadata = [&b"col"[..], metadata].concat().into();
            message.data_body = body.to_vec().into();
        }
        decoder.decode(&message).ok();
    }
    if let Ok(batches) = decode_all(&messages) {
        for batch in batches {
            let _shown = format!("{batch:?}");
        }
    }
});

fn cut(bytes: &[u8], length: u16) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.len().min(length.into()))
}
