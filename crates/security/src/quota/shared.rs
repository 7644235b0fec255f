//! Usage of keys on other coordinators. Each coordinator reports the usage of its own callers, and
//! charges reported usage as its own. A key's limits thus apply to all coordinators together,
//! except for requests that are not reported yet.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_types::{KeyId, NodeId};

use super::QuotaTracker;

/// Time without reports after which a coordinator's running predictions do not count any more.
const SILENCE: Duration = Duration::from_secs(3);
/// The most keys of one report; the others come with the next.
pub const MAX_REPORTED: usize = 4_096;
/// The most keys that are remembered of one coordinator.
pub const MAX_HEARD: usize = 65_536;

/// Usage of one key on a coordinator since it started counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Predictions that began.
    pub requests: u64,
    /// Tokens that were charged.
    pub tokens: u64,
    /// Predictions that run now.
    pub streams: u32,
    /// The limits that it was counted under; 0 for none.
    pub requests_per_minute: u32,
    /// As for requests.
    pub tokens_per_minute: u32,
}

/// Usage report of a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The reporting coordinator.
    pub node: NodeId,
    /// Its run of reports.
    pub session: u64,
    /// Whether the counts begin here: they were used before anybody listened.
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
    /// Into how many shares limits are cut while this coordinator is alone; 0 as 1.
    shares: AtomicU32,
}

#[derive(Debug)]
struct Peer {
    session: u64,
    heard: Instant,
    keys: HashMap<KeyId, KeyUse>,
}

impl PeerUsage {
    /// How many predictions of `key` run at the others.
    pub(super) fn streams(&self, key: &KeyId, now: Instant) -> u32 {
        let peers = self.peers.lock();
        let alive = peers.values().filter(|peer| !peer.is_silent(now));
        let streams = alive.filter_map(|peer| Some(peer.keys.get(key)?.streams));
        streams.fold(0, u32::saturating_add)
    }

    /// The current local value of `limit`.
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
    /// What was used here, of at most so many keys whose figures differ from those in `told`; what
    /// is not counted any more goes out of that.
    #[must_use]
    pub fn news(&self, told: &mut HashMap<KeyId, KeyUse>, most: usize) -> Vec<(KeyId, KeyUse)> {
        let all = self.0.own_use();
        told.retain(|key, _| all.contains_key(key));
        let changed = |(key, used): &(KeyId, KeyUse)| told.get(key) != Some(used);
        all.into_iter().filter(changed).take(most).collect()
    }

    /// Sets whether this coordinator receives no reports. If so, it allows each key a share: its
    /// limit divided by `members`.
    pub fn set_alone(&self, alone: bool, members: usize) {
        let shares = match alone {
            true => u32::try_from(members).unwrap_or(u32::MAX),
            false => 1,
        };
        self.0.others().shares.store(shares, Ordering::Relaxed);
    }

    /// Applies a report of another coordinator. Returns whether its session is known; an unknown
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
            // A smaller count means that the coordinator restarted.
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

    /// Forgets coordinators that are no members any more.
    pub fn keep_only(&self, members: &[NodeId]) {
        let others = self.0.others();
        others.peers.lock().retain(|node, _| members.contains(node));
    }
}

#[cfg(test)]
mod tests;
