//! What comes back, read piece by piece into rows. Pure.

use arrow_array::RecordBatch;
use bytes::Bytes;
use volley_types::registry::ProviderKind;
use volley_types::{FinishReason, GenerationChunk, GenerationChunks, PredictError, Usage};

use crate::provider::{self, Delta, Step};
use crate::sse::Parser;
use crate::upstream;

/// A whole completion as one chunk and the end.
///
/// # Errors
/// `UpstreamFailed` when it is none, or says that the server failed.
pub(crate) fn whole(
    provider: ProviderKind,
    body: &[u8],
    redact: impl Fn(&str) -> String,
) -> Result<RecordBatch, PredictError> {
    let delta = match provider::read_whole(provider, body) {
        Ok(Step::Delta(delta)) => delta,
        Ok(Step::Failed(message)) => return Err(upstream::failed(&message, redact)),
        Ok(Step::End) | Err(_) => {
            return Err(upstream::not_a_stream("JSON that is no completion"));
        }
    };
    let mut answer = Answer::new(provider);
    let mut rows = GenerationChunks::default();
    answer.take(delta, &mut rows);
    answer.end(&mut rows);
    Ok(rows.finish())
}

/// An answer as it is read.
pub(crate) struct Answer {
    provider: ProviderKind,
    parser: Parser,
    tools: u32,
    sequence: u32,
    usage: Usage,
    finish_reason: Option<FinishReason>,
    ended: bool,
    failure: Option<PredictError>,
}

impl Answer {
    pub(crate) fn new(provider: ProviderKind) -> Self {
        Self {
            provider,
            parser: Parser::default(),
            tools: 0,
            sequence: 0,
            usage: Usage::default(),
            finish_reason: None,
            ended: false,
            failure: None,
        }
    }

    /// Whether the answer's own end was read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The failure that comes after the rows read so far. The answer is of no use after it.
    pub(crate) fn take_failure(&mut self) -> Option<PredictError> {
        self.failure.take()
    }

    /// Reads a piece of the body, or its end: the rows that it completes, all in one batch. A
    /// failure in it is kept for after those rows.
    pub(crate) fn read(
        &mut self,
        piece: Option<Bytes>,
        redact: impl Fn(&str) -> String,
    ) -> Option<RecordBatch> {
        let mut events = Vec::new();
        let at_end = piece.is_none();
        let parsed = match piece {
            Some(piece) => self.parser.push(piece, &mut events),
            None => self.parser.finish(&mut events),
        };
        let mut rows = GenerationChunks::default();
        for event in &events {
            match provider::read(self.provider, event, &mut self.tools) {
                Ok(Step::Delta(delta)) => self.take(delta, &mut rows),
                Ok(Step::End) => {
                    self.end(&mut rows);
                    break;
                }
                Ok(Step::Failed(message)) => {
                    self.failure = Some(upstream::failed(&message, redact));
                    break;
                }
                // The last event is in pieces because the stream is.
                Err(_) if at_end => break,
                Err(cause) => {
                    self.failure = Some(upstream::malformed(cause));
                    break;
                }
            }
        }
        if !self.ended && self.failure.is_none() {
            self.failure = match parsed {
                _ if at_end => Some(upstream::incomplete()),
                Err(error) => Some(upstream::unreadable(error)),
                Ok(()) => None,
            };
        }
        (!rows.is_empty()).then(|| rows.finish())
    }

    /// The connection broke: what is whole is read, and a missing end is `error`.
    pub(crate) fn break_off(&mut self, error: PredictError) -> Option<RecordBatch> {
        let rows = self.read(None, str::to_owned);
        if !self.ended {
            self.failure = Some(error);
        }
        rows
    }

    fn take(&mut self, delta: Delta, rows: &mut GenerationChunks) {
        provider::usage(&mut self.usage, &delta);
        self.finish_reason = delta.finish_reason.or(self.finish_reason);
        if delta.has_content() {
            rows.push(&GenerationChunk {
                sequence: self.next(),
                text: delta.text.filter(|text| !text.is_empty()),
                thinking: delta.thinking.filter(|text| !text.is_empty()),
                tool_calls: delta.tool_calls,
                ..GenerationChunk::default()
            });
        }
    }

    fn end(&mut self, rows: &mut GenerationChunks) {
        self.ended = true;
        rows.push(&GenerationChunk {
            sequence: self.next(),
            finish_reason: Some(self.finish_reason.unwrap_or(FinishReason::Stop)),
            usage: (self.usage != Usage::default()).then_some(self.usage),
            last: true,
            ..GenerationChunk::default()
        });
    }

    fn next(&mut self) -> u32 {
        let sequence = self.sequence;
        self.sequence += 1;
        sequence
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_types::{ErrorCode, GenerationRow};

    use super::*;

    const OPENAI: &str = concat!(
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        ": ping\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Gr\u{fc}\u{df}e \"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{1f98a}\"},\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );
    const ANTHROPIC: &str = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":1}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Gr\u{fc}\u{df}e \u{1f98a}\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"},\"usage\":{\"output_tokens\":3}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    const STREAMS: [(ProviderKind, &str); 2] = [
        (ProviderKind::OpenAi, OPENAI),
        (ProviderKind::Anthropic, ANTHROPIC),
    ];

    /// The text, whether there was a last row, and the failure, of an answer in these pieces.
    fn play(provider: ProviderKind, pieces: &[&[u8]]) -> (String, bool, Option<ErrorCode>) {
        let (mut answer, mut text, mut last) = (Answer::new(provider), String::new(), false);
        let pieces = pieces
            .iter()
            .map(|piece| Some(Bytes::copy_from_slice(piece)));
        for piece in pieces.chain([None]) {
            if let Some(batch) = answer.read(piece, str::to_owned) {
                for row in GenerationRow::rows(&batch).unwrap() {
                    assert!(!last, "nothing follows the last row");
                    text.push_str(row.text().unwrap_or_default());
                    last = row.last();
                }
            }
            let failure = answer.take_failure();
            if failure.is_some() || answer.has_ended() {
                assert_eq!(last, answer.has_ended());
                return (text, last, failure.map(|failure| failure.code));
            }
        }
        panic!("an answer ends, well or badly");
    }

    #[test]
    fn cut_anywhere_a_stream_is_incomplete_and_never_a_success() {
        for (provider, stream) in STREAMS {
            // Nothing but line ends may be missing from the end of a good one.
            let enough = stream.trim_end().len();
            for length in 0..stream.len() {
                let (text, last, failure) = play(provider, &[&stream.as_bytes()[..length]]);
                assert!("Gr\u{fc}\u{df}e \u{1f98a}".starts_with(&text));
                let expected = (length < enough).then_some(ErrorCode::UpstreamIncomplete);
                assert_eq!((last, failure), (enough <= length, expected), "at {length}");
            }
        }
    }

    #[test]
    fn what_comes_in_one_piece_goes_out_in_one_batch() {
        let mut answer = Answer::new(ProviderKind::OpenAi);
        let batch = answer.read(Some(Bytes::from_static(OPENAI.as_bytes())), str::to_owned);
        assert_eq!(batch.unwrap().num_rows(), 3, "two chunks and the end");
        assert!(answer.has_ended() && answer.take_failure().is_none());
    }

    #[test]
    fn a_connection_that_breaks_after_the_end_has_not_failed() {
        let mut answer = Answer::new(ProviderKind::OpenAi);
        let unended = OPENAI.trim_end().as_bytes();
        answer.read(Some(Bytes::from_static(unended)), str::to_owned);
        assert!(!answer.has_ended());
        answer.break_off(upstream::incomplete()).unwrap();
        assert!(answer.has_ended() && answer.take_failure().is_none());
    }

    proptest! {
        #[test]
        fn mutated_streams_end_in_one_way_and_alike_wherever_they_are_cut(
            which in 0..STREAMS.len(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            removed in any::<prop::sample::Index>(),
            place in any::<prop::sample::Index>(),
        ) {
            let (provider, stream) = STREAMS[which];
            let mut bytes = stream.as_bytes().to_vec();
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes.remove(removed.index(bytes.len()));
            let whole = play(provider, &[&bytes]);
            let (a, b) = bytes.split_at(place.index(bytes.len()));
            prop_assert_eq!(play(provider, &[a, b]), whole);
        }
    }
}
