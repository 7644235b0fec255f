//! The contents of the slots in the KV cache, and the reuse of prefixes.
//!
//! The keys and values of a position only depend on the tokens up to it. So a prompt that shares a
//! prefix with another (the same instructions, the same documents, a continued conversation) need
//! not be prefilled from its first token. The other prompt's slot, free or decoding, is copied, and
//! prefilling starts after the shared prefix. Free slots keep their contents until they are needed;
//! the least recently used one is replaced first.

use crate::prompt::BLOCK;

/// The contents of all slots.
pub(super) struct Slots {
    held: Vec<SlotPrefix>,
    clock: u64,
}

#[derive(Default)]
struct SlotPrefix {
    /// The tokens whose keys and values are in the slot, from position 0 on.
    tokens: Vec<u32>,
    /// Clock value when a prompt last started or ended here.
    used: u64,
}

/// How a slot is prepared for a prompt: first the swap, then the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct PrefixReuse {
    /// Two slots to swap, and the length of the longer one in positions.
    pub(super) exchange: Option<(usize, usize, usize)>,
    /// The slot with the prefix of the prompt; may be the prompt's own.
    pub(super) from: usize,
    /// Number of positions to copy.
    pub(super) length: usize,
}

impl Slots {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            held: (0..slots).map(|_| SlotPrefix::default()).collect(),
            clock: 0,
        }
    }

    /// Prepares `slot`, the first free one, for `prompt`. All later slots are free too. At least
    /// one token remains to be prefilled, because its logits are needed.
    pub(super) fn reuse_prefix(&mut self, slot: usize, prompt: &[u32]) -> PrefixReuse {
        self.clock += 1;
        let shared = |index: usize| shared(&self.held[index].tokens, prompt);
        // Among equals, prefer the slot itself, which needs no copy.
        let best = (0..self.held.len()).max_by_key(|index| (shared(*index), *index == slot));
        let mut from = best.unwrap_or(slot);
        let length = shared(from).min(prompt.len().saturating_sub(1)) / BLOCK * BLOCK;
        if length == 0 {
            from = slot;
        } else {
            self.held[from].used = self.clock;
        }
        let outgrown = self.held[from].tokens.len() < length + BLOCK;
        let exchange = if from == slot && length != 0 {
            None
        } else if slot < from && outgrown {
            // The prompt continues the other sequence: its slot is moved instead of copied.
            Some(from)
        } else {
            self.older_than(slot, from)
        };
        let exchange = exchange.map(|other| {
            let positions = self.held[slot].tokens.len();
            let positions = positions.max(if other == from { length } else { 0 });
            self.held.swap(slot, other);
            (slot, other, positions)
        });
        if slot < from && outgrown {
            from = slot;
        }
        let held = &mut self.held[slot];
        held.used = self.clock;
        held.tokens.clear();
        held.tokens.extend_from_slice(&prompt[..length]);
        PrefixReuse {
            exchange,
            from,
            length,
        }
    }

    /// The longest prefix of a prompt in any slot, in whole blocks.
    pub(super) fn shares(&self, prompt: &[u32]) -> usize {
        let most = self
            .held
            .iter()
            .map(|held| shared(&held.tokens, prompt))
            .max();
        let most = most.unwrap_or(0).min(prompt.len().saturating_sub(1));
        most / BLOCK * BLOCK
    }

    /// Number of `prompts`, from the first on, that share no block with an earlier one, which they
    /// could reuse after its prefill.
    pub(super) fn first_apart(&self, prompts: &[&[u32]]) -> usize {
        let alike = |index: &usize| {
            let before = prompts[..*index].iter();
            before
                .clone()
                .any(|other| BLOCK <= shared(other, prompts[*index]))
        };
        (0..prompts.len()).find(alike).unwrap_or(prompts.len())
    }

    /// The least recently used free slot after `slot`, except `from`; `None` unless it is older
    /// than `slot` and `slot` holds a reusable prefix.
    fn older_than(&self, slot: usize, from: usize) -> Option<usize> {
        let behind = (slot + 1..self.held.len()).filter(|index| *index != from);
        let oldest = behind.min_by_key(|index| self.held[*index].used)?;
        let of_worth = BLOCK <= self.held[slot].tokens.len();
        (of_worth && self.held[oldest].used < self.held[slot].used).then_some(oldest)
    }

    /// Records further tokens in a slot.
    pub(super) fn extend(&mut self, slot: usize, tokens: &[u32]) {
        self.held[slot].tokens.extend_from_slice(tokens);
    }

    /// Records a swap of two slots.
    pub(super) fn swap(&mut self, one: usize, other: usize) {
        self.held.swap(one, other);
    }

    /// Marks a slot as free; its content is kept.
    pub(super) fn free(&mut self, slot: usize) {
        self.clock += 1;
        self.held[slot].used = self.clock;
    }

    /// Discards the record of a slot whose content is undefined.
    pub(super) fn forget(&mut self, slot: usize) {
        self.held[slot] = SlotPrefix::default();
    }

    /// As [`Slots::forget`], for all slots.
    pub(super) fn forget_all(&mut self) {
        self.held.fill_with(SlotPrefix::default);
    }

    /// Number of positions to swap so that both contents are complete.
    pub(super) fn longer(&self, one: usize, other: usize) -> usize {
        let length = |slot: usize| self.held[slot].tokens.len();
        length(one).max(length(other))
    }
}

fn shared(one: &[u32], other: &[u32]) -> usize {
    let same = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other);
    same.count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(of: u32, count: usize) -> Vec<u32> {
        (0..count as u32).map(|index| of * 10_000 + index).collect()
    }

    fn with(mut beginning: Vec<u32>, of: u32, count: usize) -> Vec<u32> {
        beginning.extend(tokens(of, count));
        beginning
    }

    /// Creates slots of which the first ones hold these prompts, in order of use.
    fn slots(held: &[Vec<u32>]) -> Slots {
        let mut slots = Slots::new(4);
        for (slot, tokens) in held.iter().enumerate() {
            slots.extend(slot, tokens);
            slots.free(slot);
        }
        slots
    }

    #[test]
    fn a_beginning_is_copied_from_a_slot_that_still_decodes() {
        let instructions = tokens(1, 150);
        let mut slots = slots(&[with(instructions.clone(), 2, 90)]);
        let taken = slots.reuse_prefix(1, &with(instructions, 3, 5));
        let expected = PrefixReuse {
            exchange: None,
            from: 0,
            length: 128,
        };
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_conversation_that_goes_on_moves_to_its_new_slot_and_what_was_there_is_kept() {
        let (other, said) = (tokens(1, 200), tokens(2, 100));
        let mut slots = slots(&[tokens(9, 3), other.clone(), said.clone()]);
        let taken = slots.reuse_prefix(1, &with(said, 3, 20));
        assert_eq!((taken.exchange, taken.from), (Some((1, 2, 200)), 1));
        assert_eq!(taken.length, 64);
        let again = slots.reuse_prefix(2, &with(other, 4, 1));
        assert_eq!(
            again,
            PrefixReuse {
                exchange: None,
                from: 2,
                length: 192
            }
        );
    }

    #[test]
    fn a_prompt_without_a_past_takes_the_slot_that_was_left_longest() {
        let mut slots = slots(&[tokens(9, 3), tokens(1, 70), tokens(2, 70), tokens(3, 70)]);
        // Slot 1 is the oldest, so nothing is worth saving. Then it is the newest.
        assert_eq!(slots.reuse_prefix(1, &tokens(4, 80)).exchange, None);
        slots.extend(1, &tokens(4, 80));
        slots.free(1);
        assert_eq!(
            slots.reuse_prefix(1, &tokens(5, 80)).exchange,
            Some((1, 2, 80))
        );
    }

    #[test]
    fn the_last_token_is_always_read() {
        let mut slots = slots(&[tokens(1, 128)]);
        assert_eq!(slots.reuse_prefix(1, &tokens(1, 128)).length, 64);
        slots.forget_all();
        assert_eq!(slots.reuse_prefix(1, &tokens(1, 128)).length, 0);
    }

    proptest! {
        /// Compares plans with slots that hold the tokens themselves: reused tokens match the
        /// prompt, and running slots are never changed.
        #[test]
        fn what_is_taken_over_is_the_beginning_of_the_prompt(
            prompts in proptest::collection::vec((0..3_u32, 0..200_usize, 0..200_usize), 1..40),
            leavers in proptest::collection::vec(any::<proptest::sample::Index>(), 40),
        ) {
            let mut slots = Slots::new(4);
            let mut truth: Vec<Vec<u32>> = vec![Vec::new(); 4];
            let mut running: Vec<Vec<u32>> = Vec::new();
            for ((family, begins, own), leaver) in prompts.into_iter().zip(leavers) {
                let prompt = with(tokens(family, begins), 7 + family, own + 1);
                let slot = running.len();
                let plan = slots.reuse_prefix(slot, &prompt);
                if let Some((one, other, length)) = plan.exchange {
                    prop_assert!(slot <= one && slot <= other);
                    prop_assert!(truth[slot].len() <= length || plan.length <= length);
                    truth.swap(one, other);
                }
                let mut taken = truth[plan.from].clone();
                prop_assert!(plan.length < prompt.len() && plan.length <= taken.len());
                taken.truncate(plan.length);
                prop_assert_eq!(&taken[..], &prompt[..plan.length]);
                slots.extend(slot, &prompt[plan.length..]);
                truth[slot] = prompt.clone();
                running.push(prompt);
                prop_assert_eq!(&truth[..running.len()], &running[..]);
                if running.len() == 4 {
                    let slot = leaver.index(4);
                    running.swap_remove(slot);
                    slots.free(slot);
                    slots.swap(slot, 3);
                    truth.swap(slot, 3);
                }
            }
        }
    }
}
