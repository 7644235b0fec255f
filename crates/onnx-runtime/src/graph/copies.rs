//! Counts how often a graph copies the texts of its inputs.
//!
//! The contents of texts lie outside of the runs' arena. An operator that only joins its inputs
//! takes no more than they do, but a chain of `Concat(x, x)` doubles one text at each step.

use std::collections::HashMap;

/// Maximum number of copies of one input in one value.
const MAX_IN_VALUE: u32 = 8;
/// Maximum number of copies of one input in all values of a run together.
const MAX_IN_RUN: u32 = 256;
/// Inputs that are counted separately. Of more, several share a count.
const COUNTED: usize = 32;

type Counts = [u32; COUNTED];

/// The copies of each input's texts, by value.
#[derive(Default)]
pub(super) struct Copies<'g> {
    values: HashMap<&'g str, Counts>,
    total: Counts,
    inputs: usize,
}

impl<'g> Copies<'g> {
    /// Adds an input or a constant with texts.
    pub(super) fn input(&mut self, name: &'g str) {
        let mut counts = [0; COUNTED];
        counts[self.inputs % COUNTED] = 1;
        self.inputs += 1;
        self.values.insert(name, counts);
    }

    /// Whether a value holds texts.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds the outputs of a node, each with all texts of all inputs, each as often as the node
    /// reads it.
    pub(super) fn node<'n>(
        &mut self,
        inputs: impl Iterator<Item = &'n str>,
        outputs: impl Iterator<Item = &'g str>,
    ) {
        let mut counts = [0_u32; COUNTED];
        for read in inputs.filter_map(|name| self.values.get(name)) {
            add(&mut counts, read);
        }
        for output in outputs {
            add(&mut self.total, &counts);
            self.values.insert(output, counts);
        }
    }

    /// Whether a run holds many times the texts of its inputs.
    pub(super) fn are_many(&self) -> bool {
        let in_value = self.values.values().flatten().max();
        let in_run = self.total.iter().max();
        in_value.is_some_and(|most| MAX_IN_VALUE < *most)
            || in_run.is_some_and(|most| MAX_IN_RUN < *most)
    }
}

fn add(sum: &mut Counts, counts: &Counts) {
    for (sum, count) in sum.iter_mut().zip(counts) {
        *sum = sum.saturating_add(*count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of `length` nodes that join a value with itself `times` times.
    fn chain(length: usize, times: usize) -> bool {
        let names: Vec<_> = (0..=length).map(|index| format!("v{index}")).collect();
        let mut copies = Copies::default();
        copies.input(&names[0]);
        for pair in names.windows(2) {
            let inputs = std::iter::repeat_n(pair[0].as_str(), times);
            copies.node(inputs, std::iter::once(pair[1].as_str()));
        }
        copies.are_many()
    }

    #[test]
    fn a_chain_that_doubles_a_text_copies_it_too_often() {
        assert!(!chain(3, 2));
        assert!(chain(4, 2));
        assert!(chain(1, 9));
        assert!(!chain(100, 1));
        assert!(chain(400, 1), "each step holds a copy");
    }

    #[test]
    fn columns_that_are_joined_once_are_not_copied() {
        let names: Vec<_> = (0..30).map(|index| format!("column{index}")).collect();
        let mut copies = Copies::default();
        for name in &names {
            copies.input(name);
        }
        copies.node(names.iter().map(String::as_str), ["all"].into_iter());
        assert!(copies.contains("all") && !copies.are_many());
    }
}
