//! The cluster epoch: the identity of one history of the registry.
//!
//! A [recovered or restored](crate::backup) registry starts a new history with a random epoch.
//! Coordinators of the old history must not be accepted as members, because they may still agree
//! among themselves on other writes. So consensus messages carry the epoch, and messages of another
//! epoch are rejected. A new cluster draws an epoch as well. A cluster that was founded before
//! level 6 and never recovered has the epoch 0, which is not sent.

use std::sync::atomic::{AtomicU64, Ordering};

use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::Cluster;

const HEADER: &str = "volley-cluster-epoch";

/// The epoch of this node.
#[derive(Debug, Default)]
pub(crate) struct ClusterEpoch {
    mark: AtomicU64,
    adopting: tokio::sync::Mutex<()>,
}

/// How the epoch of a message relates to this node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum History {
    /// The same epoch.
    Own,
    /// Epoch of a cluster that this node may join.
    ToAdopt(u64),
}

impl ClusterEpoch {
    pub(crate) fn new(mark: u64) -> Self {
        Self {
            mark: AtomicU64::new(mark),
            ..Self::default()
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.mark.load(Ordering::Acquire)
    }

    /// Adds the epoch to a message.
    pub(crate) fn mark(&self, metadata: &mut MetadataMap) {
        let mark = self.get();
        if mark != 0 {
            metadata.insert(HEADER, MetadataValue::from(mark));
        }
    }
}

/// Reads the epoch of a message; `None` if it is malformed.
fn read(metadata: &MetadataMap) -> Option<u64> {
    match metadata.get(HEADER) {
        Some(value) => value.to_str().ok()?.parse().ok(),
        None => Some(0),
    }
}

impl Cluster {
    /// Checks a consensus call: first its epoch, then [its sender](crate::admission).
    ///
    /// # Errors
    /// The reply to a rejected call.
    pub(crate) async fn check_call(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let history = self.history_of(metadata).await;
        let history = history.inspect_err(|_| {
            tracing::error!(
                "call from a coordinator of another cluster epoch rejected; do not start old \
                 coordinators again after a recovery or a restore"
            );
        })?;
        self.0.identity.check_call(metadata).await?;
        match history {
            History::Own => Ok(()),
            History::ToAdopt(mark) => self.adopt(mark).await,
        }
    }

    /// Persists the epoch of a new cluster, or that of the first caller.
    ///
    /// # Errors
    /// `Unavailable` if the epoch cannot be written.
    pub(crate) async fn adopt(&self, mark: u64) -> Result<(), Status> {
        let epoch = &self.0.epoch;
        let _one = epoch.adopting.lock().await;
        if mark == epoch.get() {
            return Ok(());
        }
        let disk = self.0.disk.lock().clone();
        let disk = disk.ok_or_else(|| Status::unavailable("this coordinator is stopping"))?;
        let kept = disk.epoch(mark).await;
        kept.map_err(|_| Status::unavailable("the disk refused a write"))?;
        epoch.mark.store(mark, Ordering::Release);
        Ok(())
    }

    /// Compares the epoch of a message with this node's. A node that has neither voted nor logged
    /// anything may adopt the caller's.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed epoch, `PermissionDenied` for another one.
    pub(crate) async fn history_of(&self, metadata: &MetadataMap) -> Result<History, Status> {
        let theirs = read(metadata).ok_or_else(|| Status::invalid_argument("malformed epoch"))?;
        if theirs == self.0.epoch.get() {
            return Ok(History::Own);
        }
        if !self.is_initialised().await {
            return Ok(History::ToAdopt(theirs));
        }
        Err(Status::permission_denied(
            "this coordinator belongs to another cluster epoch",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_travels_and_none_means_the_first_history() {
        let mut metadata = MetadataMap::new();
        ClusterEpoch::default().mark(&mut metadata);
        assert_eq!((metadata.len(), read(&metadata)), (0, Some(0)));
        ClusterEpoch::new(u64::MAX).mark(&mut metadata);
        assert_eq!(read(&metadata), Some(u64::MAX));
        metadata.insert(HEADER, MetadataValue::from_static("7 "));
        assert_eq!(read(&metadata), None);
    }
}
