//! How messages fare between nodes.

use std::collections::BTreeSet;

/// How messages fare that nothing holds up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConditions {
    /// The shortest and the longest delay of a message in milliseconds.
    pub delay_ms: (u64, u64),
    /// The part of them that gets lost.
    pub lost: f64,
    /// The part of them that comes twice.
    pub twice: f64,
}

impl NetworkConditions {
    /// Every message arrives, once, within a few milliseconds.
    pub const CALM: Self = Self::within(1, 8);

    /// Every message arrives, once, after a delay between the two, in milliseconds.
    #[must_use]
    pub const fn within(least_ms: u64, most_ms: u64) -> Self {
        Self {
            delay_ms: (least_ms, most_ms),
            lost: 0.0,
            twice: 0.0,
        }
    }

    /// How long a message is under way, in milliseconds.
    pub fn delay_ms(&self, dice: &mut fastrand::Rng) -> u64 {
        dice.u64(self.delay_ms.0..=self.delay_ms.1)
    }

    /// Whether a message gets lost.
    pub fn loses(&self, dice: &mut fastrand::Rng) -> bool {
        dice.f64() < self.lost
    }

    /// Whether a message comes twice.
    pub fn doubles(&self, dice: &mut fastrand::Rng) -> bool {
        dice.f64() < self.twice
    }
}

/// From which node to which nothing comes. A link is one way: of two nodes, one may hear the other
/// and not be heard.
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
    /// Nothing comes from one to the other any more. Whether that is new.
    pub fn cut(&mut self, from: N, to: N) -> bool {
        self.cut.insert((from, to))
    }

    /// Something comes from one to the other again. Whether that is new.
    pub fn join(&mut self, from: N, to: N) -> bool {
        self.cut.remove(&(from, to))
    }

    /// Everything comes everywhere again.
    pub fn mend(&mut self) {
        self.cut.clear();
    }

    /// Whether nothing comes from one to the other.
    #[must_use]
    pub fn is_cut(&self, from: N, to: N) -> bool {
        self.cut.contains(&(from, to))
    }

    /// Whether each of the two hears the other.
    #[must_use]
    pub fn are_joined(&self, one: N, other: N) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }
}
