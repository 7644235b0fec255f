use proptest::prelude::*;

use super::*;

type Answers = Vec<oneshot::Receiver<RowResults>>;

/// Creates a job with rows of these lengths.
fn job(lengths: &[usize]) -> (Job, oneshot::Receiver<RowResults>) {
    let row = |length: &usize| Tokens {
        ids: vec![0; *length],
        ..Tokens::default()
    };
    let (answer, answered) = oneshot::channel();
    let rows = Arc::new(lengths.iter().map(row).collect());
    let request = RequestKey::fresh();
    let job = Job {
        request,
        rows,
        answer,
    };
    (job, answered)
}

/// Creates a batcher for `threads` threads with these jobs. Its queue is closed.
fn batcher(jobs: &[Vec<usize>], threads: usize) -> (Batcher, Answers) {
    let (sender, queue) = mpsc::channel(jobs.len());
    let mut answers = Vec::new();
    for lengths in jobs {
        let (job, answered) = job(lengths);
        assert!(sender.try_send(job).is_ok());
        answers.push(answered);
    }
    let batcher = Batcher::new(queue, jobs.len(), Duration::ZERO, BUDGET, threads);
    (batcher, answers)
}

fn waiting(jobs: &[Vec<usize>]) -> (WaitingJobs, Answers) {
    let (batcher, answers) = batcher(jobs, 1);
    let mut waiting = batcher.waiting.into_inner().unwrap();
    assert_eq!(waiting.receive(), QueueEvent::Jobs { fresh: true });
    (waiting, answers)
}

const BUDGET: Budget = Budget {
    tokens: 1_024,
    rows: 64,
};

#[test]
fn a_window_is_as_many_rows_of_each_and_fewer_of_long_ones() {
    let counts = |waiting: &mut WaitingJobs| {
        let mut counts = vec![0; waiting.jobs.len()];
        for (job, _) in waiting.window(BUDGET, 1) {
            counts[job] += 1;
        }
        counts
    };
    let (mut alone, _answers) = waiting(&[vec![8; 1_000]]);
    assert_eq!(counts(&mut alone), [WINDOW_ROWS]);
    // 8 runs of 1,024 tokens are 16 texts of 512 tokens.
    let (mut long, _answers) = waiting(&[vec![512; 1_000]]);
    assert_eq!(counts(&mut long), [16]);
    // A short request does not wait behind a long one.
    let (mut both, _answers) = waiting(&[vec![512; 1_000], vec![8; 2]]);
    assert_eq!(counts(&mut both), [8, 2]);
    // A text that exceeds the budget is taken, alone.
    let (mut huge, _answers) = waiting(&[vec![100_000, 8]]);
    assert_eq!(counts(&mut huge), [1]);
    assert_eq!(counts(&mut huge), [1]);
    assert_eq!(counts(&mut huge), [0]);
}

#[test]
fn batches_of_one_request_are_taken_in_their_order_and_have_one_share() {
    let (sender, queue) = mpsc::channel(4);
    let mut answers = Vec::new();
    let request = RequestKey::fresh();
    let mut send = |lengths: &[usize], request| {
        let (job, answered) = job(lengths);
        assert!(sender.try_send(Job { request, ..job }).is_ok());
        answers.push(answered);
    };
    send(&[8; 300], request);
    send(&[8; 300], request);
    send(&[8; 500], RequestKey::fresh());
    let batcher = Batcher::new(queue, 4, Duration::ZERO, BUDGET, 1);
    let mut waiting = batcher.waiting.into_inner().unwrap();
    waiting.receive();
    let mut counts = || {
        let mut counts = [0; 3];
        for (job, _) in waiting.window(BUDGET, 1) {
            counts[job] += 1;
        }
        counts
    };
    assert_eq!(counts(), [128, 0, 128]);
    assert_eq!(counts(), [128, 0, 128]);
    assert_eq!(counts(), [44, 84, 128]);
    assert_eq!(counts(), [0, 128, 116]);
    assert_eq!(counts(), [0, 88, 0], "all of the window for who is left");
}

/// The rows of the runs that threads take in turn without ending any, and whether each was alone.
fn taken(batcher: &Batcher, threads: usize) -> Vec<(usize, bool)> {
    let runs = (0..threads).map_while(|_| batcher.next_run());
    runs.map(|run| (run.places.len(), run.alone)).collect()
}

#[test]
fn what_waits_is_shared_out_among_the_idle_threads() {
    let (eight, _answers) = batcher(&vec![vec![128]; 8], 2);
    assert_eq!(taken(&eight, 2), [(4, false), (4, false)]);
    let (five, _answers) = batcher(&[vec![128; 5]], 2);
    assert_eq!(taken(&five, 2), [(3, false), (2, false)]);
    // A few tokens run together.
    let (few, _answers) = batcher(&vec![vec![8]; 3], 4);
    assert_eq!(taken(&few, 4), [(3, true)]);
    let (one, _answers) = batcher(&vec![vec![128]; 8], 1);
    assert_eq!(taken(&one, 1), [(8, true)]);
    // The budget of a run applies regardless of the number of rows.
    let (many, _answers) = batcher(&[vec![128; 64]], 2);
    assert_eq!(taken(&many, 8), [(8, false); 8]);
}

#[test]
fn a_run_is_alone_while_nothing_else_runs_or_waits() {
    let (sender, queue) = mpsc::channel(4);
    let batcher = Batcher::new(queue, 4, Duration::ZERO, BUDGET, 2);
    let mut answers = Vec::new();
    let mut send = |lengths: &[usize]| {
        let (job, answered) = job(lengths);
        assert!(sender.try_send(job).is_ok());
        answers.push(answered);
    };
    send(&[128]);
    assert_eq!(taken(&batcher, 1), [(1, true)]);
    send(&[128]);
    assert_eq!(taken(&batcher, 1), [(1, false)], "the first one runs");
    batcher.done();
    batcher.done();
    send(&[128]);
    send(&[128]);
    assert_eq!(taken(&batcher, 1), [(1, false)], "the second one waits");
    batcher.done();
    assert_eq!(taken(&batcher, 1), [(1, true)]);
}

/// A batcher with a window and sleeping threads. Each thread sends its number for every run that it
/// takes, and another number when it ends.
fn asleep(window: Duration, threads: usize) -> (Arc<Batcher>, mpsc::Sender<Job>, Wakeups) {
    let (sender, queue) = mpsc::channel(8);
    let batcher = Arc::new(Batcher::new(queue, 8, window, BUDGET, threads));
    let (told, hears) = std::sync::mpsc::sync_channel(1_024);
    for number in 0..threads {
        let (batcher, told) = (batcher.clone(), told.clone());
        let sleeping = batcher.clone();
        thread::spawn(move || {
            while let Some(run) = batcher.next_run() {
                told.send((number, run.places.len())).unwrap();
                batcher.done();
            }
            told.send((number, 0)).unwrap();
        });
        while sleeping.lock().asleep.len() <= number {
            thread::yield_now();
        }
    }
    (batcher, sender, hears)
}

type Wakeups = std::sync::mpsc::Receiver<(usize, usize)>;

#[test]
fn a_job_wakes_the_thread_that_fell_asleep_last_and_no_other() {
    let (batcher, sender, told) = asleep(Duration::ZERO, 3);
    for _ in 0..5 {
        let (job, _answered) = job(&[8]);
        assert!(sender.try_send(job).is_ok());
        batcher.wake();
        assert_eq!(told.recv().unwrap(), (2, 1));
        while batcher.lock().asleep.len() < 3 {
            thread::yield_now();
        }
    }
}

#[test]
fn a_thread_wakes_another_where_it_leaves_something() {
    let (batcher, sender, told) = asleep(Duration::ZERO, 2);
    // Two runs, because there are two threads.
    let (job, _answered) = job(&[512; 8]);
    assert!(sender.try_send(job).is_ok());
    batcher.wake();
    let mut rows = 0;
    while rows < 8 {
        rows += told.recv().unwrap().1;
    }
}

#[test]
fn threads_end_when_no_more_can_come_within_a_window_too() {
    let (batcher, sender, told) = asleep(Duration::from_millis(50), 3);
    let jobs = [job(&[8]), job(&[8]), job(&[8])];
    let mut answers = Vec::new();
    for (job, answered) in jobs {
        assert!(sender.try_send(job).is_ok());
        batcher.wake();
        answers.push(answered);
    }
    drop(sender);
    batcher.wake();
    let (mut rows, mut ended) = (0, 0);
    while ended < 3 {
        match told.recv().unwrap() {
            (_, 0) => ended += 1,
            (_, ran) => rows += ran,
        }
    }
    assert_eq!(rows, 3);
}

proptest! {
    #[test]
    fn every_row_is_in_one_window_and_no_window_is_too_large(
        jobs in proptest::collection::vec(
            proptest::collection::vec(1_usize..3_000, 1..300), 1..12),
        threads in 1_usize..5,
    ) {
        let (mut waiting, _answers) = waiting(&jobs);
        let longest = jobs.iter().flatten().max().copied().unwrap_or(0);
        let all: usize = jobs.iter().map(Vec::len).sum();
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < all {
            let window = waiting.window(BUDGET, threads);
            prop_assert!(!window.is_empty());
            prop_assert!(window.len() < WINDOW_ROWS * threads + jobs.len());
            let tokens: usize = window.iter().map(|(job, row)| jobs[*job][*row]).sum();
            let most = BUDGET.tokens * WINDOW_RUNS * threads + jobs.len() * (longest + 1);
            prop_assert!(tokens <= most, "{tokens} of {most}");
            for place in window {
                prop_assert!(seen.insert(place));
            }
        }
    }
}
