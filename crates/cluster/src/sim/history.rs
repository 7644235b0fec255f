//! Operations of the users, and the check of their results: operations on the registry are
//! linearizable, and no acknowledged write is lost.

use std::collections::BTreeMap;

use tokio::time::Instant;
use volley_types::registry::RegistryState;
use volley_types::{ModelName, ModelVersion, Revision};

/// Result of a write for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// The registry has this version at this revision.
    Acknowledged(ModelVersion, Revision),
    /// The error states that nothing changed.
    Refused,
    /// The write may have taken effect, or may still.
    Unknown,
}

/// Registration of a version with a unique description.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) model: ModelName,
    pub(super) mark: String,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) outcome: WriteOutcome,
}

/// A read of the registry at a leader that had confirmed its leadership.
#[derive(Debug)]
pub(super) struct RegistryRead {
    pub(super) node: u64,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) revision: Revision,
}

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<RegistryRead>,
}

impl History {
    pub(super) fn count(&self, is_meant: impl Fn(&WriteOutcome) -> bool) -> u64 {
        let meant = self.writes.iter().filter(|write| is_meant(&write.outcome));
        meant.count() as u64
    }

    /// Compares all operations with the final registry.
    ///
    /// # Errors
    /// A description of the first violation.
    pub(super) fn check(&self, end: &RegistryState) -> Result<(), String> {
        let mut stands: BTreeMap<&str, Vec<(&ModelName, ModelVersion)>> = BTreeMap::new();
        for entry in end.models.values() {
            for (version, spec) in &entry.versions {
                let places = stands.entry(spec.description.as_str()).or_default();
                places.push((&entry.name, *version));
            }
        }
        for write in &self.writes {
            let places = stands.remove(write.mark.as_str()).unwrap_or_default();
            let right = match write.outcome {
                WriteOutcome::Acknowledged(version, _) => places == [(&write.model, version)],
                WriteOutcome::Refused => places.is_empty(),
                WriteOutcome::Unknown => places.len() <= 1,
            };
            if !right {
                return Err(format!("{write:?} stands at {places:?}"));
            }
        }
        if let Some(nobody) = stands.keys().next() {
            return Err(format!("nobody wrote '{nobody}'"));
        }
        self.check_order()
    }

    /// Checks that each operation takes effect between its beginning and its end. Revisions define
    /// the order.
    fn check_order(&self) -> Result<(), String> {
        let mut begins: Vec<_> = self.operations().collect();
        let mut ends = begins.clone();
        begins.sort_by_key(|operation| operation.began);
        ends.sort_by_key(|operation| operation.ended);
        let (mut ends, mut floor) = (ends.iter().peekable(), Revision(0));
        let mut last = String::new();
        for operation in begins {
            while let Some(ended) = ends.next_if(|ended| ended.ended < operation.began) {
                if floor < ended.revision {
                    floor = ended.revision;
                    last.clone_from(&ended.what);
                }
            }
            let (what, revision) = (operation.what, operation.revision);
            if revision < floor || (operation.is_write && revision == floor) {
                return Err(format!(
                    "the {what} is of {revision:?}; the {last} had ended before it began and is \
                     of {floor:?}"
                ));
            }
        }
        Ok(())
    }

    fn operations(&self) -> impl Iterator<Item = Operation> {
        let writes = self.writes.iter().filter_map(|write| match write.outcome {
            WriteOutcome::Acknowledged(_, revision) => Some(Operation {
                what: format!("write of '{}'", write.mark),
                began: write.began,
                ended: write.ended,
                revision,
                is_write: true,
            }),
            WriteOutcome::Refused | WriteOutcome::Unknown => None,
        });
        let reads = self.reads.iter().map(|read| Operation {
            what: format!("read at {}", read.node),
            began: read.began,
            ended: read.ended,
            revision: read.revision,
            is_write: false,
        });
        writes.chain(reads)
    }
}

/// An operation that took effect.
#[derive(Clone)]
struct Operation {
    what: String,
    began: Instant,
    ended: Instant,
    revision: Revision,
    is_write: bool,
}
