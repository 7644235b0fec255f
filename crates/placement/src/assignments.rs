//! Index of assignments by worker. It is updated with the changes of the registry, so that the cost
//! of a write depends on its changes and not on the size of the registry.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use volley_types::registry::{Assignment, ModelEntry, RegistryState};
use volley_types::{ModelName, Revision, SecretName, WorkerId};

/// The models of each worker as of one revision.
#[derive(Debug, Default)]
pub struct AssignmentIndex {
    state: Arc<RegistryState>,
    pages: HashMap<WorkerId, Page>,
}

#[derive(Debug, Default)]
struct Page {
    models: BTreeSet<ModelName>,
    /// Revision of the last change.
    changed: Revision,
}

impl AssignmentIndex {
    /// Returns the revision of the indexed registry.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.state.revision
    }

    /// Returns the revision at which the assignments of a worker changed last.
    #[must_use]
    pub fn changed(&self, worker: &WorkerId) -> Revision {
        self.pages
            .get(worker)
            .map_or(Revision::default(), |page| page.changed)
    }

    /// Updates the index to `state`. Returns the workers whose assignments changed.
    pub fn turn_to(&mut self, state: &Arc<RegistryState>) -> Vec<WorkerId> {
        if Arc::ptr_eq(&self.state, state) {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.state, state.clone());
        let mut touched = BTreeSet::new();
        for (name, old, new) in differences(&before, state) {
            for worker in old.into_iter().flat_map(ModelEntry::holders) {
                self.pages
                    .entry(worker.clone())
                    .or_default()
                    .models
                    .remove(name);
                touched.insert(worker.clone());
            }
            for worker in new.into_iter().flat_map(ModelEntry::holders) {
                let page = self.pages.entry(worker.clone()).or_default();
                page.models.insert(name.clone());
                touched.insert(worker.clone());
            }
        }
        touched.extend(holders_of_changed_secrets(&before, state));
        for worker in &touched {
            if let Some(page) = self.pages.get_mut(worker) {
                page.changed = state.revision;
            }
        }
        touched.into_iter().collect()
    }

    /// Returns the assignments of a worker.
    #[must_use]
    pub fn assignments(&self, worker: &WorkerId) -> Vec<Assignment> {
        let entries = self.entries(worker);
        let placed = entries.flat_map(|entry| {
            let versions = entry.placed(worker);
            versions.filter_map(|version| self.state.assignment(entry, version))
        });
        placed.collect()
    }

    /// Returns the assigned models that may be evicted while they are idle.
    #[must_use]
    pub fn overcommitted(&self, worker: &WorkerId) -> BTreeSet<ModelName> {
        let overcommitted = self.entries(worker).filter(|entry| {
            let deployment = entry.deployment.as_ref();
            deployment.is_some_and(|deployment| deployment.overcommit)
        });
        overcommitted.map(|entry| entry.name.clone()).collect()
    }

    fn entries<'a>(&'a self, worker: &WorkerId) -> impl Iterator<Item = &'a ModelEntry> + use<'a> {
        let models = self.pages.get(worker).map(|page| &page.models);
        let models = models.into_iter().flatten();
        models.filter_map(|model| self.state.models.get(model).map(|entry| &**entry))
    }
}

/// Returns the workers of models that use a changed secret.
fn holders_of_changed_secrets(before: &RegistryState, state: &RegistryState) -> Vec<WorkerId> {
    if Arc::ptr_eq(&before.secrets, &state.secrets) {
        return Vec::new();
    }
    let is_other = |name: &SecretName| before.secrets.get(name) != state.secrets.get(name);
    let models = state.models.values();
    let concerned = models.filter(|model| state.names_secret(model, is_other));
    concerned
        .flat_map(|model| model.holders().cloned())
        .collect()
}

type Difference<'a> = (
    &'a ModelName,
    Option<&'a ModelEntry>,
    Option<&'a ModelEntry>,
);

/// Returns the models that differ. It compares pointers only, because the states share unchanged
/// entries.
pub(crate) fn differences<'a>(
    old: &'a RegistryState,
    new: &'a RegistryState,
) -> Vec<Difference<'a>> {
    let mut found = Vec::new();
    let (mut before, mut after) = (old.models.iter().peekable(), new.models.iter().peekable());
    loop {
        match (before.peek(), after.peek()) {
            (Some((left, was)), Some((right, is))) if left == right => {
                if !Arc::ptr_eq(was, is) {
                    found.push((*left, Some(&***was), Some(&***is)));
                }
                before.next();
                after.next();
            }
            (Some((left, was)), Some((right, _))) if left < right => {
                found.push((*left, Some(&***was), None));
                before.next();
            }
            (Some((left, was)), None) => {
                found.push((*left, Some(&***was), None));
                before.next();
            }
            (_, Some((right, is))) => {
                found.push((*right, None, Some(&***is)));
                after.next();
            }
            (None, None) => return found,
        }
    }
}
