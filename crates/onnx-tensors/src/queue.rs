//! The threads that own a session each, and the way to them.
//!
//! Each has one run after the other: `ONNX Runtime` spreads a run over its own threads, and two
//! runs of one session at a time are not safe on every device. One thread after the other takes
//! what waits. Where the model's files say that the rows of several requests may be in one run,
//! those that wait are ([`merged`](super::merged)).

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

/// Between two looks for more rows.
const LOOK: Duration = Duration::from_micros(200);

/// The way to the sessions' threads. Dropping it ends them.
pub(super) struct RunQueue {
    waits: WaitCounts,
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    place: ExecutionDevice,
}

/// Stops runs when their caller goes away.
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
    /// Starts a thread for each of `runners`; `places` batches may wait for them, and each run may
    /// take `limit`, at `place`.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
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

    /// Runs one batch, after those that came before it. Waits for a place where there is none.
    ///
    /// # Cancel safety
    /// Dropping the future takes the batch out of the queue, or stops its run where no one else
    /// waits for that.
    ///
    /// # Errors
    /// Those of the run.
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
        // A late stop hits nothing: the options are this batch's alone.
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
        // Who sets it first decides: the queue, or the time.
        if is_taken.swap(true, Ordering::AcqRel) {
            return answered.await;
        }
        Err(wait::too_long())
    }

    /// How requests wait here.
    pub(super) fn policies(&self) -> &QueuePolicies {
        self.waits.policies()
    }
}

impl Drop for RunQueue {
    fn drop(&mut self) {
        // Without an entrance each thread ends after the run that it is in.
        self.jobs.take();
        let threads = std::mem::take(&mut self.threads);
        let wait = move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("model thread panicked");
                }
            }
        };
        // The last handle is often a stream's, dropped on a runtime's thread, which must not be
        // held for a run. The runtime waits for the thread instead when it shuts down.
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
    /// Whether those that wait are not simply taken as they came.
    ordered: bool,
    batching: Batching,
}

impl WaitingBatches {
    /// Those of the next run: the first, and those behind it that may be in one run with it. Waits
    /// where there are none; `None` when no more can come.
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
        // Those that were refused meanwhile are left.
        jobs.retain_mut(|job| job.place.take().is_none_or(|place| place.take()));
        Some(jobs)
    }

    /// As [`WaitingBatches::next`], for one thread at a time: those behind it wait with it.
    fn next_of(waiting: &Mutex<Self>) -> Option<Vec<Job>> {
        // What a panic would leave behind are batches that wait.
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

    /// The most urgent first, and of those as they came.
    fn order(&mut self) {
        let now = Instant::now();
        let rank = |job: &Job| job.place.as_ref().map(|place| place.rank(now));
        self.jobs.make_contiguous().sort_by_key(rank);
    }

    /// Lets an idle model wait as long as its files say, or until a run is full.
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

/// How many batches, from the first on, one run takes: the first alone, or with those behind it
/// that are like it, up to the most rows of a run; of those, as many as make the largest preferred
/// size, where any does. Of one that must run alone there is no size.
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
