//! What an answer must not have, and where it must not end.

use std::sync::Arc;

/// What must not be chosen, and for how long.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenLimits {
    /// Before the answer has so many tokens, none of `ends` is chosen.
    pub(crate) least: usize,
    pub(crate) ends: Vec<u32>,
    /// Tokens that must not follow each other.
    pub(crate) banned: Arc<[Vec<u32>]>,
}

impl TokenLimits {
    /// Takes away the logits of what must not follow `said`.
    pub(super) fn apply(&self, said: &[u32], logits: &mut [f32]) {
        let mut without = |id: u32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        if said.len() < self.least {
            self.ends.iter().copied().for_each(&mut without);
        }
        for words in self.banned.iter() {
            if let Some((last, before)) = words.split_last()
                && said.ends_with(before)
            {
                without(*last);
            }
        }
    }

    /// Whether anything may be taken away behind so many tokens.
    pub(super) fn hold(&self, said: usize) -> bool {
        said < self.least || !self.banned.is_empty()
    }
}
