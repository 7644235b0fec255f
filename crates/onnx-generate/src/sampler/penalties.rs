//! Penalties for tokens that have occurred.

use std::collections::HashMap;

use crate::options::Sampling;

/// Penalties for tokens that have occurred.
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    vocabulary: usize,
    /// Tokens of the prompt and the answer, with the number of occurrences in the answer. Empty
    /// without penalties.
    seen: HashMap<u32, u32>,
}

impl Penalties {
    /// Creates the penalties of an answer to this prompt.
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

    /// Whether there are no penalties.
    pub(super) fn are_none(&self) -> bool {
        (self.repetition - 1.0).abs() <= f32::EPSILON
            && self.presence == 0.0
            && self.frequency == 0.0
    }

    /// Records a token of the answer.
    pub(super) fn mark(&mut self, id: u32) {
        if !self.are_none() && (id as usize) < self.vocabulary {
            *self.seen.entry(id).or_insert(0) += 1;
        }
    }

    /// Applies the penalties to the logits.
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
