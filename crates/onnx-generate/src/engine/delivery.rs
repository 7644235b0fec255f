//! Delivers rows from the decode thread to their readers.

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};

use crate::event::EngineEvent;

/// Maximum number of steps in the channel. A step has at most one row for each reader, and readers
/// have small channels, so the limit is only reached if the runtime is blocked.
const STEPS: usize = 1_024;

/// Delivers the rows of a step together. Waking a reader from another thread costs about a tenth of
/// decoding a small model's token. Therefore the thread wakes one task for each step, and that task
/// wakes the readers within their runtime.
///
/// A row is only sent with a reserved permit of its reader's channel, so rows cannot accumulate on
/// the way. All rows take this way, so they stay in order.
pub(super) struct Delivery {
    steps: Sender<Vec<Row>>,
    step: Vec<Row>,
}

type Row = (OwnedPermit<EngineEvent>, EngineEvent);

/// The result of adding a row.
pub(super) enum DeliveryResult {
    /// The row is part of this step.
    Taken,
    /// The reader is slow; the row is returned.
    Full(Box<EngineEvent>),
    /// The reader has gone.
    Closed,
}

impl Delivery {
    /// Starts the task on `runtime`. It ends after the last row, when this is dropped.
    pub(super) fn start(runtime: &Handle) -> Self {
        let (steps, queue) = channel(STEPS);
        runtime.spawn(hand_on(queue));
        Self {
            steps,
            step: Vec::new(),
        }
    }

    /// Adds a row to this step if its reader has room.
    pub(super) fn add(
        &mut self,
        reader: &Sender<EngineEvent>,
        event: EngineEvent,
    ) -> DeliveryResult {
        match reader.clone().try_reserve_owned() {
            Ok(place) => {
                self.step.push((place, event));
                DeliveryResult::Taken
            }
            Err(TrySendError::Full(_)) => DeliveryResult::Full(Box::new(event)),
            Err(TrySendError::Closed(_)) => DeliveryResult::Closed,
        }
    }

    /// Sends this step to the task.
    pub(super) fn flush(&mut self) {
        if !self.step.is_empty() {
            let step = std::mem::take(&mut self.step);
            self.step.reserve(step.len());
            // The task only ends with the runtime, and then there are no readers.
            let _ = self.steps.blocking_send(step);
        }
    }
}

async fn hand_on(mut queue: Receiver<Vec<Row>>) {
    while let Some(step) = queue.recv().await {
        for (place, event) in step {
            place.send(event);
        }
    }
}
