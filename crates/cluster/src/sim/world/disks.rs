//! Disks that are lost, put back from a copy, cut, and used twice.

use redb::{Database, ReadableTable};

use super::Coordinators;
use crate::store::disk::faulty_disk::FaultyDisk;
use crate::store::tables::{LOG, META};

/// What a disk holds.
pub(in crate::sim) type Image = Vec<u8>;

impl Coordinators {
    /// What the disk of a coordinator would hold if its machine stopped now.
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

    /// A coordinator that does not run finds this on its disk when it starts; the others shall not
    /// take it for itself then.
    pub(in crate::sim) fn put_back(&self, node: u64, image: Image) {
        let mut members = self.0.members.lock();
        let member = members.entry(node).or_default();
        member.image = image;
        member.is_not_itself = true;
    }

    /// Its disk is empty.
    pub(in crate::sim) fn wipe(&self, node: u64) {
        self.crash(node, true, None);
        self.put_back(node, Image::new());
    }

    /// A second process with the id of another, over a copy of its disk.
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

/// The same disk without the last entries of its log, and without what says that they were there.
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
