//! Resolution of names: models, aliases and pipelines.

use std::collections::BTreeMap;

use super::{MAX_NAME_DEPTH, RegistryState};
use crate::error::{ErrorCode, PredictError};
use crate::ids::{ModelName, ModelRef};

impl RegistryState {
    /// Whether a model, alias or pipeline has this name.
    #[must_use]
    pub fn has_name(&self, name: &ModelName) -> bool {
        self.models.contains_key(name) || self.stands_for_others(name)
    }

    /// Whether the name is an alias or a pipeline.
    #[must_use]
    pub fn stands_for_others(&self, name: &ModelName) -> bool {
        self.aliases.contains_key(name) || self.pipelines.contains_key(name)
    }

    /// The object that refers to `name`, formatted for an error: `alias 'chat'`.
    #[must_use]
    pub fn user_of(&self, name: &ModelName) -> Option<String> {
        let aliases = self.aliases.values().map(|entry| &entry.spec);
        let alias = aliases
            .filter(|spec| spec.names().any(|reference| reference.name == *name))
            .map(|spec| &spec.name)
            .next();
        let pipelines = self.pipelines.values().map(|entry| &entry.spec);
        let pipeline = pipelines
            .filter(|spec| spec.names().any(|reference| reference.name == *name))
            .map(|spec| &spec.name)
            .next();
        let alias = alias.map(|alias| format!("alias '{alias}'"));
        alias.or_else(|| pipeline.map(|pipeline| format!("pipeline '{pipeline}'")))
    }

    /// Checks the references of `name`: each target exists, none leads back to `name`, and no chain
    /// of names is longer than [`MAX_NAME_DEPTH`].
    ///
    /// # Errors
    /// `NotFound`, `Conflict` or `InvalidInput`, naming the reference.
    pub fn check_names<'a>(
        &'a self,
        name: &'a ModelName,
        leads_to: impl Iterator<Item = &'a ModelRef>,
    ) -> Result<(), PredictError> {
        let references: Vec<_> = leads_to.collect();
        for reference in &references {
            if reference.name == *name {
                return Err(leads_back(name));
            }
            self.check_reference(reference)?;
        }
        let next = |name: &ModelName| -> Vec<&'a ModelName> {
            let entry = self.aliases.get(name);
            let names = entry.into_iter().flat_map(|entry| entry.spec.names());
            let pipeline = self.pipelines.get(name);
            let steps = pipeline.into_iter().flat_map(|entry| entry.spec.names());
            names
                .chain(steps)
                .map(|reference| &reference.name)
                .collect()
        };
        let all = self.aliases.keys().chain(self.pipelines.keys());
        let mut graph: BTreeMap<&ModelName, Vec<&ModelName>> =
            all.map(|name| (name, next(name))).collect();
        let named = references.iter().map(|reference| &reference.name);
        graph.insert(name, named.collect());
        let mut depths = BTreeMap::new();
        for start in graph.keys() {
            let depth = depth(start, &graph, &mut depths).ok_or_else(|| leads_back(name))?;
            if MAX_NAME_DEPTH < depth {
                return Err(PredictError::invalid(format!(
                    "'{start}' would be a chain of more than {MAX_NAME_DEPTH} names"
                )));
            }
        }
        Ok(())
    }

    fn check_reference(&self, reference: &ModelRef) -> Result<(), PredictError> {
        let there = match (self.models.get(&reference.name), reference.version) {
            (Some(_), None) => true,
            (Some(entry), Some(version)) => entry.versions.contains_key(&version),
            (None, None) => self.has_name(&reference.name),
            (None, Some(_)) if self.has_name(&reference.name) => {
                return Err(no_versions(&reference.name));
            }
            (None, Some(_)) => false,
        };
        if there {
            return Ok(());
        }
        let message = format!("'{reference}' is not registered");
        Err(PredictError::new(ErrorCode::NotFound, message))
    }
}

type Graph<'a> = BTreeMap<&'a ModelName, Vec<&'a ModelName>>;

/// Length of the longest chain of names from `from`, without the model at its end; `None` for a
/// cycle. `known` has `None` for names on the current path.
fn depth<'a>(
    from: &'a ModelName,
    graph: &Graph<'a>,
    known: &mut BTreeMap<&'a ModelName, Option<usize>>,
) -> Option<usize> {
    if let Some(found) = known.get(from) {
        return *found;
    }
    let Some(next) = graph.get(from) else {
        return Some(0);
    };
    known.insert(from, None);
    let mut deepest = 0;
    for name in next {
        deepest = deepest.max(depth(name, graph, known)?);
    }
    known.insert(from, Some(deepest + 1));
    Some(deepest + 1)
}

fn leads_back(name: &ModelName) -> PredictError {
    let message = format!("'{name}' would lead back to itself");
    PredictError::new(ErrorCode::Conflict, message)
}

/// The error for a request with a version of an alias or a pipeline.
#[must_use]
pub fn no_versions(name: &ModelName) -> PredictError {
    let message = format!("'{name}' is not a model and has no versions; leave the version out");
    PredictError::new(ErrorCode::NotFound, message)
}
