//! State with which another replica continues a generation after its worker was lost.
//!
//! The replica prefills the prompt and the tokens that were already sent, and continues sampling
//! after them. Only coordinators set this state; they drop the state of external callers.

mod recorder;

use std::sync::Arc;

pub use self::recorder::SentAnswerRecorder;
use crate::error::PredictError;

/// Maximum number of tokens of all answers of a stream that a coordinator keeps for a continuation.
pub const MAX_TOKENS: usize = 64 << 10;

/// Maximum number of answers of a stream that can be continued.
pub const MAX_ANSWERS: usize = 1_024;

/// Sampling seed of a generation, and the part that was already sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Continuation {
    /// Seed for a sampled request without its own seed. It has no effect on greedy decoding.
    pub seed: Option<u64>,
    /// The part that was already sent; `None` for a new generation.
    pub sent: Option<Arc<SentAnswers>>,
}

impl Continuation {
    /// Continuation of a new generation with this seed.
    #[must_use]
    pub fn beginning(seed: u64) -> Self {
        Self {
            seed: Some(seed),
            sent: None,
        }
    }

    /// The same generation, continued after the `sent` part.
    #[must_use]
    pub fn behind(&self, sent: SentAnswers) -> Self {
        Self {
            seed: self.seed,
            sent: Some(Arc::new(sent)),
        }
    }
}

/// The sent part of a stream: its answers, each at most once, in any order. A missing answer has
/// not started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentAnswers {
    answers: Vec<SentAnswer>,
}

impl SentAnswers {
    /// The sent part of these answers.
    ///
    /// # Errors
    /// `InvalidInput` for more than [`MAX_ANSWERS`] answers, more than [`MAX_TOKENS`] tokens in
    /// total, more than `u32::MAX` rows, or a duplicate answer.
    pub fn new(answers: Vec<SentAnswer>) -> Result<Self, PredictError> {
        let tokens = answers.iter().map(|answer| answer.tokens.len());
        let tokens = tokens.fold(0, usize::saturating_add);
        if MAX_ANSWERS < answers.len() || MAX_TOKENS < tokens {
            return Err(PredictError::invalid(format!(
                "a generation can be continued after at most {MAX_ANSWERS} answers and \
                 {MAX_TOKENS} tokens"
            )));
        }
        let rows = answers.iter().map(|answer| u64::from(answer.rows));
        if u64::from(u32::MAX) < rows.sum::<u64>() {
            return Err(PredictError::invalid("more rows than a stream can have"));
        }
        let mut places: Vec<_> = answers.iter().map(SentAnswer::place).collect();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(PredictError::invalid("a continued answer is named twice"));
        }
        Ok(Self { answers })
    }

    /// The answers.
    #[must_use]
    pub fn answers(&self) -> &[SentAnswer] {
        &self.answers
    }

    /// Number of sent rows of all answers, which is the sequence number of the next row.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.answers.iter().map(|answer| answer.rows).sum()
    }
}

/// The sent part of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentAnswer {
    /// Index of the request row that it answers.
    pub item: u32,
    /// Index of the answer among several answers to that row.
    pub choice: u32,
    /// Tokens of the sent rows, in order.
    pub tokens: Vec<u32>,
    /// Number of sent rows.
    pub rows: u32,
    /// Length of their text in bytes.
    pub text_bytes: u64,
    /// How the answer ended; `None` while it runs.
    pub end: Option<AnswerEnd>,
}

impl SentAnswer {
    /// The answer's `(item, choice)`.
    #[must_use]
    pub fn place(&self) -> (u32, u32) {
        (self.item, self.choice)
    }
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// With its last row.
    Whole,
    /// With an error, while other answers continue.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_bounded_and_names_no_answer_twice() {
        let answer = |choice, tokens: usize| SentAnswer {
            choice,
            tokens: vec![7; tokens],
            rows: 3,
            ..SentAnswer::default()
        };
        let sent = SentAnswers::new(vec![answer(1, 5), answer(0, 0)]).unwrap();
        assert_eq!(sent.rows(), 6);
        assert!(SentAnswers::new(vec![answer(1, 5), answer(0, 0), answer(1, 0)]).is_err());
        assert!(SentAnswers::new(vec![answer(0, MAX_TOKENS), answer(1, 1)]).is_err());
        let many = (0..=MAX_ANSWERS as u32).map(|choice| answer(choice, 0));
        assert!(SentAnswers::new(many.collect()).is_err());
        let endless = |choice| SentAnswer {
            rows: u32::MAX,
            ..answer(choice, 0)
        };
        assert!(SentAnswers::new(vec![endless(0), endless(1)]).is_err());
    }
}
