//! The checks on every stream that leaves the coordinator, whichever replica it comes from: it
//! keeps its deadline, a generation ends in its last row or in an error, a stream of events ends with a
//! whole event, and the metrics count it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::{Stream, StreamExt};
use tokio::time::{Sleep, sleep_until};
use volley_telemetry::StreamRecord;
use volley_types::chunk::{BatchResult, ends_generation};
use volley_types::signature::events::ends_event;
use volley_types::{Deadline, RequestId, Task};

use crate::errors;

/// A stream of batches with the checks of this module, in one layer.
///
/// Dropping it drops the work. The work is also dropped before an error is returned.
pub(crate) struct GuardedStream<S> {
    /// `None` once the stream has ended.
    batches: Option<S>,
    record: StreamRecord,
    request: RequestId,
    deadline: Option<(Deadline, Pin<Box<Sleep>>)>,
    task: Option<Task>,
    /// The end of `batches` is the end of the answer.
    complete: bool,
}

impl<S> GuardedStream<S> {
    /// `batches` of `request`, counted in `record`.
    pub(crate) fn new(batches: S, record: StreamRecord, request: RequestId) -> Self {
        Self {
            batches: Some(batches),
            record,
            request,
            deadline: None,
            task: None,
            complete: true,
        }
    }

    /// The same, which ends with `DeadlineExceeded` at the deadline.
    pub(crate) fn with_deadline(mut self, deadline: Option<Deadline>) -> Self {
        self.deadline = deadline.map(|it| (it, Box::pin(sleep_until(it.instant().into()))));
        self
    }

    /// The same for the answer of a model with this task. A generation that ends without a last
    /// row, or a stream that ends within an event, ends with an error, so that no caller mistakes a
    /// partial response for a complete one.
    pub(crate) fn with_task(mut self, task: Task) -> Self {
        self.task = Some(task);
        self.complete = task != Task::Generate;
        self
    }

    /// Returns `item`, or the error that replaces it.
    fn check(&mut self, item: Option<BatchResult>) -> Option<BatchResult> {
        match item {
            Some(Ok(batch)) => {
                match self.task {
                    Some(Task::Events) => {
                        self.complete = ends_event(&batch).unwrap_or(self.complete);
                    }
                    _ => self.complete |= ends_generation(&batch),
                }
                Some(Ok(batch))
            }
            None if !self.complete => Some(Err(errors::silent_end())),
            item => item,
        }
    }
}

impl<S: Stream<Item = BatchResult> + Unpin> GuardedStream<S> {
    /// Polls the next item, or returns the deadline error. The check also ends a stream that is
    /// always ready.
    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<BatchResult>> {
        let Some(batches) = &mut self.batches else {
            return Poll::Ready(None);
        };
        let polled = batches.poll_next_unpin(cx);
        let Some((deadline, timer)) = &mut self.deadline else {
            return polled;
        };
        let is_late = match &polled {
            Poll::Ready(Some(Ok(_))) => deadline.remaining(Instant::now()).is_zero(),
            Poll::Ready(_) => false,
            Poll::Pending => timer.as_mut().poll(cx).is_ready(),
        };
        match is_late {
            true => Poll::Ready(Some(Err(errors::too_late()))),
            false => polled,
        }
    }
}

impl<S: Stream<Item = BatchResult> + Unpin> Stream for GuardedStream<S> {
    type Item = BatchResult;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BatchResult>> {
        if self.batches.is_none() {
            return Poll::Ready(None);
        }
        let item = std::task::ready!(self.poll_item(cx));
        let item = self.check(item);
        if !matches!(item, Some(Ok(_))) {
            self.batches = None;
        }
        let this = &mut *self;
        Poll::Ready(this.record.observe(item, &this.request, Instant::now()))
    }
}

#[cfg(test)]
mod tests;
