//! Tokens that must not be chosen.

use std::sync::Arc;

/// Tokens that must not be chosen, and for how long.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenLimits {
    /// Until the answer has this many tokens, none of `ends` is chosen.
    pub(crate) least: usize,
    pub(crate) ends: Vec<u32>,
    /// Token sequences that the answer must not contain.
    pub(crate) banned: Arc<[Vec<u32>]>,
}

impl TokenLimits {
    /// Sets the logits of tokens that must not follow `said` to negative infinity.
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

    /// Whether any token may be excluded after `said` tokens.
    pub(super) fn hold(&self, said: usize) -> bool {
        said < self.least || !self.banned.is_empty()
    }
}
