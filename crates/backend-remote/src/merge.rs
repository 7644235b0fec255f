//! Merges the answers to all items of a request into the rows of one stream. Pure.

use arrow_array::RecordBatch;
use volley_types::{Citation, GenerationChunk, GenerationChunks, PredictError, PromptUsage, Usage};

use crate::answer::Part;

/// The index of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerIndex {
    /// Row of the request.
    pub(crate) item: u32,
    /// Number among several answers to the row.
    pub(crate) choice: u32,
}

/// Merges answers. Sequence numbers count over the whole stream, usage is summed, and the last
/// answer's end is the stream's. A failed item gets an error row, and the others continue. If all
/// items fail, the last error is the stream's.
#[derive(Debug)]
pub(crate) struct Merge {
    left: usize,
    succeeded: bool,
    sequence: u32,
    usage: Option<Usage>,
}

impl Merge {
    pub(crate) fn new(answers: usize) -> Self {
        Self {
            left: answers,
            succeeded: false,
            sequence: 0,
            usage: None,
        }
    }

    /// The rows of a part of an answer as one record batch; `None` without content.
    pub(crate) fn part(&mut self, to: AnswerIndex, part: Part) -> Option<RecordBatch> {
        let AnswerIndex { item, choice } = to;
        let mut rows = GenerationChunks::default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let mut prompt = part.prompt.map(|usage| PromptUsage {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
        });
        for delta in part.deltas {
            rows.push(&GenerationChunk {
                item,
                choice,
                prompt: prompt.take(),
                sequence: self.next(),
                text: filled(delta.text),
                thinking: filled(delta.thinking),
                tool_calls: delta.tool_calls,
                token_logprobs: delta.logprobs,
                citations: delta.citations.as_deref().map(Citation::to_json),
                details: delta.details.and_then(|details| details.to_json()),
                ..GenerationChunk::default()
            });
        }
        if let Some(end) = part.end {
            if let Some(told) = end.usage {
                *self.usage.get_or_insert_default() += told;
            }
            self.succeeded = true;
            rows.push(&self.last(GenerationChunk {
                item,
                choice,
                finish_reason: Some(end.finish_reason),
                details: end.details.to_json(),
                ..GenerationChunk::default()
            }));
        }
        (!rows.is_empty()).then(|| rows.finish())
    }

    /// The error row of a failed item.
    ///
    /// # Errors
    /// `error`, if this is the last item and none has succeeded.
    pub(crate) fn failed(
        &mut self,
        to: AnswerIndex,
        error: PredictError,
    ) -> Result<RecordBatch, PredictError> {
        let AnswerIndex { item, choice } = to;
        if self.left <= 1 && !self.succeeded {
            return Err(error);
        }
        tracing::warn!(item, error = error.chain(), "batch item failed");
        let row = self.last(GenerationChunk::failed(item, choice, error));
        Ok(GenerationChunks::single(&row))
    }

    /// Completes the last row of an item, which may be the last of the stream.
    fn last(&mut self, row: GenerationChunk) -> GenerationChunk {
        self.left = self.left.saturating_sub(1);
        let last = self.left == 0;
        GenerationChunk {
            sequence: self.next(),
            usage: self.usage.filter(|_| last),
            last,
            ..row
        }
    }

    fn next(&mut self) -> u32 {
        let sequence = self.sequence;
        self.sequence = sequence.saturating_add(1);
        sequence
    }
}

#[cfg(test)]
mod tests {
    use volley_remote_http::upstream;
    use volley_types::{Details, GenerationRow};

    use volley_types::FinishReason;

    use super::*;
    use crate::answer::UpstreamEnd;

    fn to(item: u32) -> AnswerIndex {
        AnswerIndex { item, choice: 0 }
    }

    fn end() -> Part {
        Part {
            end: Some(UpstreamEnd {
                finish_reason: FinishReason::Stop,
                usage: Some(Usage {
                    prompt_tokens: 1,
                    completion_tokens: 2,
                    cached_tokens: 1,
                    ..Usage::default()
                }),
                details: Details::default(),
            }),
            ..Part::default()
        }
    }

    #[test]
    fn usage_adds_up_in_the_last_row_and_a_failed_item_has_a_row() {
        let mut merge = Merge::new(3);
        let first = merge.part(to(2), end()).unwrap();
        let failed = merge.failed(to(0), upstream::incomplete()).unwrap();
        let last = merge.part(to(1), end()).unwrap();
        let batches = [first, failed, last];
        let rows = || batches.iter().flat_map(|b| GenerationRow::rows(b).unwrap());
        let sequences: Vec<_> = rows().map(|row| row.sequence()).collect();
        assert_eq!(sequences, [0, 1, 2]);
        let lasts: Vec<_> = rows().map(|row| row.last()).collect();
        assert_eq!(lasts, [false, false, true]);
        let usages: Vec<_> = rows().map(|row| row.usage()).collect();
        assert_eq!(usages[..2], [None, None]);
        assert_eq!(usages[2].unwrap().completion_tokens, 4);
        assert!(rows().nth(1).unwrap().error().is_some());
    }

    #[test]
    fn where_all_have_failed_the_stream_has() {
        let mut merge = Merge::new(2);
        assert!(merge.failed(to(0), upstream::incomplete()).is_ok());
        assert!(merge.failed(to(1), upstream::incomplete()).is_err());
    }
}
