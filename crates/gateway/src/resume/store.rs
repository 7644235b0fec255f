//! All buffered streams of this node, their memory limits, and the tasks that fill them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;
use volley_types::{
    ErrorCode, NodeId, PredictError, ResumedStream, StreamId, StreamOwner, StreamSource, TenantId,
};

use super::buffered_stream::{BufferedStream, StreamEnd, gone, total};
use crate::gateway_config::ResumeConfig;

/// Memory of a stream besides its events.
const STREAM_BYTES: usize = 2 << 10;
/// Share of a limit that is freed at once when the limit is reached (its inverse).
const SQUEEZE: usize = 16;
/// Interval of the checks for readers and for freed memory.
const LOOK: Duration = Duration::from_millis(50);

/// The resumable streams of a coordinator. Clones share their state.
#[derive(Clone)]
pub struct Streams(Arc<Store>);

/// Counters of resumable streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumeCounts {
    /// Buffered streams, including ended ones.
    pub streams: usize,
    /// Their memory in bytes.
    pub bytes: usize,
    /// Number of resumes.
    pub resumed: u64,
    /// Streams that were cancelled before their end because no client resumed them.
    pub abandoned: u64,
}

/// Used memory, in total and by tenant.
#[derive(Default)]
struct StoredBytes {
    total: usize,
    tenants: HashMap<TenantId, usize>,
}

struct Store {
    node: NodeId,
    config: ResumeConfig,
    streams: Mutex<HashMap<StreamId, Arc<BufferedStream>>>,
    used: Mutex<StoredBytes>,
    freed: Notify,
    resumed: AtomicU64,
    abandoned: AtomicU64,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Streams {
    /// Creates an empty store on `node`.
    #[must_use]
    pub fn new(node: NodeId, config: ResumeConfig) -> Self {
        Self(Arc::new(Store {
            node,
            config,
            streams: Mutex::default(),
            used: Mutex::default(),
            freed: Notify::new(),
            resumed: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }))
    }

    /// Current counts and totals.
    #[must_use]
    pub fn counts(&self) -> ResumeCounts {
        ResumeCounts {
            streams: self.0.streams.lock().len(),
            bytes: self.0.used.lock().total,
            resumed: self.0.resumed.load(Ordering::Relaxed),
            abandoned: self.0.abandoned.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.0.node
    }

    /// Returns a guard that ends all streams when it is dropped.
    pub(crate) fn end_guard(&self) -> DropGuard {
        self.0.stop.clone().drop_guard()
    }

    /// Lets streams with readers continue until `timeout`; then ends all.
    pub(crate) async fn drain(&self, timeout: Duration) {
        let by = tokio::time::Instant::now() + timeout;
        let in_use = || self.0.streams.lock().values().any(|held| held.in_use());
        while in_use() && tokio::time::Instant::now() < by {
            tokio::time::sleep(LOOK).await;
        }
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// Buffers the events of `pieces`, each of which has complete events, for `owner`. A task in
    /// `span` polls `pieces` until their end, or until no client has read for the window.
    ///
    /// # Errors
    /// `Overloaded` if the memory limits are reached, or if the node is stopping.
    pub(super) fn keep(
        &self,
        owner: StreamOwner,
        pieces: impl Stream<Item = Bytes> + Send + 'static,
        span: tracing::Span,
    ) -> Result<StreamId, PredictError> {
        let store = &self.0;
        if store.stop.is_cancelled() || !store.reserve(&owner.tenant, STREAM_BYTES) {
            return Err(PredictError::new(
                ErrorCode::Overloaded,
                "this node has its limit of resumable streams; try again, or request a plain \
                 stream",
            )
            .with_retry_after(Duration::from_secs(1)));
        }
        let token = URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4().as_bytes());
        let id = StreamId::new(store.node, token)?;
        let held = Arc::new(BufferedStream::new(
            id.clone(),
            owner,
            store.config.stream_bytes,
            STREAM_BYTES,
        ));
        store.streams.lock().insert(id.clone(), held.clone());
        let keeping = BufferGuard {
            store: store.clone(),
            held,
        };
        let stop = store.stop.clone();
        let work = keeping.run(pieces).instrument(span);
        store
            .tasks
            .spawn(async move { stop.run_until_cancelled(work).await.is_some() });
        Ok(id)
    }

    /// The remaining events of a stream after the event `after`.
    ///
    /// # Errors
    /// As [`StreamSource::resume`].
    pub(super) fn read(
        &self,
        id: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError> {
        let Some(reader) = self.find(id, caller)?.read(after)? else {
            return Ok(ResumedStream::Finished);
        };
        let pieces = stream::unfold(Some(reader), async |reader| {
            let mut reader = reader?;
            let item = reader.next().await?;
            // An error ends the stream.
            let reader = item.is_ok().then_some(reader);
            Some((item, reader))
        });
        Ok(ResumedStream::Events(Box::pin(pieces)))
    }

    fn find(&self, id: &StreamId, caller: &str) -> Result<Arc<BufferedStream>, PredictError> {
        let held = self.0.streams.lock().get(id).cloned();
        // A caller must not learn whether another caller's stream exists.
        held.filter(|held| held.owner.caller == caller)
            .ok_or_else(gone)
    }
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Streams").field(&self.counts()).finish()
    }
}

#[async_trait]
impl StreamSource for Streams {
    async fn resume(
        &self,
        id: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError> {
        let resumed = self.read(id, after, caller)?;
        self.0.resumed.fetch_add(1, Ordering::Relaxed);
        Ok(resumed)
    }

    async fn cancel(&self, id: &StreamId, caller: &str) -> Result<(), PredictError> {
        let held = self.find(id, caller)?;
        self.0
            .give(&held.owner.tenant, held.end(StreamEnd::Cancelled));
        Ok(())
    }
}

impl Store {
    /// Reserves `bytes` of the tenant's limit and the total limit. Returns the exceeded limit on
    /// failure.
    fn take(&self, tenant: &TenantId, bytes: usize) -> Result<(), StoreFull> {
        let mut used = self.used.lock();
        let of_tenant = used.tenants.get(tenant).copied().unwrap_or(0);
        if self.config.tenant_bytes < of_tenant.saturating_add(bytes) {
            return Err(StoreFull::Tenant);
        }
        if self.config.total_bytes < used.total.saturating_add(bytes) {
            return Err(StoreFull::Node);
        }
        used.total += bytes;
        *used.tenants.entry(tenant.clone()).or_default() += bytes;
        Ok(())
    }

    fn give(&self, tenant: &TenantId, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut used = self.used.lock();
        used.total -= bytes;
        if let Some(of_tenant) = used.tenants.get_mut(tenant) {
            *of_tenant -= bytes;
            if *of_tenant == 0 {
                used.tenants.remove(tenant);
            }
        }
        drop(used);
        self.freed.notify_waiters();
    }

    /// As [`Store::take`], but frees memory first if needed.
    fn reserve(&self, tenant: &TenantId, bytes: usize) -> bool {
        let full = match self.take(tenant, bytes) {
            Ok(()) => return true,
            Err(full) => full,
        };
        let (only, limit) = match full {
            StoreFull::Tenant => (Some(tenant), self.config.tenant_bytes),
            StoreFull::Node => (None, self.config.total_bytes),
        };
        self.squeeze(only, bytes.max(limit / SQUEEZE));
        self.take(tenant, bytes).is_ok()
    }

    /// Frees `wanted` bytes of one tenant or of all: first ended streams that were read completely,
    /// the oldest first, then events that were read.
    fn squeeze(&self, only: Option<&TenantId>, wanted: usize) {
        let mut all: Vec<_> = self.streams.lock().values().cloned().collect();
        all.retain(|held| only.is_none_or(|tenant| held.owner.tenant == *tenant));
        let mut done: Vec<_> = all
            .iter()
            .filter_map(|held| Some((held.done_since()?, held)))
            .collect();
        done.sort_by_key(|(since, _)| *since);
        let mut freed = 0;
        let mut free = |held: &BufferedStream, enough: &dyn Fn(&BufferedStream, usize) -> usize| {
            if freed < wanted {
                let more = enough(held, wanted - freed);
                freed += more;
                self.give(&held.owner.tenant, more);
            }
        };
        for (_, held) in done {
            free(held, &|held, _| held.end(StreamEnd::Cancelled));
        }
        for held in &all {
            free(held, &BufferedStream::squeeze);
        }
    }
}

/// The exceeded limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreFull {
    Tenant,
    Node,
}

/// A buffered stream whose events are dropped, and which is removed from the store, when this guard
/// is dropped.
struct BufferGuard {
    store: Arc<Store>,
    held: Arc<BufferedStream>,
}

impl Drop for BufferGuard {
    fn drop(&mut self) {
        let freed = self.held.end(StreamEnd::Cancelled);
        self.store.streams.lock().remove(&self.held.id);
        self.store.give(&self.held.owner.tenant, freed);
    }
}

enum StreamOutcome {
    Finished,
    Abandoned,
    Cancelled,
}

impl BufferGuard {
    async fn run(self, pieces: impl Stream<Item = Bytes> + Send) {
        let window = self.store.config.window;
        // The other branches, and with them the work behind the stream, are dropped.
        let became = tokio::select! {
            () = self.fill(pieces) => StreamOutcome::Finished,
            () = self.held.abandoned(window) => StreamOutcome::Abandoned,
            () = self.held.cancelled() => StreamOutcome::Cancelled,
        };
        match became {
            StreamOutcome::Finished => {
                self.held.end(StreamEnd::Finished);
                tokio::select! {
                    () = self.held.abandoned(window) => {}
                    () = self.held.cancelled() => {}
                }
            }
            StreamOutcome::Abandoned => {
                self.store.abandoned.fetch_add(1, Ordering::Relaxed);
                tracing::info!("resumable stream cancelled: no client resumed it");
            }
            StreamOutcome::Cancelled => tracing::info!("resumable stream cancelled"),
        }
    }

    async fn fill(&self, pieces: impl Stream<Item = Bytes> + Send) {
        tokio::pin!(pieces);
        let mut sequence = 0;
        while let Some(piece) = pieces.next().await {
            let events = with_ids(&piece, &self.held.id, &mut sequence);
            let bytes = total(&events);
            self.held.room(bytes).await;
            while !self.store.reserve(&self.held.owner.tenant, bytes) {
                // Another reader may free memory, or another stream may be abandoned.
                let freed = self.store.freed.notified();
                if tokio::time::timeout(LOOK, freed).await.is_err() {
                    tracing::debug!("resumable stream waits for buffer space");
                }
            }
            let freed = self.held.push(events);
            self.store.give(&self.held.owner.tenant, freed);
        }
    }
}

/// The events of a piece, each preceded by a line with its id.
fn with_ids(piece: &Bytes, stream: &StreamId, sequence: &mut u64) -> Vec<Bytes> {
    let ends = memchr::memmem::find_iter(piece, b"\n\n").map(|at| at + 2);
    let mut out = BytesMut::with_capacity(piece.len() + 64);
    let (mut start, mut cuts) = (0, Vec::new());
    for end in ends.chain([piece.len()]) {
        if start == end {
            continue;
        }
        *sequence += 1;
        out.put_slice(format!("id: {}\n", stream.event(*sequence)).as_bytes());
        out.put_slice(&piece[start..end]);
        cuts.push(out.len());
        start = end;
    }
    let out = out.freeze();
    let mut start = 0;
    let slice = |end| {
        let event = out.slice(start..end);
        start = end;
        event
    };
    cuts.into_iter().map(slice).collect()
}

#[cfg(test)]
mod tests;
