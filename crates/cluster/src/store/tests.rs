use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;
use volley_types::NodeId;
use volley_types::registry::LEVEL;

use crate::raft_types::{StorageError, TypeConfig};
use crate::store::Store;
use crate::store::disk::Disk;
use crate::store::log::LogStore;
use crate::store::machine::Machine;

/// Creates stores over new files.
struct Fresh;

impl StoreBuilder<TypeConfig, LogStore, Machine, TempDir> for Fresh {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError> {
        let directory = tempfile::tempdir().unwrap();
        let (disk, found) = Disk::open(directory.path(), NodeId(1)).unwrap();
        let store = Store::open(disk, volley_types::NodeId(1), found, LEVEL).unwrap();
        Ok((directory, store.log, store.machine))
    }
}

#[test]
fn the_store_keeps_the_consensus_library_s_contract() {
    Suite::test_all(Fresh).unwrap();
}
