use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::InMemoryBackend;
use redb::{BackendError, StorageBackend};
use volley_types::registry::RegistryCommand;
use volley_types::{ConnectorId, ErrorCode, ModelName};

use super::*;
use crate::store::Store;
use crate::{Cluster, ClusterConfig};

/// A disk that is full while the switch is on.
#[derive(Debug)]
struct Fallible {
    inner: InMemoryBackend,
    full: Arc<AtomicBool>,
}

impl Fallible {
    fn check(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        Ok(())
    }
}

impl StorageBackend for Fallible {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.inner.write(offset, data)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }
}

fn fallible() -> (Disk, RecoveredState, Arc<AtomicBool>) {
    let full = Arc::new(AtomicBool::new(false));
    let backend = Fallible {
        inner: InMemoryBackend::new(),
        full: full.clone(),
    };
    let database = Database::builder().create_with_backend(backend).unwrap();
    let (disk, found) = Disk::over(database, NodeId(1), Draw::default()).unwrap();
    (disk, found, full)
}

#[tokio::test]
async fn after_one_failed_write_none_succeeds() {
    let (disk, _, full) = fallible();
    let vote = Vote::new(1, 1);
    disk.vote(&vote).await.unwrap();
    full.store(true, Ordering::SeqCst);
    disk.vote(&vote).await.unwrap_err();
    full.store(false, Ordering::SeqCst);
    disk.vote(&vote).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_is_full_acknowledges_nothing_and_says_that_it_is_unhealthy() {
    let (disk, found, full) = fallible();
    let config = ClusterConfig::new(NodeId(1), "", "127.0.0.1:1");
    let store = Store::open(disk, NodeId(1), found, config.level).unwrap();
    let lines = Arc::new(config.dialer.clone());
    let cluster = Cluster::start_over(config, lines, store).await.unwrap();
    let members = BTreeMap::from([(NodeId(1), "127.0.0.1:1".to_owned())]);
    cluster.bootstrap(members).await.unwrap();
    let unknown = RegistryCommand::DeleteConnector(ConnectorId::new("c").unwrap());
    let refused = cluster.write(unknown.clone()).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound);
    assert!(cluster.healthy());

    full.store(true, Ordering::SeqCst);
    let undeploy = RegistryCommand::Undeploy(ModelName::new("m").unwrap());
    let failed = cluster.write(undeploy).await.unwrap_err();
    assert_eq!(failed.code, ErrorCode::Unavailable);
    let mut raft = cluster.raft();
    let left = raft.wait_for(|_| !cluster.healthy());
    tokio::time::timeout(Duration::from_secs(60), left)
        .await
        .expect("the node gives up in time")
        .unwrap();
    full.store(false, Ordering::SeqCst);
    let failed = cluster.write(unknown).await.unwrap_err();
    assert_eq!(failed.code, ErrorCode::Unavailable);
    assert!(
        failed.message.contains("left service"),
        "{}",
        failed.message
    );
    cluster.shutdown().await;
}
