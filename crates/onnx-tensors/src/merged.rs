//! Runs the batches of several requests together, and splits the answer.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use volley_types::{ErrorCode, PredictError};

use super::job::{Job, SharedRun, guarded};
use super::run::Runner;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session::SharedRunOptions;

/// Runs all of `jobs` together. If that fails, each job runs again alone, so that an invalid row
/// only fails its own request.
pub(super) fn run(runner: &mut Runner, jobs: Vec<Job>, watch: &mut RunTimeout) {
    let ran = all(runner, &jobs, watch);
    jobs.iter().for_each(|job| job.seat.rise());
    let error = match ran {
        Ok(answers) => {
            for (job, answer) in jobs.into_iter().zip(answers) {
                job.answer(Ok(answer));
            }
            return;
        }
        Err(error) => error,
    };
    let is_late = |error: &PredictError| usize::from(error.code == ErrorCode::DeadlineExceeded);
    let mut late = is_late(&error);
    for job in jobs {
        if job.is_left() {
            continue;
        }
        // After a second timeout the model itself is too slow; the remaining jobs fail without a
        // run.
        let answer = match late {
            0 | 1 => job.run(runner, watch),
            _ => Err(error.clone()),
        };
        late += answer.as_ref().err().map_or(0, is_late);
        job.answer(answer);
    }
}

/// The answers of all jobs, which have the same schema.
fn all(
    runner: &mut Runner,
    jobs: &[Job],
    watch: &mut RunTimeout,
) -> Result<Vec<RecordBatch>, PredictError> {
    let failed = |error: volley_onnx_runtime::ort::Error| {
        internal("a run could not be set up", error.to_string())
    };
    let Some(first) = jobs.first() else {
        return Ok(Vec::new());
    };
    let rows = jobs.iter().map(|job| &job.rows);
    let rows = arrow_select::concat::concat_batches(&first.rows.schema(), rows).map_err(apart)?;
    let run = Arc::new(SharedRun {
        options: Arc::new(SharedRunOptions::new().map_err(failed)?),
        callers: AtomicUsize::new(jobs.len()),
    });
    jobs.iter().for_each(|job| job.seat.join(&run));
    let answer = guarded(runner, &rows, &run.options, watch)?;
    if answer.num_rows() != rows.num_rows() {
        return Err(internal("the model returned another number of rows", ""));
    }
    let mut start = 0;
    let parts = jobs.iter().map(|job| {
        let end = start + job.rows.num_rows() as u32;
        let part = UInt32Array::from_iter_values(start..end);
        start = end;
        // A copy: a slice would keep the whole answer in memory.
        arrow_select::take::take_record_batch(&answer, &part).map_err(apart)
    });
    parts.collect()
}

fn apart(error: ArrowError) -> PredictError {
    internal(
        "rows of several requests do not fit together",
        error.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::job::RunSubscriber;
    use volley_onnx_runtime::Runtime;

    #[test]
    fn a_run_is_left_once_by_each_caller_whenever_that_goes() {
        let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
        Runtime::init(&library).unwrap();
        let run = |callers| {
            Arc::new(SharedRun {
                options: Arc::new(SharedRunOptions::new().unwrap()),
                callers: AtomicUsize::new(callers),
            })
        };
        let left = |run: &SharedRun| run.callers.load(Ordering::Acquire);
        let (one, two, gone) = (
            RunSubscriber::default(),
            RunSubscriber::default(),
            RunSubscriber::default(),
        );
        gone.leave();
        let first = run(3);
        [&one, &two, &gone]
            .iter()
            .for_each(|seat| seat.join(&first));
        assert_eq!(left(&first), 2, "one had gone before it began");
        one.leave();
        one.leave();
        assert_eq!(left(&first), 1);
        two.rise();
        two.leave();
        assert_eq!(left(&first), 1, "the run was over");
        let second = run(1);
        two.join(&second);
        assert_eq!(left(&second), 0);
    }
}
