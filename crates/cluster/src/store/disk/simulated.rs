//! A store whose writer is a task on simulated time instead of a thread.

use super::faulty_disk::FaultyDisk;
use super::*;

impl Disk {
    /// Opens the store on `faulty_disk`. The caller runs the returned writer, which takes `pace`
    /// for each transaction.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub(crate) fn simulated(
        faulty_disk: FaultyDisk,
        node: NodeId,
        draw: Draw,
        mut pace: impl FnMut() -> Duration,
    ) -> Result<(Self, RecoveredState, impl Future<Output = ()>), PredictError> {
        let database = Database::builder()
            .create_with_backend(faulty_disk)
            .map_err(|error| unavailable("the simulated disk cannot be opened", error.into()))?;
        let (disk, found, mut writer) = Self::begin(database, node, draw)?;
        let work = async move {
            while let Some(write) = writer.queue.recv().await {
                tokio::time::sleep(pace()).await;
                writer.write(write);
            }
        };
        Ok((disk, found, work))
    }
}
