//! Records the forwarded rows of a generation for a continuation.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;

use super::{AnswerEnd, MAX_TOKENS, SentAnswer, SentAnswers};
use crate::chunk::GenerationRow;

/// Summarizes the rows of one stream. It drops its state once a continuation is impossible: a row
/// has no token ids, or the limits are exceeded.
#[derive(Debug, Default)]
pub struct SentAnswerRecorder {
    answers: BTreeMap<(u32, u32), SentAnswer>,
    rows: u32,
    tokens: usize,
    forgotten: bool,
    ended: bool,
}

impl SentAnswerRecorder {
    /// A recorder for a stream that cannot be continued.
    #[must_use]
    pub fn forgotten() -> Self {
        Self {
            forgotten: true,
            ..Self::default()
        }
    }

    /// Records forwarded rows. Returns false if their sequence does not follow the previous rows.
    pub fn note(&mut self, batch: &RecordBatch) -> bool {
        if self.forgotten {
            return true;
        }
        let Ok(rows) = GenerationRow::rows(batch) else {
            self.forget();
            return true;
        };
        for row in rows {
            if row.sequence() != self.rows {
                self.forget();
                return false;
            }
            if !self.add(&row) {
                self.forget();
                return true;
            }
        }
        true
    }

    /// The sent part for a continuation; `None` if a continuation is impossible or no answer is
    /// unfinished.
    #[must_use]
    pub fn sent(&self) -> Option<SentAnswers> {
        if self.forgotten || self.ended {
            return None;
        }
        SentAnswers::new(self.answers.values().cloned().collect()).ok()
    }

    /// Number of forwarded tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn forget(&mut self) {
        *self = Self::forgotten();
    }

    /// Returns false if the stream cannot be continued after this row.
    fn add(&mut self, row: &GenerationRow<'_>) -> bool {
        let Some(rows) = self.rows.checked_add(1) else {
            return false;
        };
        self.rows = rows;
        self.ended |= row.last();
        let place = (row.item(), row.choice());
        let answer = self.answers.entry(place).or_insert_with(|| SentAnswer {
            item: place.0,
            choice: place.1,
            ..SentAnswer::default()
        });
        let before = answer.tokens.len();
        answer.rows += 1;
        answer.text_bytes += row.text().map_or(0, |text| text.len() as u64);
        match (row.error(), row.token_id(), row.token_ids()) {
            (Some(_), _, _) => {
                answer.end = Some(AnswerEnd::Failed);
                return true;
            }
            (None, None, None) => return false,
            (None, Some(id), _) => answer.tokens.push(id),
            (None, None, Some(ids)) => answer.tokens.extend_from_slice(ids.values()),
        }
        if row.finish_reason().is_some() {
            answer.end = Some(AnswerEnd::Whole);
        }
        self.tokens += answer.tokens.len() - before;
        self.tokens <= MAX_TOKENS
    }
}

#[cfg(test)]
mod tests;
