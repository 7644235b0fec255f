//! Rows on their way from the decode thread to their readers.

use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};

use crate::event::EngineEvent;

/// Steps that may be on their way. A step has a row at most once for each reader, and readers
/// have few places, so that only a runtime that stands still gets there.
const STEPS: usize = 1_024;

/// Hands a step's rows on together. Waking a reader from a foreign thread costs as much as
/// decoding a tenth of a small model's token: so the thread wakes one task for each step, and
/// that wakes the readers from within their runtime.
///
/// A row leaves only with a reserved place of its reader's channel, so nothing heaps up on the
/// way; and all rows take this way, so none overtakes another.
pub(super) struct Delivery {
    steps: Sender<Vec<Row>>,
    step: Vec<Row>,
}

type Row = (OwnedPermit<EngineEvent>, EngineEvent);

/// What became of a row.
pub(super) enum DeliveryResult {
    /// It is part of this step.
    Taken,
    /// The reader is behind; here it is again.
    Full(Box<EngineEvent>),
    /// The reader has gone.
    Closed,
}

impl Delivery {
    /// Starts the task on `runtime`. It ends with this, after the last row.
    pub(super) fn start(runtime: &Handle) -> Self {
        let (steps, queue) = channel(STEPS);
        runtime.spawn(hand_on(queue));
        Self {
            steps,
            step: Vec::new(),
        }
    }

    /// Adds a row to this step, if its reader has room.
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

    /// Sends this step on its way.
    pub(super) fn flush(&mut self) {
        if !self.step.is_empty() {
            let step = std::mem::take(&mut self.step);
            self.step.reserve(step.len());
            // Without its task there is no runtime any more, and no reader.
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
