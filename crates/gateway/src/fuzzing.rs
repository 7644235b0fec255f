//! Entry points to the parsers of untrusted bytes, for the fuzzers in `fuzz/` and the property
//! tests of this crate. No input may cause a panic, a hang, or memory use beyond its size.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use volley_http_edge::axum::body::Body;
use volley_types::arrow_messages::ReadArrow;
use volley_types::{Input, PredictError};

use crate::ws;
use volley_dialect_oip as oip;
use volley_dialect_opensearch::rows;

/// Time limit that no input may reach.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Parses a request of the Open Inference Protocol: JSON that describes tensors, followed by binary
/// tensors. The first byte selects the model; the next two are the length of the JSON
/// (little-endian).
pub fn tensors(bytes: &[u8]) {
    oip::fuzzing::tensors(bytes);
}

/// Reads a body of JSON lines in pieces. The first byte selects the model; the second is the length
/// of the pieces.
pub fn json_lines(bytes: &[u8]) {
    let Some(([which, length], body)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let body = in_pieces(body, *length);
    drain(async { rows::fuzzing::json_lines(body, *which, TIMEOUT).await });
}

/// Reads a body in Arrow's streaming format in pieces, whose messages `reader` parses. The first
/// byte is the length of the pieces.
pub fn arrow(bytes: &[u8], reader: Box<dyn ReadArrow>) {
    let Some((length, body)) = bytes.split_first() else {
        return;
    };
    let body = in_pieces(body, *length);
    drain(async { rows::fuzzing::arrow(body, reader, TIMEOUT).await });
}

/// Parses a message of a WebSocket client.
pub fn message(bytes: &[u8]) {
    ws::fuzz(&String::from_utf8_lossy(bytes));
}

fn in_pieces(body: &[u8], length: u8) -> Body {
    let pieces = body.chunks(usize::from(length).max(1));
    let pieces: Vec<_> = pieces
        .map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)))
        .collect();
    Body::from_stream(stream::iter(pieces))
}

/// Reads all rows of the input.
fn drain(read: impl Future<Output = Result<Input, PredictError>>) {
    #[expect(clippy::expect_used, reason = "a fuzzer that cannot start must stop")]
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O needs nothing of the system");
    runtime.block_on(async {
        if let Ok(input) = read.await {
            let mut batches = input.into_stream();
            while let Some(Ok(batch)) = batches.next().await {
                let _shown = format!("{batch:?}");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_flight::ingress::Decoder;

    use super::*;

    /// Fragments of all formats, so that random combinations resemble real input.
    const WORDS: [&str; 16] = [
        "[{\"name\":\"x\",\"shape\":[1,2],\"datatype\":\"FP32\",\"data\":[1,2]}]",
        "[{\"name\":\"x\",\"shape\":[2],\"datatype\":\"FP32\",\"parameters\":{\"binary_data_size\":8}}]",
        "[{\"name\":\"text\",\"shape\":[1],\"datatype\":\"BYTES\",\"parameters\":{\"binary_data_size\":5}}]",
        "[{\"name\":\"x\",\"shape\":[-1,9999999999],\"datatype\":\"BF16\",\"data\":[[1]]}]",
        "\u{1}\0\0\0a",
        "{\"prompt\":\"a\"}\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\r\n",
        "{\"parameters\":{\"a\":1}}\n",
        "{\"x\":[1,2.5]}\n",
        "{\"text\":\"a\"}",
        "{\"id\":\"1\",\"rows\":[{\"prompt\":\"a\"}],\"parameters\":{}}",
        "{\"cancel\":\"1\"}",
        "\n",
        "\u{ff}\u{ff}\u{ff}\u{ff}",
        "1e999",
        "{\"x\":",
    ];

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            4 => (0..WORDS.len()).prop_map(|which| WORDS[which].as_bytes().to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..6),
        ];
        let head = (any::<u8>(), 0..160_u8, Just(0_u8));
        let words = proptest::collection::vec(word, 0..5);
        (head, words).prop_map(|((which, length, high), words)| {
            let mut all = vec![which, length, high];
            all.extend(words.concat());
            all
        })
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(bytes in bytes()) {
            tensors(&bytes);
            json_lines(&bytes);
            message(&bytes[3..]);
            arrow(&bytes[1..], Box::new(Decoder::default()));
        }
    }
}
