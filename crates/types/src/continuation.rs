//! What another replica needs to go on with a generation whose worker was lost.
//!
//! A generation is told again from its middle: the replica reads the prompt and, behind it, the
//! tokens that were sent already, and draws on from there. Coordinators write this; what a caller
//! from outside writes there is dropped by them.

mod recorder;

use std::sync::Arc;

pub use self::recorder::SentAnswerRecorder;
use crate::error::PredictError;

/// The most tokens of a stream's answers, all together, that are kept for another replica.
pub const MAX_TOKENS: usize = 64 << 10;

/// The most answers of a stream that another replica can go on with.
pub const MAX_ANSWERS: usize = 1_024;

/// How a generation is drawn, and what was sent of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Continuation {
    /// The seed of a sampled request that has none of its own. One that is not sampled stays so.
    pub seed: Option<u64>,
    /// What was sent already; `None` where the generation begins.
    pub sent: Option<Arc<SentAnswers>>,
}

impl Continuation {
    /// Of a generation that begins, drawn from `seed` where it is sampled.
    #[must_use]
    pub fn beginning(seed: u64) -> Self {
        Self {
            seed: Some(seed),
            sent: None,
        }
    }

    /// Of the same generation behind what was `sent`.
    #[must_use]
    pub fn behind(&self, sent: SentAnswers) -> Self {
        Self {
            seed: self.seed,
            sent: Some(Arc::new(sent)),
        }
    }
}

/// What was sent of a stream: its answers, each at most once, in any order. One that is not here
/// has not begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentAnswers {
    answers: Vec<SentAnswer>,
}

impl SentAnswers {
    /// What was sent of these answers.
    ///
    /// # Errors
    /// `InvalidInput` when they are more than [`MAX_ANSWERS`], have more than [`MAX_TOKENS`]
    /// tokens together, more rows than can be counted, or one is there twice.
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

    /// Rows of all answers: the sequence of the next one.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.answers.iter().map(|answer| answer.rows).sum()
    }
}

/// What was sent of one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentAnswer {
    /// Which request row it answers.
    pub item: u32,
    /// Which of several answers to that row it is.
    pub choice: u32,
    /// Its tokens, in order, as far as rows of them were sent.
    pub tokens: Vec<u32>,
    /// Its rows.
    pub rows: u32,
    /// The bytes of their text.
    pub text_bytes: u64,
    /// How it ended, where it did.
    pub end: Option<AnswerEnd>,
}

impl SentAnswer {
    /// Which answer it is: its item and its choice.
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
    /// With an error of its own, while others go on.
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
