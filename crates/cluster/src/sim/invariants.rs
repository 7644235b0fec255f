//! What must hold at every moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use volley_sim_kit::invariants::Verdict;
use volley_types::registry::RegistryState;

use crate::raft_types::Entry;

/// What was seen to be agreed on; whatever is seen later must be the same.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    /// Entries that somebody has applied, by their index.
    chosen: BTreeMap<u64, Entry>,
    /// Registries by their revision.
    registries: BTreeMap<u64, Arc<RegistryState>>,
    /// Who led in each term.
    leaders: BTreeMap<u64, BTreeSet<u64>>,
    verdict: Verdict,
}

impl Invariants {
    /// Whether all hold.
    ///
    /// # Errors
    /// The first that was broken.
    pub(super) fn check(&self) -> Result<(), String> {
        self.verdict.check()
    }

    pub(super) fn breaks(&mut self, why: String) {
        self.verdict.breaks(why);
    }

    /// A node has applied these entries.
    pub(super) fn applied(&mut self, node: u64, entries: Vec<Entry>) {
        for entry in entries {
            let (id, index) = (entry.log_id, entry.log_id.index);
            if let Some(chosen) = self.chosen.get(&index) {
                if *chosen != entry {
                    let other = chosen.log_id;
                    self.breaks(format!(
                        "coordinator {node} has applied {id}, where another has applied {other}"
                    ));
                }
                continue;
            }
            let before = index.checked_sub(1).and_then(|at| self.chosen.get(&at));
            let after = self.chosen.get(&(index + 1));
            let led = |other: &Entry| other.log_id.leader_id;
            if before.is_some_and(|before| id.leader_id < led(before))
                || after.is_some_and(|after| led(after) < id.leader_id)
            {
                self.breaks(format!(
                    "the leader of {id} is out of order with its neighbours"
                ));
            }
            self.chosen.insert(index, entry);
        }
    }

    /// A node has this registry.
    pub(super) fn registry(&mut self, node: u64, state: &Arc<RegistryState>) {
        let known = self.registries.entry(state.revision.0);
        let known = known.or_insert_with(|| state.clone());
        if !Arc::ptr_eq(known, state) && known != state {
            let revision = state.revision.0;
            self.breaks(format!(
                "coordinator {node} has another registry of revision {revision} than others"
            ));
        }
    }

    /// A node leads. Consensus here tells leaders apart by their term and their id, of which the
    /// higher one goes before, so that a term may have several, one after the other.
    pub(super) fn leads(&mut self, node: u64, term: u64) {
        self.leaders.entry(term).or_default().insert(node);
    }

    /// Terms with a leader, and those with more than one.
    pub(super) fn terms(&self) -> (u64, u64) {
        let shared = self.leaders.values().filter(|leaders| 1 < leaders.len());
        (self.leaders.len() as u64, shared.count() as u64)
    }

    pub(super) fn entries(&self) -> u64 {
        self.chosen.len() as u64
    }
}
