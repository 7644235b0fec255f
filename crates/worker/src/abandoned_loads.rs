//! Abandoned loads that still run, because they cannot be stopped. They are counted and limited,
//! and the same version is not loaded again until its abandoned load has ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volley_types::{ErrorCode, ModelName, ModelVersion, PredictError};

/// At this number, the worker starts no other load that cannot be stopped.
const MAX_ABANDONED_LOADS: usize = 8;

type Key = (ModelName, ModelVersion);

/// The abandoned loads of a worker. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbandonedLoads(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    loads: Mutex<BTreeMap<Key, usize>>,
    ended: watch::Sender<()>,
}

/// Counts one abandoned load until it is dropped.
#[derive(Debug)]
struct AbandonedLoadGuard(Arc<Shared>, Key);

impl Drop for AbandonedLoadGuard {
    fn drop(&mut self) {
        let mut loads = self.0.loads.lock();
        if let Some(count) = loads.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                loads.remove(&self.1);
            }
        }
        drop(loads);
        self.0.ended.send_replace(());
    }
}

impl AbandonedLoads {
    /// Number of abandoned loads.
    pub(crate) fn count(&self) -> usize {
        self.0.loads.lock().values().sum()
    }

    /// Notifies when one has ended.
    pub(crate) fn ended(&self) -> watch::Receiver<()> {
        self.0.ended.subscribe()
    }

    /// Waits until no earlier load of this version is running. Cancel safe: it only waits.
    pub(crate) async fn until_gone(&self, key: &Key) {
        let mut ended = self.ended();
        while self.0.loads.lock().contains_key(key) {
            if ended.changed().await.is_err() {
                return;
            }
        }
    }

    /// Rejects a load while too many abandoned loads are running.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(crate) fn check(&self) -> Result<(), PredictError> {
        if self.count() < MAX_ABANDONED_LOADS {
            return Ok(());
        }
        let message = format!(
            "{MAX_ABANDONED_LOADS} abandoned loads still occupy threads of this worker; restart \
             it, and check the files of their models"
        );
        Err(PredictError::new(ErrorCode::Unavailable, message))
    }
}

/// Work of a loader in its own task, so that a panic only fails that load. Dropping it aborts the
/// task. If the work cannot be stopped, the task continues as an abandoned load.
pub(crate) struct Work<T: Send + 'static> {
    // `Some` until it is done or dropped.
    task: Option<JoinHandle<Result<T, PredictError>>>,
    stops: bool,
    abandoned_loads: AbandonedLoads,
    key: Key,
}

impl<T: Send + 'static> Work<T> {
    /// Starts the work. `stops` is whether dropping `work` ends it.
    pub(crate) fn begin(
        abandoned_loads: &AbandonedLoads,
        key: Key,
        stops: bool,
        work: impl Future<Output = Result<T, PredictError>> + Send + 'static,
    ) -> Self {
        Self {
            task: Some(tokio::spawn(work)),
            stops,
            abandoned_loads: abandoned_loads.clone(),
            key,
        }
    }

    /// Awaits the result. Cancel safe: the task keeps running until `self` is dropped.
    ///
    /// # Errors
    /// The work's own; `Internal` when it panicked.
    pub(crate) async fn done(&mut self) -> Result<T, PredictError> {
        let unexpected = "loading the model failed unexpectedly";
        let Some(task) = &mut self.task else {
            return Err(PredictError::new(ErrorCode::Internal, unexpected));
        };
        let done = task.await;
        self.task = None;
        done.map_err(|error| PredictError::internal(unexpected, error))?
    }
}

impl<T: Send + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else {
            return;
        };
        if self.stops || task.is_finished() {
            return task.abort();
        }
        let shared = self.abandoned_loads.0.clone();
        *shared.loads.lock().entry(self.key.clone()).or_insert(0) += 1;
        let lingers = AbandonedLoadGuard(shared, self.key.clone());
        tracing::warn!(
            model = %self.key.0, version = %self.key.1,
            "abandoned load is still running"
        );
        // The task lives as long as the thread that cannot be stopped, at most as long as the
        // runtime.
        tokio::spawn(async move {
            // The result is too late and is discarded.
            drop(task.await);
            drop(lingers);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn given_up_work_is_counted_until_it_ends_and_refused_beyond_a_bound() {
        let abandoned_loads = AbandonedLoads::default();
        let key = |version| (ModelName::new("m").unwrap(), ModelVersion(version));
        let (release, released) = watch::channel(false);
        let begin = |version, stops| {
            let mut released = released.clone();
            Work::<()>::begin(&abandoned_loads, key(version), stops, async move {
                let _ = released.wait_for(|released| *released).await;
                Ok(())
            })
        };
        drop(begin(0, true));
        assert_eq!(abandoned_loads.count(), 0, "it was ended");
        for version in 1..=8 {
            assert!(abandoned_loads.check().is_ok());
            drop(begin(version, false));
        }
        assert_eq!(abandoned_loads.count(), 8);
        assert_eq!(
            abandoned_loads.check().unwrap_err().code,
            ErrorCode::Unavailable
        );
        abandoned_loads.until_gone(&key(9)).await;

        release.send(true).unwrap();
        abandoned_loads.until_gone(&key(1)).await;
        let mut ended = abandoned_loads.ended();
        while abandoned_loads.count() != 0 {
            ended.changed().await.unwrap();
        }
        assert!(abandoned_loads.check().is_ok());
        assert!(begin(1, false).done().await.is_ok());
    }
}
