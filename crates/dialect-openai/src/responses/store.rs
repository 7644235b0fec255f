//! Responses that are stored for later requests (`store`, `previous_response_id`), in the memory of
//! the coordinator that created them. Their age, number and size are limited, in total and for each
//! tenant. The coordinator's node id is part of a response's id, so that other coordinators can
//! find it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use futures::stream;
use parking_lot::Mutex;
use volley_types::{
    ErrorCode, EventPieces, NodeId, PredictError, ResumedStream, StreamId, StreamOwner,
    StreamSource, TenantId,
};

/// Memory of a response in bytes besides its text.
const ENTRY_BYTES: usize = 1 << 10;
/// Maximum size in bytes of a chunk that is sent to another coordinator.
const PIECE_BYTES: usize = 256 << 10;

/// Limits of stored responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponsesConfig {
    /// Time for which a response is stored.
    pub age: Duration,
    /// Maximum number of responses of one tenant.
    pub tenant_count: usize,
    /// Maximum size of one response with its conversation, in bytes.
    pub response_bytes: usize,
    /// Maximum size of the responses of one tenant, in bytes.
    pub tenant_bytes: usize,
    /// Maximum size of all responses, in bytes.
    pub total_bytes: usize,
}

impl Default for ResponsesConfig {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(3_600),
            tenant_count: 4_096,
            response_bytes: 4 << 20,
            tenant_bytes: 32 << 20,
            total_bytes: 128 << 20,
        }
    }
}

/// The stored responses of a coordinator. Clones share their state.
#[derive(Clone)]
pub struct Responses(Arc<Store>);

struct Store {
    node: NodeId,
    config: ResponsesConfig,
    held: Mutex<ResponseTable>,
}

#[derive(Default)]
struct ResponseTable {
    /// Ids in the order of their creation.
    ages: BTreeMap<u64, StreamId>,
    entries: HashMap<StreamId, Entry>,
    tenants: HashMap<TenantId, TenantUsage>,
    bytes: usize,
    next: u64,
}

#[derive(Clone, Copy, Default)]
struct TenantUsage {
    bytes: usize,
    count: usize,
}

struct Entry {
    owner: StreamOwner,
    text: Bytes,
    since: Instant,
    place: u64,
}

impl Entry {
    fn cost(&self) -> usize {
        self.text.len() + ENTRY_BYTES
    }
}

impl std::fmt::Debug for Responses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = self.0.held.lock();
        f.debug_struct("Responses")
            .field("count", &held.entries.len())
            .field("bytes", &held.bytes)
            .finish()
    }
}

impl Responses {
    /// Creates an empty store on `node`.
    #[must_use]
    pub fn new(node: NodeId, config: ResponsesConfig) -> Self {
        Self(Arc::new(Store {
            node,
            config,
            held: Mutex::default(),
        }))
    }

    pub(crate) fn node(&self) -> NodeId {
        self.0.node
    }

    /// Maximum size of one response in bytes.
    pub(crate) fn largest(&self) -> usize {
        self.0.config.response_bytes
    }

    /// An unguessable id for a response of this node.
    pub(crate) fn fresh_id(&self) -> Result<StreamId, PredictError> {
        let token = URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4().as_bytes());
        StreamId::new(self.0.node, token)
    }

    /// Stores a response. Removes the oldest responses of the tenant, then the oldest of all, until
    /// it fits. Returns false if the response is too large to be stored.
    pub(crate) fn keep(&self, id: StreamId, owner: StreamOwner, text: Bytes) -> bool {
        let config = &self.0.config;
        let cost = text.len() + ENTRY_BYTES;
        if config.response_bytes < text.len()
            || config.tenant_bytes.min(config.total_bytes) < cost
            || config.tenant_count == 0
        {
            return false;
        }
        let now = Instant::now();
        let mut held = self.0.held.lock();
        held.expire(now, config.age);
        held.remove(&id);
        let tenant = owner.tenant.clone();
        let used = |held: &ResponseTable| held.tenants.get(&tenant).copied().unwrap_or_default();
        while {
            let used = used(&held);
            config.tenant_bytes < used.bytes + cost || config.tenant_count <= used.count
        } {
            if !held.remove_oldest(Some(&tenant)) {
                break;
            }
        }
        while config.total_bytes < held.bytes + cost && held.remove_oldest(None) {}
        held.insert(id, owner, text, now);
        true
    }

    fn find(&self, id: &StreamId, caller: &str) -> Result<Bytes, PredictError> {
        let mut held = self.0.held.lock();
        held.expire(Instant::now(), self.0.config.age);
        let entry = held.entries.get(id);
        // A caller must not learn whether another caller's response exists.
        let entry = entry.filter(|entry| entry.owner.caller == caller);
        entry.map(|entry| entry.text.clone()).ok_or_else(gone)
    }

    fn forget(&self, id: &StreamId, caller: &str) -> Result<(), PredictError> {
        self.find(id, caller)?;
        self.0.held.lock().remove(id);
        Ok(())
    }
}

fn gone() -> PredictError {
    PredictError::new(ErrorCode::NotFound, "no stored response has this id")
}

impl ResponseTable {
    fn insert(&mut self, id: StreamId, owner: StreamOwner, text: Bytes, since: Instant) {
        let place = self.next;
        self.next += 1;
        let entry = Entry {
            owner,
            text,
            since,
            place,
        };
        self.bytes += entry.cost();
        let used = self.tenants.entry(entry.owner.tenant.clone()).or_default();
        used.bytes += entry.cost();
        used.count += 1;
        self.ages.insert(place, id.clone());
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: &StreamId) {
        let Some(entry) = self.entries.remove(id) else {
            return;
        };
        self.ages.remove(&entry.place);
        self.bytes -= entry.cost();
        if let Some(used) = self.tenants.get_mut(&entry.owner.tenant) {
            used.bytes -= entry.cost();
            used.count -= 1;
            if used.count == 0 {
                self.tenants.remove(&entry.owner.tenant);
            }
        }
    }

    /// Removes the oldest response, of one tenant or of all. Returns false if there is none.
    fn remove_oldest(&mut self, tenant: Option<&TenantId>) -> bool {
        let of = |id: &&StreamId| {
            let entry = self.entries.get(*id);
            tenant.is_none_or(|tenant| entry.is_some_and(|entry| entry.owner.tenant == *tenant))
        };
        let oldest = self.ages.values().find(of).cloned();
        if let Some(id) = &oldest {
            self.remove(id);
        }
        oldest.is_some()
    }

    fn expire(&mut self, now: Instant, age: Duration) {
        while let Some((_, id)) = self.ages.first_key_value() {
            let id = id.clone();
            let old = self.entries.get(&id);
            if old.is_some_and(|entry| now.saturating_duration_since(entry.since) < age) {
                return;
            }
            self.remove(&id);
        }
    }
}

#[async_trait]
impl StreamSource for Responses {
    async fn resume(
        &self,
        id: &StreamId,
        _: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError> {
        let mut text = self.find(id, caller)?;
        let mut pieces = Vec::new();
        while !text.is_empty() {
            let piece = text.split_to(text.len().min(PIECE_BYTES));
            pieces.push(Ok(piece));
        }
        let pieces: EventPieces = Box::pin(stream::iter(pieces));
        Ok(ResumedStream::Events(pieces))
    }

    async fn cancel(&self, id: &StreamId, caller: &str) -> Result<(), PredictError> {
        self.forget(id, caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(caller: &str, tenant: &str) -> StreamOwner {
        StreamOwner {
            caller: caller.to_owned(),
            tenant: TenantId::new(tenant).unwrap(),
        }
    }

    fn store(config: ResponsesConfig) -> Responses {
        Responses::new(NodeId(1), config)
    }

    #[test]
    fn a_response_is_its_owners_alone() {
        let store = store(ResponsesConfig::default());
        let id = store.fresh_id().unwrap();
        assert!(store.keep(id.clone(), owner("a", "t"), Bytes::from_static(b"{}")));
        assert_eq!(store.find(&id, "a").unwrap(), "{}");
        assert_eq!(store.find(&id, "b").unwrap_err().code, ErrorCode::NotFound);
        assert!(store.forget(&id, "b").is_err());
        store.forget(&id, "a").unwrap();
        assert!(store.find(&id, "a").is_err());
        assert_eq!(store.0.held.lock().bytes, 0);
    }

    #[test]
    fn what_is_held_is_bounded_in_number_bytes_and_age() {
        let few = store(ResponsesConfig {
            tenant_count: 2,
            ..ResponsesConfig::default()
        });
        let keep = |store: &Responses, tenant: &str, text: &'static str| {
            let id = store.fresh_id().unwrap();
            store.keep(
                id.clone(),
                owner(tenant, tenant),
                Bytes::from_static(text.as_bytes()),
            );
            id
        };
        let other = keep(&few, "u", "x");
        let all = [
            keep(&few, "t", "1"),
            keep(&few, "t", "2"),
            keep(&few, "t", "3"),
        ];
        assert!(
            few.find(&all[0], "t").is_err(),
            "the oldest of the tenant goes"
        );
        assert!(few.find(&all[1], "t").is_ok() && few.find(&all[2], "t").is_ok());
        assert!(few.find(&other, "u").is_ok(), "another tenant's stays");

        let small = store(ResponsesConfig {
            response_bytes: 4,
            total_bytes: 2 * ENTRY_BYTES + 4,
            ..ResponsesConfig::default()
        });
        let id = small.fresh_id().unwrap();
        assert!(!small.keep(id, owner("t", "t"), Bytes::from_static(b"12345")));
        let all = [
            keep(&small, "t", "1"),
            keep(&small, "u", "2"),
            keep(&small, "v", "3"),
        ];
        assert!(small.find(&all[0], "t").is_err() && small.find(&all[2], "v").is_ok());
        assert!(small.0.held.lock().bytes <= 2 * ENTRY_BYTES + 4);

        let brief = store(ResponsesConfig {
            age: Duration::ZERO,
            ..ResponsesConfig::default()
        });
        let id = keep(&brief, "t", "1");
        assert!(brief.find(&id, "t").is_err());
    }
}
