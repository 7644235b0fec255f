//! The threads that own the sessions, and the queue to them.
//!
//! Each thread executes one run at a time: ONNX Runtime spreads a run over its own threads, and two
//! concurrent runs of one session are not safe on every device. The threads take waiting batches in
//! turn. If the model's files allow it, one run takes the waiting batches of several requests
//! ([`merged`](super::merged)).

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use tokio::sync::{mpsc, oneshot};
use volley_types::{ModelName, PredictError};

use super::Batching;
use super::job::{Job, RunSubscriber, stop};
use super::merged;
use super::run::Runner;
use super::wait;
use super::wait::{WaitCounts, WaitOptions};
use volley_model_directory::triton::QueuePolicies;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::session::SharedRunOptions;

/// Interval of checks for more rows.
const LOOK: Duration = Duration::from_micros(200);

/// Handle of the sessions' threads. Dropping it ends them.
pub(super) struct RunQueue {
    waits: WaitCounts,
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    place: ExecutionDevice,
}

/// Stops a caller's run when the caller goes away.
struct Terminator {
    own: [Arc<SharedRunOptions>; 2],
    seat: Arc<RunSubscriber>,
}

impl Drop for Terminator {
    fn drop(&mut self) {
        self.own.iter().for_each(|options| stop(options));
        self.seat.leave();
    }
}

impl RunQueue {
    /// Starts a thread for each of `runners`. At most `places` batches wait in the channel. Each
    /// run on the device `place` may take at most `limit`.
    ///
    /// # Errors
    /// `Internal` when a thread cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runners: Vec<Runner>,
        places: usize,
        limit: Duration,
        place: ExecutionDevice,
        batching: Batching,
        policies: QueuePolicies,
    ) -> Result<Self, PredictError> {
        let (jobs, queue) = mpsc::channel(places);
        let waiting = Arc::new(Mutex::new(WaitingBatches {
            queue,
            jobs: VecDeque::new(),
            places,
            ordered: policies != QueuePolicies::default(),
            batching,
        }));
        let start = |runner| {
            let (waiting, mut watch) = (waiting.clone(), RunTimeout::new(limit)?);
            let thread = std::thread::Builder::new().name(format!("onnx-{model}"));
            thread
                .spawn(move || serve(runner, &waiting, &mut watch))
                .map_err(|error| {
                    PredictError::internal("the model's thread could not start", error)
                })
        };
        Ok(Self {
            waits: WaitCounts::new(policies),
            threads: runners.into_iter().map(start).collect::<Result<_, _>>()?,
            jobs: Some(jobs),
            place,
        })
    }

    /// Runs one batch after the earlier ones. Waits while the channel is full.
    ///
    /// # Cancel safety
    /// Dropping the future removes the batch from the queue, or stops its run if no other caller
    /// waits for that run.
    ///
    /// # Errors
    /// Those of the run; `Overloaded` when the queue of the priority level is full;
    /// `DeadlineExceeded` when the request waited for longer than its policy allows.
    pub(super) async fn run(
        &self,
        rows: RecordBatch,
        wait: WaitOptions,
    ) -> Result<RecordBatch, PredictError> {
        let place = self.waits.enter(wait)?;
        let refusal = place.refusal();
        let ended = || internal("the model's thread has ended", "");
        let failed = |error: volley_onnx_runtime::ort::Error| {
            internal("a run could not be set up", error.to_string())
        };
        let options = Arc::new(SharedRunOptions::new().map_err(failed)?);
        let again = Arc::new(session::shrinking(self.place).map_err(failed)?);
        let (answer, answered) = oneshot::channel();
        let seat = Arc::new(RunSubscriber::default());
        // A late stop is harmless: only this batch uses these options.
        let _terminator = Terminator {
            own: [options.clone(), again.clone()],
            seat: seat.clone(),
        };
        let job = Job {
            rows,
            options,
            again,
            place: Some(place),
            seat,
            answer,
        };
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        let answered = async {
            jobs.send(job).await.map_err(|_| ended())?;
            answered.await.unwrap_or_else(|_| Err(ended()))
        };
        let Some((late, is_taken)) = refusal else {
            return answered.await;
        };
        tokio::pin!(answered);
        tokio::select! {
            answer = &mut answered => return answer,
            () = tokio::time::sleep_until(late.into()) => {}
        }
        // The first of queue and timer to set the flag decides.
        if is_taken.swap(true, Ordering::AcqRel) {
            return answered.await;
        }
        Err(wait::too_long())
    }

    /// The queue policies of the model.
    pub(super) fn policies(&self) -> &QueuePolicies {
        self.waits.policies()
    }
}

impl Drop for RunQueue {
    fn drop(&mut self) {
        // When the channel closes, each thread ends after its current run.
        self.jobs.take();
        let threads = std::mem::take(&mut self.threads);
        let wait = move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("model thread panicked");
                }
            }
        };
        // The last handle is often dropped with a stream on a runtime thread, which must not block
        // for a run. The runtime waits for the model threads when it shuts down.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => wait(),
        }
    }
}

/// Batches that wait for their run.
struct WaitingBatches {
    queue: mpsc::Receiver<Job>,
    jobs: VecDeque<Job>,
    places: usize,
    /// Whether waiting batches are reordered by priority.
    ordered: bool,
    batching: Batching,
}

impl WaitingBatches {
    /// The batches of the next run: the first, and those behind it that can join the run. Blocks
    /// while the queue is empty; `None` when it is closed.
    fn next(&mut self) -> Option<Vec<Job>> {
        self.jobs.retain(|job| !job.is_left());
        if self.jobs.is_empty() {
            let first = self.queue.blocking_recv()?;
            self.jobs.push_back(first);
            self.wait_for_more();
        }
        self.take_more();
        if self.ordered {
            self.order();
        }
        let first = self.jobs.front()?.rows.schema();
        let alike = |job: &Job| job.rows.num_rows() != 0 && job.rows.schema() == first;
        let sizes = self.jobs.iter().map(|job| {
            let rows = job.rows.num_rows();
            alike(job).then_some(rows)
        });
        let count = match self.batching.merges {
            true => together(sizes, &self.batching),
            false => 1,
        };
        let mut jobs: Vec<Job> = self.jobs.drain(..count).collect();
        // Batches that were rejected meanwhile are dropped.
        jobs.retain_mut(|job| job.place.take().is_none_or(|place| place.take()));
        Some(jobs)
    }

    /// As [`WaitingBatches::next`], for one thread at a time; the other threads wait for the lock.
    fn next_of(waiting: &Mutex<Self>) -> Option<Vec<Job>> {
        // After a panic the state is still a list of waiting batches.
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.next()
    }

    fn take_more(&mut self) {
        if !self.batching.merges && !self.ordered {
            return;
        }
        while self.jobs.len() < self.places {
            let Ok(job) = self.queue.try_recv() else {
                return;
            };
            self.jobs.push_back(job);
        }
    }

    /// Sorts by urgency; equally urgent batches stay in order of arrival.
    fn order(&mut self) {
        let now = Instant::now();
        let rank = |job: &Job| job.place.as_ref().map(|place| place.rank(now));
        self.jobs.make_contiguous().sort_by_key(rank);
    }

    /// Waits for more rows while the model is idle: at most the configured window, or until a run
    /// is full.
    fn wait_for_more(&mut self) {
        let Batching { window, .. } = self.batching;
        let full = self.batching.full();
        if window.is_zero() || !self.batching.merges {
            return;
        }
        let until = Instant::now() + window;
        loop {
            self.take_more();
            let rows: usize = self.jobs.iter().map(|job| job.rows.num_rows()).sum();
            let left = until.saturating_duration_since(Instant::now());
            if full <= rows || left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}

/// Number of batches, from the first on, that one run takes: the first and those behind it with the
/// same schema, up to the maximum number of rows. If some prefix of these has a preferred size, the
/// longest such prefix is taken. A size of `None` is a batch that must run alone.
fn together(sizes: impl IntoIterator<Item = Option<usize>>, batching: &Batching) -> usize {
    let (mut count, mut rows, mut preferred) = (0, 0_usize, 0);
    for size in sizes {
        match size {
            Some(size) if count == 0 || rows.saturating_add(size) <= batching.most() => {
                rows += size;
            }
            None if count == 0 => return 1,
            _ => break,
        }
        count += 1;
        if batching.preferred.contains(&rows) {
            preferred = count;
        }
    }
    if preferred == 0 { count } else { preferred }
}

fn serve(mut runner: Runner, waiting: &Mutex<WaitingBatches>, watch: &mut RunTimeout) {
    while let Some(mut jobs) = WaitingBatches::next_of(waiting) {
        jobs.retain(|job| !job.is_left());
        if 1 < jobs.len() {
            merged::run(&mut runner, jobs, watch);
        } else if let Some(job) = jobs.pop() {
            let answer = job.run(&mut runner, watch);
            job.answer(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    #[test]
    fn a_run_takes_what_is_alike_and_fits() {
        let up_to = |most| Batching {
            most: NonZeroUsize::new(most),
            ..Batching::default()
        };
        let all =
            |sizes: &[usize], most| together(sizes.iter().map(|size| Some(*size)), &up_to(most));
        assert_eq!(all(&[2, 3, 4], 8), 2);
        assert_eq!(all(&[9, 1], 8), 1, "the first always");
        assert_eq!(all(&[1; 40], 32), 32);
        assert_eq!(all(&[], 8), 0);
        assert_eq!(together([Some(1), None, Some(1)], &up_to(8)), 1);
        assert_eq!(together([None, Some(1)], &up_to(8)), 1);
    }

    #[test]
    fn of_what_waits_a_preferred_size_is_taken_where_it_can_be() {
        let batching = Batching {
            most: NonZeroUsize::new(16),
            preferred: Arc::new([8, 4]),
            ..Batching::default()
        };
        let count = |sizes: &[usize]| together(sizes.iter().map(|size| Some(*size)), &batching);
        assert_eq!(count(&[1; 3]), 3, "as many as there are");
        assert_eq!(count(&[1; 5]), 4);
        assert_eq!(count(&[1; 12]), 8, "the largest");
        assert_eq!(count(&[3, 2, 4, 1]), 4, "none of them can be made");
        assert_eq!(batching.full(), 8, "what an idle model waits for");
    }
}
