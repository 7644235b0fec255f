//! Network conditions and links between nodes.

use std::collections::BTreeSet;

/// Conditions for messages on links that are not cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConditions {
    /// Minimum and maximum delay of a message in milliseconds.
    pub delay_ms: (u64, u64),
    /// Share of messages that get lost, from 0 to 1.
    pub lost: f64,
    /// Share of messages that are duplicated, from 0 to 1.
    pub twice: f64,
}

impl NetworkConditions {
    /// No message is lost or duplicated, and all arrive within 1 to 8 ms.
    pub const CALM: Self = Self::within(1, 8);

    /// No message is lost or duplicated, and all arrive after a delay in these bounds, in
    /// milliseconds.
    #[must_use]
    pub const fn within(least_ms: u64, most_ms: u64) -> Self {
        Self {
            delay_ms: (least_ms, most_ms),
            lost: 0.0,
            twice: 0.0,
        }
    }

    /// Draws the delay of a message in milliseconds.
    pub fn delay_ms(&self, dice: &mut fastrand::Rng) -> u64 {
        dice.u64(self.delay_ms.0..=self.delay_ms.1)
    }

    /// Draws whether a message gets lost.
    pub fn loses(&self, dice: &mut fastrand::Rng) -> bool {
        dice.f64() < self.lost
    }

    /// Draws whether a message is duplicated.
    pub fn doubles(&self, dice: &mut fastrand::Rng) -> bool {
        dice.f64() < self.twice
    }
}

/// The cut links. A link has one direction: of two nodes, one may receive messages from the other
/// that it cannot send to.
#[derive(Clone, Debug)]
pub struct Links<N> {
    cut: BTreeSet<(N, N)>,
}

impl<N> Default for Links<N> {
    fn default() -> Self {
        Self {
            cut: BTreeSet::new(),
        }
    }
}

impl<N: Copy + Ord> Links<N> {
    /// Cuts the link from one node to another. Returns whether it was intact.
    pub fn cut(&mut self, from: N, to: N) -> bool {
        self.cut.insert((from, to))
    }

    /// Restores the link from one node to another. Returns whether it was cut.
    pub fn join(&mut self, from: N, to: N) -> bool {
        self.cut.remove(&(from, to))
    }

    /// Restores all links.
    pub fn mend(&mut self) {
        self.cut.clear();
    }

    /// Returns whether the link from one node to another is cut.
    #[must_use]
    pub fn is_cut(&self, from: N, to: N) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Returns whether both links between two nodes are intact.
    #[must_use]
    pub fn are_joined(&self, one: N, other: N) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }
}
