//! Merges several answers into one stream.

use volley_types::{GenerationChunk, GenerationChunks, PredictError, Usage};

use super::event::{AnswerIndex, EngineEvent};

/// Merges the rows of a request's answers. Sequence numbers span the stream, usage is summed, and
/// only the end of the last answer ends the stream. A failed answer gets an error row while the
/// others continue. If all answers fail, the last error becomes that of the stream.
#[derive(Debug)]
pub(crate) struct Merge {
    left: usize,
    succeeded: bool,
    sequence: u32,
    usage: Usage,
}

impl Merge {
    pub(crate) fn new(items: usize) -> Self {
        Self {
            left: items,
            succeeded: false,
            sequence: 0,
            usage: Usage::default(),
        }
    }

    /// Merges `items` answers, after `rows` rows that another replica has already sent.
    pub(crate) fn behind(items: usize, rows: u32) -> Self {
        Self {
            sequence: rows,
            ..Self::new(items)
        }
    }

    /// Counts an answer that ended on another replica: with its usage, or with an error (`None`).
    pub(crate) fn settle(&mut self, usage: Option<Usage>) {
        self.left = self.left.saturating_sub(1);
        if let Some(usage) = usage {
            self.succeeded = true;
            self.usage += usage;
        }
    }

    /// Adds an event to `rows`.
    ///
    /// # Errors
    /// The error of the last answer, if no answer has succeeded.
    pub(crate) fn push(
        &mut self,
        (place, outcome): EngineEvent,
        rows: &mut GenerationChunks,
    ) -> Result<(), PredictError> {
        let mut chunk = match outcome {
            Ok(chunk) => chunk,
            Err(error) if self.left <= 1 && !self.succeeded => return Err(error),
            Err(error) => failure(place, error),
        };
        chunk.sequence = self.sequence;
        self.sequence += 1;
        if let Some(usage) = chunk.usage.take() {
            self.usage += usage;
        }
        if chunk.last {
            self.succeeded |= chunk.error.is_none();
            self.left = self.left.saturating_sub(1);
            chunk.last = self.left == 0;
            chunk.usage = chunk.last.then_some(self.usage);
        }
        rows.push(&chunk);
        Ok(())
    }

    /// Whether all answers have ended.
    pub(crate) fn complete(&self) -> bool {
        self.left == 0
    }
}

fn failure(AnswerIndex { item, choice }: AnswerIndex, error: PredictError) -> GenerationChunk {
    tracing::warn!(item, choice, error = error.chain(), "batch item failed");
    GenerationChunk::failed(item, choice, error)
}

#[cfg(test)]
mod tests {
    use volley_types::{ErrorCode, FinishReason, GenerationRow};

    use super::*;

    fn end(item: u32) -> EngineEvent {
        let chunk = GenerationChunk {
            item,
            finish_reason: Some(FinishReason::Stop),
            usage: Some(Usage {
                prompt_tokens: 3,
                completion_tokens: 5,
                ..Usage::default()
            }),
            last: true,
            ..GenerationChunk::default()
        };
        (AnswerIndex { item, choice: 0 }, Ok(chunk))
    }

    fn error(item: u32) -> EngineEvent {
        (
            AnswerIndex { item, choice: 0 },
            Err(PredictError::invalid(format!("item {item} is bad"))),
        )
    }

    fn merge(
        items: usize,
        events: Vec<EngineEvent>,
    ) -> Result<Vec<(u32, u32, bool)>, PredictError> {
        let (mut merge, mut rows) = (Merge::new(items), GenerationChunks::default());
        for event in events {
            merge.push(event, &mut rows)?;
        }
        assert!(merge.complete());
        let batch = rows.finish();
        let rows = GenerationRow::rows(&batch).unwrap();
        let told = rows.map(|row| {
            let used = row.usage().map_or(0, |usage| usage.completion_tokens);
            (row.item(), used, row.error().is_some())
        });
        Ok(told.collect())
    }

    #[test]
    fn usage_adds_up_in_the_last_row_and_a_failed_item_has_a_row() {
        assert_eq!(
            merge(3, vec![end(2), error(0), end(1)]).unwrap(),
            [(2, 0, false), (0, 0, true), (1, 10, false)]
        );
        assert_eq!(
            merge(2, vec![end(1), error(0)]).unwrap(),
            [(1, 0, false), (0, 5, true)]
        );
    }

    #[test]
    fn what_has_ended_elsewhere_counts_and_rows_go_on_behind_it() {
        let (mut merge, mut rows) = (Merge::behind(3, 7), GenerationChunks::default());
        merge.settle(Some(Usage {
            prompt_tokens: 1,
            completion_tokens: 2,
            ..Usage::default()
        }));
        merge.settle(None);
        assert!(!merge.complete());
        merge.push(end(1), &mut rows).unwrap();
        assert!(merge.complete());
        let batch = rows.finish();
        let row = GenerationRow::rows(&batch).unwrap().next().unwrap();
        assert_eq!((row.sequence(), row.last()), (7, true));
        let usage = row.usage().unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (4, 7));
    }

    #[test]
    fn when_nothing_succeeds_the_stream_fails() {
        assert_eq!(
            merge(1, vec![error(0)]).unwrap_err().code,
            ErrorCode::InvalidInput
        );
        let error = merge(2, vec![error(1), error(0)]).unwrap_err();
        assert_eq!(error.message, "item 0 is bad");
    }
}
