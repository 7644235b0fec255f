//! What makes tokens less likely that were there before.

use std::collections::HashMap;

use crate::options::Sampling;

/// What makes tokens less likely that were there before.
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    vocabulary: usize,
    /// Tokens of the prompt and of the answer so far, with how often the answer has each. Empty
    /// where no penalty is.
    seen: HashMap<u32, u32>,
}

impl Penalties {
    /// Of an answer to this prompt.
    pub(super) fn new(options: &Sampling, prompt: &[u32], vocabulary: usize) -> Self {
        let mut penalties = Self {
            repetition: options.repetition_penalty,
            presence: options.presence_penalty,
            frequency: options.frequency_penalty,
            vocabulary,
            seen: HashMap::new(),
        };
        if !penalties.are_none() {
            let known = prompt.iter().filter(|id| (**id as usize) < vocabulary);
            penalties.seen = known.map(|id| (*id, 0)).collect();
        }
        penalties
    }

    /// Whether there are none.
    pub(super) fn are_none(&self) -> bool {
        (self.repetition - 1.0).abs() <= f32::EPSILON
            && self.presence == 0.0
            && self.frequency == 0.0
    }

    /// The answer has this token.
    pub(super) fn mark(&mut self, id: u32) {
        if !self.are_none() && (id as usize) < self.vocabulary {
            *self.seen.entry(id).or_insert(0) += 1;
        }
    }

    /// Takes from the logits.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (id, count) in &self.seen {
            let Some(logit) = logits.get_mut(*id as usize) else {
                continue;
            };
            *logit = if 0.0 < *logit {
                *logit / self.repetition
            } else {
                *logit * self.repetition
            };
            if 0 < *count {
                *logit -= self.presence + self.frequency * *count as f32;
            }
        }
    }
}
