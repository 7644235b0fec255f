//! Disks that are lost, restored from a copy, truncated, or used twice.

use redb::{Database, ReadableTable};

use super::Coordinators;
use crate::store::disk::faulty_disk::FaultyDisk;
use crate::store::tables::{LOG, META};

/// Contents of a disk.
pub(in crate::sim) type Image = Vec<u8>;

impl Coordinators {
    /// Returns what the disk of a coordinator would contain after a power loss now.
    pub(in crate::sim) fn image(&self, node: u64) -> Image {
        let members = self.0.members.lock();
        let Some(member) = members.get(&node) else {
            return Image::new();
        };
        match &member.running {
            Some(running) => running.faulty_disk.kept(),
            None => member.image.clone(),
        }
    }

    /// Replaces the disk of a stopped coordinator. The others must not accept it as the member
    /// afterwards.
    pub(in crate::sim) fn put_back(&self, node: u64, image: Image) {
        let mut members = self.0.members.lock();
        let member = members.entry(node).or_default();
        member.image = image;
        member.is_not_itself = true;
    }

    /// Empties the disk of a coordinator.
    pub(in crate::sim) fn wipe(&self, node: u64) {
        self.crash(node, true, None);
        self.put_back(node, Image::new());
    }

    /// Starts a second process with the id of another one, over a copy of its disk.
    pub(in crate::sim) async fn start_copy(
        &self,
        place: u64,
        id: u64,
        image: Image,
    ) -> Result<(), String> {
        self.put_back(place, image);
        self.start_as(place, id).await
    }
}

/// Returns the disk without the last entries of its log, and without the committed index.
pub(in crate::sim) fn cut(image: Image, entries: usize) -> Image {
    let faulty_disk = FaultyDisk::new(image);
    {
        let database = Database::builder().create_with_backend(faulty_disk.clone());
        let database = database.expect("a whole disk");
        let transaction = database.begin_write().expect("it takes a write");
        {
            let mut meta = transaction.open_table(META).expect("a table");
            meta.remove("committed").expect("it can be removed");
            let mut log = transaction.open_table(LOG).expect("a log");
            for _ in 0..entries {
                let last = log.last().expect("it can be read");
                let last = last.map(|(index, _)| index.value());
                let Some(last) = last else { break };
                log.remove(last).expect("it can be cut");
            }
        }
        transaction.commit().expect("it is written");
    }
    faulty_disk.into_image()
}
