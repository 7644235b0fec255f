//! Usage of keys on other coordinators. Each coordinator reports the usage of its own callers and
//! charges reported usage as its own. The limits of a key thus apply to all coordinators together,
//! except for requests that are not reported yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_types::{KeyId, NodeId};

use super::QuotaTracker;

/// Time without a report after which the running predictions of a coordinator no longer count.
const SILENCE: Duration = Duration::from_secs(3);
/// Maximum number of keys in one report; the rest follow in the next report.
pub const MAX_REPORTED: usize = 4_096;
/// Maximum number of keys that are remembered for one coordinator.
pub const MAX_HEARD: usize = 65_536;

/// Usage of one key on a coordinator since it started counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Predictions that were started.
    pub requests: u64,
    /// Tokens that were charged.
    pub tokens: u64,
    /// Predictions that are running.
    pub streams: u32,
    /// The limit of requests in effect; 0 for none.
    pub requests_per_minute: u32,
    /// The limit of tokens in effect; 0 for none.
    pub tokens_per_minute: u32,
}

/// Usage report of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The reporting coordinator.
    pub node: NodeId,
    /// The sequence of reports that this one belongs to.
    pub session: u64,
    /// Whether this is the first report of a session. Its counts are a baseline and are not
    /// charged.
    pub first: bool,
    /// Changes since the last report.
    pub keys: Vec<(KeyId, KeyUse)>,
}

/// Usage of keys on all coordinators. Clones share their state.
#[derive(Clone, Debug)]
pub struct Usage(pub(crate) QuotaTracker);

/// State of the other coordinators.
#[derive(Debug, Default)]
pub(super) struct PeerUsage {
    peers: Mutex<HashMap<NodeId, Peer>>,
    /// Divisor of the limits while this coordinator is alone; 0 means 1.
    shares: AtomicU32,
}

#[derive(Debug)]
struct Peer {
    session: u64,
    heard: Instant,
    keys: HashMap<KeyId, KeyUse>,
}

impl PeerUsage {
    /// The number of predictions of `key` that run on other coordinators.
    pub(super) fn streams(&self, key: &KeyId, now: Instant) -> u32 {
        let peers = self.peers.lock();
        let alive = peers.values().filter(|peer| !peer.is_silent(now));
        let streams = alive.filter_map(|peer| Some(peer.keys.get(key)?.streams));
        streams.fold(0, u32::saturating_add)
    }

    /// The part of `limit` that this coordinator may use now.
    pub(super) fn share(&self, limit: u32) -> u32 {
        limit.div_ceil(self.shares.load(Ordering::Relaxed).max(1))
    }
}

impl Peer {
    fn is_silent(&self, now: Instant) -> bool {
        SILENCE < now.saturating_duration_since(self.heard)
    }
}

impl Usage {
    /// The usage on this node of at most `most` keys whose values differ from `told`, the values
    /// that were reported before. Removes keys from `told` that are no longer counted.
    #[must_use]
    pub fn news(&self, told: &mut HashMap<KeyId, KeyUse>, most: usize) -> Vec<(KeyId, KeyUse)> {
        let all = self.0.own_use();
        told.retain(|key, _| all.contains_key(key));
        let changed = |(key, used): &(KeyId, KeyUse)| told.get(key) != Some(used);
        all.into_iter().filter(changed).take(most).collect()
    }

    /// Sets whether this coordinator receives no reports. While it does not, each key may use its
    /// limit divided by `members`.
    pub fn set_alone(&self, alone: bool, members: usize) {
        let shares = match alone {
            true => u32::try_from(members).unwrap_or(u32::MAX),
            false => 1,
        };
        self.0.others().shares.store(shares, Ordering::Relaxed);
    }

    /// Applies a report of another coordinator. Returns whether its session is known. An unknown
    /// session must start with a first report.
    #[must_use]
    pub fn hear(&self, report: Report, now: Instant) -> bool {
        let others = self.0.others();
        let mut peers = others.peers.lock();
        if report.first {
            let peer = Peer {
                session: report.session,
                heard: now,
                keys: report.keys.into_iter().take(MAX_HEARD).collect(),
            };
            peers.insert(report.node, peer);
            return true;
        }
        let known = peers.get_mut(&report.node);
        let Some(peer) = known.filter(|peer| peer.session == report.session) else {
            return false;
        };
        peer.heard = now;
        let mut charges = Vec::with_capacity(report.keys.len());
        for (key, used) in report.keys {
            let before = peer.keys.get(&key).copied().unwrap_or_default();
            // A smaller count means that the coordinator has restarted.
            let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            let more = KeyUse {
                requests: grown(used.requests, before.requests),
                tokens: grown(used.tokens, before.tokens),
                ..used
            };
            if peer.keys.len() < MAX_HEARD || peer.keys.contains_key(&key) {
                peer.keys.insert(key.clone(), used);
            }
            charges.push((key, more));
        }
        drop(peers);
        for (key, more) in charges {
            self.0.charge(&key, more, now);
        }
        true
    }

    /// Removes coordinators that are no longer members.
    pub fn keep_only(&self, members: &[NodeId]) {
        let others = self.0.others();
        others.peers.lock().retain(|node, _| members.contains(node));
    }
}

#[cfg(test)]
mod tests;
