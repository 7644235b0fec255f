//! What the registry promises its writers, checked over everything that they saw.
//!
//! Every write registers the next version of a model with a payload of its own. So a model is a
//! list that only grows, and a version is a place in it: the order of all acknowledged writes is
//! known, and linearizability (Herlihy & Wing, 1990) needs no search. It holds when
//!
//! - each acknowledged write stands at its version in the end, on every coordinator;
//! - no payload stands at two versions, and none that was refused stands anywhere;
//! - a write that began after another had returned has the higher version.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged with this version.
    Acked(u32),
    /// Refused for certain: it must never be seen.
    Refused,
    /// No answer, or one that leaves open whether it was applied.
    Unknown,
}

/// One write as its client saw it. Times are since the run began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The model.
    pub model: String,
    /// What only this write registers.
    pub payload: String,
    /// When it was sent.
    pub sent: Duration,
    /// When it ended.
    pub ended: Duration,
    /// How.
    pub outcome: Outcome,
}

/// Payloads by model and version, as one coordinator shows them in the end.
pub type Registry = BTreeMap<String, BTreeMap<u32, String>>;

/// What was violated, in words; empty when all held.
#[must_use]
pub fn check(writes: &[Write], coordinators: &[Registry]) -> Vec<String> {
    let mut violations = Vec::new();
    for (index, registry) in coordinators.iter().enumerate() {
        let at = format!("at coordinator {}", index + 1);
        violations.extend(lost(writes, registry).map(|what| format!("{what} {at}")));
        violations.extend(unwanted(writes, registry).map(|what| format!("{what} {at}")));
    }
    if let Some((first, others)) = coordinators.split_first() {
        let differ = others.iter().any(|other| other != first);
        violations.extend(differ.then(|| "the coordinators do not agree".to_owned()));
    }
    violations.extend(disorder(writes));
    violations
}

fn lost(writes: &[Write], registry: &Registry) -> impl Iterator<Item = String> {
    writes.iter().filter_map(|write| {
        let Outcome::Acked(version) = write.outcome else {
            return None;
        };
        let found = registry
            .get(&write.model)
            .and_then(|model| model.get(&version));
        (found != Some(&write.payload)).then(|| {
            format!(
                "lost: {} was acknowledged as {}:{version}, and there is {found:?}",
                write.payload, write.model
            )
        })
    })
}

fn unwanted(writes: &[Write], registry: &Registry) -> impl Iterator<Item = String> {
    let sent: HashMap<_, _> = writes
        .iter()
        .map(|write| (write.payload.as_str(), write))
        .collect();
    let mut seen = HashSet::new();
    let mut violations = Vec::new();
    for (model, versions) in registry {
        for (version, payload) in versions {
            let place = format!("{payload} stands at {model}:{version}");
            match sent.get(payload.as_str()) {
                None => violations.push(format!("phantom: {place}, and nobody wrote it")),
                Some(write) if write.outcome == Outcome::Refused => {
                    violations.push(format!("refused and applied: {place}"));
                }
                Some(write) if write.model != *model => {
                    violations.push(format!("misplaced: {place}"));
                }
                Some(_) => {}
            }
            if !seen.insert(payload) {
                violations.push(format!("applied twice: {place}"));
            }
        }
    }
    violations.into_iter()
}

/// Writes whose versions are not in the order of real time.
fn disorder(writes: &[Write]) -> Vec<String> {
    let mut models: BTreeMap<&str, Vec<(&Write, u32)>> = BTreeMap::new();
    for write in writes {
        if let Outcome::Acked(version) = write.outcome {
            let model = models.entry(&write.model).or_default();
            model.push((write, version));
        }
    }
    models.into_values().flat_map(disorder_in).collect()
}

fn disorder_in(acked: Vec<(&Write, u32)>) -> Vec<String> {
    let (mut by_start, mut by_end) = (acked.clone(), acked);
    by_start.sort_by_key(|(write, _)| write.sent);
    by_end.sort_by_key(|(write, _)| write.ended);
    let mut ended = by_end.into_iter().peekable();
    let mut highest: Option<(&Write, u32)> = None;
    let mut violations = Vec::new();
    for (write, version) in by_start {
        while let Some(before) = ended.next_if(|(before, _)| before.ended < write.sent) {
            highest = highest.max_by_version(before);
        }
        if let Some((before, earlier)) = highest
            && version <= earlier
        {
            violations.push(format!(
                "out of order: {} became version {version} after {} had become {earlier}",
                write.payload, before.payload
            ));
        }
    }
    violations
}

trait MaxByVersion<'a> {
    fn max_by_version(self, other: (&'a Write, u32)) -> Self;
}

impl<'a> MaxByVersion<'a> for Option<(&'a Write, u32)> {
    fn max_by_version(self, other: (&'a Write, u32)) -> Self {
        match self {
            Some(kept) if other.1 <= kept.1 => Some(kept),
            _ => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(payload: &str, sent: u64, ended: u64, outcome: Outcome) -> Write {
        Write {
            model: "m".to_owned(),
            payload: payload.to_owned(),
            sent: Duration::from_millis(sent),
            ended: Duration::from_millis(ended),
            outcome,
        }
    }

    fn registry(payloads: &[(u32, &str)]) -> Registry {
        let versions = payloads
            .iter()
            .map(|(version, payload)| (*version, (*payload).to_owned()));
        [("m".to_owned(), versions.collect())].into()
    }

    #[test]
    fn a_good_history_passes() {
        let writes = [
            write("a", 0, 10, Outcome::Acked(1)),
            // Both at once: either order is good.
            write("b", 20, 40, Outcome::Acked(3)),
            write("c", 21, 41, Outcome::Acked(2)),
            // Nobody knows, and it was applied; another, and it was not.
            write("d", 50, 60, Outcome::Unknown),
            write("e", 50, 60, Outcome::Unknown),
            write("f", 50, 60, Outcome::Refused),
            write("g", 70, 80, Outcome::Acked(5)),
        ];
        let end = registry(&[(1, "a"), (2, "c"), (3, "b"), (4, "d"), (5, "g")]);
        assert_eq!(check(&writes, &[end.clone(), end]), [""; 0]);
    }

    #[test]
    fn each_violation_is_found() {
        let acked = [
            write("a", 0, 10, Outcome::Acked(1)),
            write("b", 20, 30, Outcome::Acked(2)),
        ];
        let refused = [acked[0].clone(), write("b", 20, 30, Outcome::Refused)];
        let backwards = [
            write("a", 0, 10, Outcome::Acked(2)),
            write("b", 20, 30, Outcome::Acked(1)),
        ];
        let both = &[(1, "a"), (2, "b")][..];
        for (writes, end, word) in [
            (&acked, &[(1, "a")][..], "lost"),
            (&acked, &[(1, "b"), (2, "a")], "lost"),
            (&acked, &[(1, "a"), (2, "b"), (3, "b")], "twice"),
            (&acked, &[(1, "a"), (2, "b"), (3, "x")], "phantom"),
            (&refused, both, "refused and applied"),
            (&backwards, &[(2, "a"), (1, "b")], "out of order"),
        ] {
            let found = check(writes, &[registry(end)]);
            assert!(
                found.iter().any(|violation| violation.contains(word)),
                "{word}: {found:?}"
            );
        }
        let found = check(&acked, &[registry(both), registry(&both[..1])]);
        assert!(found.iter().any(|violation| violation.contains("agree")));
    }
}
