//! Entry points for the fuzzers in `fuzz/` and for the property tests of this crate: the parsers of
//! upstream answers and of operators' texts. No input may panic, hang, or use memory out of
//! proportion to its size.

use bytes::Bytes;
use serde_json::Value;
use volley_provider_kit::framing::Framing;
use volley_provider_kit::paths::Path;
use volley_provider_kit::rows::post_process::PostProcess;
use volley_provider_kit::template;
use volley_providers::Provider;
use volley_remote_http::sse::Parser;
use volley_types::Citation;

use crate::answer::UpstreamAnswer;

/// Reads an answer of a provider, whole and in chunks. The first byte selects the provider, the
/// second the length of the chunks.
///
/// # Panics
/// If the results differ.
pub fn answer(bytes: &[u8]) {
    let Some(([which, length], body)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let mut providers = volley_providers::PROVIDERS.to_vec();
    // By name, as `scripts/fuzz.sh` numbers the transcript folders.
    providers.sort_unstable_by_key(|provider| provider.name);
    let provider = providers[usize::from(*which) % providers.len()];
    let length = usize::from(*length).max(1);
    let whole = play(provider, std::iter::once(body));
    let pieces = play(provider, body.chunks(length));
    assert_eq!(pieces, whole, "{provider:?}");
}

/// Text, citations, whether the end was read, and the failure.
type ParsedAnswer = (String, Vec<Citation>, bool, Option<&'static str>);

fn play<'a>(provider: &'static Provider, pieces: impl Iterator<Item = &'a [u8]>) -> ParsedAnswer {
    let mut answer = UpstreamAnswer::new(provider, 0);
    let (mut text, mut citations) = (String::new(), Vec::new());
    let pieces = pieces.map(|piece| Some(Bytes::copy_from_slice(piece)));
    for piece in pieces.chain([None]) {
        for delta in answer.read(piece, str::to_owned).deltas {
            text.push_str(&delta.text.unwrap_or_default());
            citations.extend(delta.citations.into_iter().flatten());
        }
        let failure = answer.take_failure();
        if failure.is_some() || answer.has_ended() {
            let failure = failure.map(|failure| failure.code.as_str());
            return (text, citations, answer.has_ended(), failure);
        }
    }
    (text, citations, false, None)
}

/// Splits a body into events, whole and in chunks. The first byte selects the framing, the second
/// the length of the chunks.
///
/// # Panics
/// If the results differ.
pub fn events(bytes: &[u8]) {
    let Some(([which, length], body)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let framing = [Framing::Sse, Framing::Lines, Framing::Frames][usize::from(*which) % 3];
    let length = usize::from(*length).max(1);
    let whole = cut(framing, std::iter::once(body));
    let pieces = cut(framing, body.chunks(length));
    assert_eq!(pieces, whole, "{framing:?}");
}

fn cut<'a>(framing: Framing, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, bool) {
    let (mut parser, mut events) = (Parser::new(framing), Vec::new());
    let mut well = true;
    for piece in pieces {
        well = parser
            .push(Bytes::copy_from_slice(piece), &mut events)
            .is_ok();
        if !well {
            break;
        }
    }
    well = well && parser.finish(&mut events).is_ok();
    let texts = events.iter().map_while(|event| event.text().ok());
    (texts.map(str::to_owned).collect(), well)
}

/// Reads a connector's template, a path and an answer: one line each for the template and the path,
/// then the answer.
///
/// # Panics
/// If a filled template is not an object, or the first match of the path is not the first of all
/// matches.
pub fn connector(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.splitn(3, '\n');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    let values = [
        Value::from("a \"quoted\" text"),
        Value::from(7),
        serde_json::json!({ "a": [1] }),
    ];
    let lookup = |name: &str| values.get(name.len() % 4).cloned();
    if let Ok(body) = template::fill(first, lookup) {
        assert!(body.is_object(), "a body is an object");
    }
    let answer = parts
        .next()
        .and_then(|json| serde_json::from_str::<Value>(json).ok());
    let path = second.and_then(|path| Path::parse(path, "path").ok());
    if let (Some(path), Some(answer)) = (path, answer) {
        let found = path.find(&answer);
        assert_eq!(
            path.first(&answer),
            found.into_iter().find(|value| !value.is_null())
        );
    }
}

/// Reads an answer of a server that embeds or reranks. The first byte selects the format, the
/// second the number of rows.
///
/// # Panics
/// If the number of values differs from the number of rows.
pub fn rows(bytes: &[u8]) {
    let Some(([which, count], body)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let (form, count) = (
        PostProcess::ALL[usize::from(*which) % PostProcess::ALL.len()],
        usize::from(*count),
    );
    if let Ok(answered) = form.read(body, count) {
        assert_eq!(answered.values.len(), count, "{form:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Fragments of all formats, so that random input resembles real answers.
    const WORDS: [&[u8]; 24] = [
        b"data: ",
        b"data:",
        b"event: message_stop\n",
        b"\n",
        b"\n\n",
        b"\r\n\r\n",
        b"\xef\xbb\xbf",
        b": ping\n",
        b"[DONE]",
        b"{\"choices\":[{\"delta\":{\"content\":\"Gr\xc3\xbc\"}}]}",
        b"{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"text\":\"a\"}}",
        b"{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"citations\":[{\"type\":\"x\"}]}}",
        b"{\"type\":\"content_block_stop\",\"index\":0}",
        b"{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\xf0\x9f\xa6\x8a\"}]},\"finishReason\":\"STOP\"}]}",
        b"{\"candidates\":[{\"groundingMetadata\":{\"groundingChunks\":[{\"web\":{\"uri\":\"u\"}}],\"groundingSupports\":[{\"segment\":{\"endIndex\":3},\"groundingChunkIndices\":[0]}]}}]}",
        b"{\"type\":\"citation-start\",\"delta\":{\"message\":{\"citations\":{\"start\":1,\"sources\":[{\"id\":\"a\"}]}}}}",
        b"{\"message\":{\"content\":\"x\"},\"done\":true}",
        b"{\"token\":{\"text\":\"x\"}}",
        b"\x00\x00\x00\x20\x00\x00\x00\x10",
        b"{\"embeddings\":[[1,2]]}",
        b"{\"embedding\":{\"values\":[1]}}",
        b"{\"results\":[{\"index\":0,\"score\":1}]}",
        b"\"${parameters.a:-1}\"",
        b"$.a[*]['b'][-1]",
    ];

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            4 => (0..WORDS.len()).prop_map(|which| WORDS[which].to_vec()),
            1 => proptest::collection::vec(any::<u8>(), 0..6),
        ];
        let head = (any::<u8>(), 0..40_u8);
        (head, proptest::collection::vec(word, 0..12)).prop_map(|((which, length), words)| {
            let mut all = vec![which, length];
            all.extend(words.concat());
            all
        })
    }

    proptest! {
        #[test]
        fn anything_is_read_in_one_way(bytes in bytes()) {
            answer(&bytes);
            events(&bytes);
            connector(&bytes[2..]);
            rows(&bytes);
        }
    }
}
