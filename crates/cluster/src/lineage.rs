//! Which history of the registry a node belongs to.
//!
//! A registry that was [recovered or restored](crate::backup) begins a history of its own, with
//! a random mark. Nodes of the history before it, should they come back, must not be taken for
//! members: they may still agree among themselves on what was left behind. So consensus messages
//! carry the mark, and a message of another history is refused. A cluster that was never
//! recovered has the mark 0, which is not sent.

use std::sync::atomic::{AtomicU64, Ordering};

use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::Cluster;

const HEADER: &str = "volley-lineage";

/// The mark of a node's history.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    mark: AtomicU64,
    adopting: tokio::sync::Mutex<()>,
}

impl Lineage {
    pub(crate) fn new(mark: u64) -> Self {
        Self {
            mark: AtomicU64::new(mark),
            ..Self::default()
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.mark.load(Ordering::Acquire)
    }

    /// Puts the mark on a message.
    pub(crate) fn mark(&self, metadata: &mut MetadataMap) {
        let mark = self.get();
        if mark != 0 {
            metadata.insert(HEADER, MetadataValue::from(mark));
        }
    }
}

/// The mark on a message; `None` when it is malformed.
fn read(metadata: &MetadataMap) -> Option<u64> {
    match metadata.get(HEADER) {
        Some(value) => value.to_str().ok()?.parse().ok(),
        None => Some(0),
    }
}

impl Cluster {
    /// Refuses a consensus message of another history. A node that belongs to no cluster yet
    /// takes over the history of the first that calls it.
    pub(crate) async fn check_lineage(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let theirs = read(metadata).ok_or_else(|| Status::invalid_argument("malformed lineage"))?;
        let lineage = &self.0.lineage;
        if theirs == lineage.get() {
            return Ok(());
        }
        let _one = lineage.adopting.lock().await;
        if theirs == lineage.get() {
            return Ok(());
        }
        let is_new = matches!(self.0.raft.is_initialized().await, Ok(false));
        if is_new && lineage.get() == 0 {
            let disk = self.0.disk.lock().clone();
            let disk = disk.ok_or_else(|| Status::unavailable("this coordinator is stopping"))?;
            let kept = disk.lineage(theirs).await;
            kept.map_err(|_| Status::unavailable("the disk refused a write"))?;
            lineage.mark.store(theirs, Ordering::Release);
            return Ok(());
        }
        tracing::error!(
            "a coordinator of another history of this registry called; after a recovery or a \
             restore, the old coordinators must not be started again"
        );
        Err(Status::permission_denied(
            "this coordinator belongs to another history of the registry",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_travels_and_none_means_the_first_history() {
        let mut metadata = MetadataMap::new();
        Lineage::default().mark(&mut metadata);
        assert_eq!((metadata.len(), read(&metadata)), (0, Some(0)));
        Lineage::new(u64::MAX).mark(&mut metadata);
        assert_eq!(read(&metadata), Some(u64::MAX));
        metadata.insert(HEADER, MetadataValue::from_static("7 "));
        assert_eq!(read(&metadata), None);
    }
}
