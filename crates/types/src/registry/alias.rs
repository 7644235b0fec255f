//! Aliases: names that split traffic over models and versions.
//!
//! The target of a request is a pure function of the alias and the request: weighted rendezvous
//! hashing of the request id or of the sticky header's value. All coordinators make the same
//! choice, and a change of weights moves the minimum number of requests.

use std::collections::BTreeSet;

use crate::error::PredictError;
use crate::ids::{ModelName, ModelRef, Revision};

/// Maximum number of targets of an alias.
pub const MAX_ALIAS_TARGETS: usize = 32;
/// Maximum weight of a target.
pub const MAX_ALIAS_WEIGHT: u32 = 1_000_000;
/// Maximum length of a sticky header's name in bytes.
pub const MAX_STICKY_HEADER: usize = 64;
/// Maximum length of a chain of names, such as an alias of an alias or a pipeline of aliases.
pub const MAX_NAME_DEPTH: usize = 8;

/// One target of an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasTarget {
    /// A model, a version of one, a pipeline, or another alias.
    pub model: ModelRef,
    /// Weight, whose share is relative to the sum of all weights; 0 keeps the target in the list
    /// without traffic.
    pub weight: u32,
}

/// The mirror of an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasMirror {
    /// The model that receives mirrored requests; its responses are discarded.
    pub model: ModelRef,
    /// Mirrored requests per thousand.
    pub permille: u32,
}

/// The definition of an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasSpec {
    /// The name, which is unique among models, aliases and pipelines.
    pub name: ModelName,
    /// Targets of requests; at least one has a weight above 0.
    pub targets: Vec<AliasTarget>,
    /// The mirror, if any.
    pub mirror: Option<AliasMirror>,
    /// Requests with the same value of this header go to the same target; in lower case.
    pub sticky_header: Option<String>,
    /// Description for users, one sentence.
    pub description: String,
}

/// An alias in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasEntry {
    /// The definition.
    pub spec: AliasSpec,
    /// Revision of the last write; a conditional write compares it.
    pub revision: Revision,
}

impl AliasSpec {
    /// Checks the definition without the rest of the registry.
    ///
    /// # Errors
    /// `InvalidInput`, naming the fault.
    pub fn check(&self) -> Result<(), PredictError> {
        let name = &self.name;
        if self.targets.is_empty() || MAX_ALIAS_TARGETS < self.targets.len() {
            return Err(PredictError::invalid(format!(
                "alias '{name}' must have 1 to {MAX_ALIAS_TARGETS} targets"
            )));
        }
        if let Some(target) = self.targets.iter().find(|it| MAX_ALIAS_WEIGHT < it.weight) {
            return Err(PredictError::invalid(format!(
                "the weight of target '{}' is over {MAX_ALIAS_WEIGHT}",
                target.model
            )));
        }
        if self.targets.iter().all(|target| target.weight == 0) {
            return Err(PredictError::invalid(format!(
                "alias '{name}' has no target with a weight; give at least one"
            )));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.targets.iter().find(|it| !seen.insert(&it.model)) {
            return Err(PredictError::invalid(format!(
                "target '{}' is listed twice; add up its weights",
                twice.model
            )));
        }
        if let Some(mirror) = &self.mirror
            && (mirror.permille == 0 || 1_000 < mirror.permille)
        {
            return Err(PredictError::invalid(
                "a mirror must get 1 to 1000 of a thousand requests; to disable it, leave it out",
            ));
        }
        self.sticky_header.as_deref().map_or(Ok(()), check_header)
    }

    /// All names in the targets and the mirror.
    pub fn names(&self) -> impl Iterator<Item = &ModelRef> {
        let targets = self.targets.iter().map(|target| &target.model);
        targets.chain(self.mirror.iter().map(|mirror| &mirror.model))
    }

    /// The target of a request. `key` is the hash of its id or of its sticky value. `None` if no
    /// target has a weight.
    #[must_use]
    pub fn choose(&self, key: u64) -> Option<&ModelRef> {
        let weighted = self.targets.iter().filter(|target| target.weight != 0);
        let scored = weighted.map(|target| {
            let place = hash(target.model.to_string().as_bytes()) ^ hash(self.name_bytes());
            (score(mix(key ^ place), target.weight), &target.model)
        });
        let best = scored.max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
        best.map(|(_, model)| model)
    }

    /// The mirror target if the request with this key is mirrored.
    #[must_use]
    pub fn mirrored(&self, key: u64) -> Option<&ModelRef> {
        let mirror = self.mirror.as_ref()?;
        let place = mix(mix(key ^ hash(self.name_bytes())) ^ hash(b"mirror"));
        (place % 1_000 < u64::from(mirror.permille)).then_some(&mirror.model)
    }

    fn name_bytes(&self) -> &[u8] {
        self.name.as_str().as_bytes()
    }
}

fn check_header(name: &str) -> Result<(), PredictError> {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if !name.is_empty() && name.len() <= MAX_STICKY_HEADER && name.bytes().all(plain) {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "the sticky header must be a header's name in lower case, of at most {MAX_STICKY_HEADER} \
         bytes"
    )))
}

/// The score of a target for a key that hashes to `hash` with it. The target with the largest score
/// wins, with a probability proportional to its weight (weighted rendezvous hashing, Schindelhauer
/// and Schomaker, 2005).
#[expect(
    clippy::cast_precision_loss,
    reason = "53 bits of a hash are spread well enough"
)]
fn score(hash: u64, weight: u32) -> f64 {
    // In (0, 1), because the logarithm must be finite and not zero.
    let unit = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -f64::from(weight) / unit.ln()
}

/// Stable hash for choices: identical in all processes and releases (FNV-1a, mixed).
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let folded = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(folded)
}

/// Spreads every bit over all (the finalizer of MurmurHash3).
fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests;
