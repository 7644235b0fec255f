//! Invariants that must hold at every moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use volley_sim_kit::invariants::Verdict;
use volley_types::registry::RegistryState;

use crate::raft_types::Entry;

/// Agreed facts that were observed. Later observations must match them.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    /// Entries that a node has applied, by index.
    chosen: BTreeMap<u64, Entry>,
    /// Registries by revision.
    registries: BTreeMap<u64, Arc<RegistryState>>,
    /// Leaders of each term.
    leaders: BTreeMap<u64, BTreeSet<u64>>,
    verdict: Verdict,
}

impl Invariants {
    /// Returns whether all invariants hold.
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self) -> Result<(), String> {
        self.verdict.check()
    }

    pub(super) fn breaks(&mut self, why: String) {
        self.verdict.breaks(why);
    }

    /// Records that a node has applied these entries.
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

    /// Records that a node has this registry.
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

    /// Records a leader. The consensus library orders leaders by term and id, so one term may have
    /// several leaders, one after the other.
    pub(super) fn leads(&mut self, node: u64, term: u64) {
        self.leaders.entry(term).or_default().insert(node);
    }

    /// Returns the number of terms with a leader, and of those with more than one.
    pub(super) fn terms(&self) -> (u64, u64) {
        let shared = self.leaders.values().filter(|leaders| 1 < leaders.len());
        (self.leaders.len() as u64, shared.count() as u64)
    }

    pub(super) fn entries(&self) -> u64 {
        self.chosen.len() as u64
    }
}
