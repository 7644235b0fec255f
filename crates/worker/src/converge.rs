//! Difference between current and assigned replicas. Pure.

use volley_types::registry::Assignment;

/// The loads and unloads to start.
#[derive(Debug, PartialEq)]
pub(crate) struct Actions {
    /// Replicas to load.
    pub(crate) load: Vec<Assignment>,
    /// Replicas to drain and unload.
    pub(crate) unload: Vec<Assignment>,
}

/// Compares complete assignments: a model that was deleted and registered again under the same name
/// and version is a different one.
pub(crate) fn converge(held: &[Assignment], wanted: &[Assignment]) -> Actions {
    let missing = |from: &[Assignment], these: &[Assignment]| {
        these
            .iter()
            .filter(|assignment| !from.contains(assignment))
            .cloned()
            .collect()
    };
    Actions {
        load: missing(held, wanted),
        unload: missing(wanted, held),
    }
}

#[cfg(test)]
mod tests {
    use volley_types::registry::{BackendName, ModelSource, ModelVersionSpec};
    use volley_types::{ModelName, ModelVersion, Parameters};

    use super::*;

    fn assignment(model: &str, version: u32, created_ms: u64) -> Assignment {
        Assignment {
            model: ModelName::new(model).unwrap(),
            spec: ModelVersionSpec {
                version: ModelVersion(version),
                backend: BackendName::TEXT,
                source: ModelSource::None,
                parameters: Parameters::default(),
                description: String::new(),
                created_ms,
            },
            connector: None,
        }
    }

    #[test]
    fn what_is_new_is_loaded_what_is_gone_is_unloaded_and_the_rest_stays() {
        let (a1, a2, b1) = (
            assignment("a", 1, 0),
            assignment("a", 2, 0),
            assignment("b", 1, 0),
        );
        let actions = converge(&[a1.clone(), b1.clone()], &[a2.clone(), b1.clone()]);
        assert_eq!(
            actions,
            Actions {
                load: vec![a2],
                unload: vec![a1]
            }
        );
        let anew = assignment("b", 1, 7);
        let actions = converge(std::slice::from_ref(&b1), std::slice::from_ref(&anew));
        assert_eq!(
            actions,
            Actions {
                load: vec![anew],
                unload: vec![b1]
            }
        );
    }
}
