//! A simulated clock that advances to the next event.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A queue of events with their times, in milliseconds since the start. Events of the same moment
/// are returned in the order in which they were added.
#[derive(Debug)]
pub struct Agenda<E> {
    now_ms: u64,
    order: u64,
    due: BinaryHeap<Reverse<Due<E>>>,
}

#[derive(Debug)]
struct Due<E> {
    at_ms: u64,
    order: u64,
    event: E,
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ms, self.order).cmp(&(other.at_ms, other.order))
    }
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self {
            now_ms: 0,
            order: 0,
            due: BinaryHeap::new(),
        }
    }
}

impl<E> Agenda<E> {
    /// Returns the simulated time in milliseconds since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Adds an event that happens `ms` milliseconds from now.
    pub fn after(&mut self, ms: u64, event: E) {
        self.order += 1;
        self.due.push(Reverse(Due {
            at_ms: self.now_ms + ms,
            order: self.order,
            event,
        }));
    }

    /// Removes and returns the next event until `until_ms`, and sets the clock to its time. If
    /// there is none, sets the clock to `until_ms` and returns `None`.
    pub fn next(&mut self, until_ms: u64) -> Option<E> {
        let is_due = |Reverse(due): &Reverse<Due<E>>| due.at_ms <= until_ms;
        if !self.due.peek().is_some_and(is_due) {
            self.now_ms = until_ms;
            return None;
        }
        let Reverse(due) = self.due.pop()?;
        self.now_ms = due.at_ms;
        Some(due.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_comes_in_order_and_moves_the_clock() {
        let mut agenda = Agenda::default();
        agenda.after(5, "late");
        agenda.after(2, "first");
        agenda.after(2, "second");
        assert_eq!(agenda.next(4), Some("first"));
        assert_eq!((agenda.now_ms(), agenda.next(4)), (2, Some("second")));
        assert_eq!((agenda.next(4), agenda.now_ms()), (None, 4));
        assert_eq!((agenda.next(9), agenda.now_ms()), (Some("late"), 5));
    }
}
