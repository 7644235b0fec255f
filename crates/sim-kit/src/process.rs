//! Processes on tokio's paused clock, which advances to the next event. A life ends or freezes
//! immediately, between two steps of any task. Random numbers are seeded by the scenario.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

thread_local! {
    /// The life whose task is being polled.
    static CURRENT: RefCell<Option<Life>> = const { RefCell::new(None) };
    /// Random numbers of the scenario that this thread runs.
    static DICE: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// One process of a node, from its start to its end. Clones share it.
#[derive(Clone, Debug)]
pub struct Life(Arc<State>);

#[derive(Debug)]
struct State {
    node: u64,
    ended: CancellationToken,
    tasks: Mutex<Vec<AbortHandle>>,
    frozen: Mutex<Pause>,
}

#[derive(Debug, Default)]
struct Pause {
    now: bool,
    /// Time of the last freeze or thaw.
    changed: Option<Instant>,
    waiting: Vec<Waker>,
}

impl Life {
    /// Creates a running process of a node.
    #[must_use]
    pub fn new(node: u64) -> Self {
        Self(Arc::new(State {
            node,
            ended: CancellationToken::new(),
            tasks: Mutex::default(),
            frozen: Mutex::default(),
        }))
    }

    /// Returns the life whose task is being polled; `None` outside of any life.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Returns the node of the process.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.0.node
    }

    /// Returns whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.ended.is_cancelled()
    }

    /// Waits until the process has ended. Cancel safe.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Ends the process: its tasks are aborted.
    pub fn end(&self) {
        self.0.ended.cancel();
        for task in self.0.tasks.lock().drain(..) {
            task.abort();
        }
        self.freeze(false);
    }

    /// Freezes its tasks, or lets them continue.
    pub fn freeze(&self, frozen: bool) {
        let mut state = self.0.frozen.lock();
        if state.now != frozen {
            state.changed = Some(Instant::now());
        }
        state.now = frozen;
        if !frozen {
            state.waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Returns whether its tasks are frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.lock().now
    }

    /// Returns whether its tasks were frozen at any time since `then`.
    #[must_use]
    pub fn was_frozen_since(&self, then: Instant) -> bool {
        let state = self.0.frozen.lock();
        state.now || state.changed.is_some_and(|changed| then <= changed)
    }

    /// Returns whether `other` is the same life, and not only a life of the same node.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wraps `work`, so that it ends and freezes with the process. The returned future never
    /// completes after the end of the process.
    pub fn part<F: Future>(&self, work: F) -> Part<F> {
        Part {
            life: self.clone(),
            work: Box::pin(work),
        }
    }

    /// Spawns `work` as a task of the process.
    pub fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task = tokio::spawn(self.part(work));
        if self.has_ended() {
            task.abort();
        } else {
            let mut tasks = self.0.tasks.lock();
            tasks.retain(|task| !task.is_finished());
            tasks.push(task.abort_handle());
        }
        task
    }
}

/// Work of a process, which ends and freezes with it.
#[derive(Debug)]
pub struct Part<F> {
    life: Life,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Part<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if this.life.has_ended() {
            return Poll::Pending;
        }
        {
            let mut frozen = this.life.0.frozen.lock();
            if frozen.now {
                frozen.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        let before = CURRENT.replace(Some(this.life.clone()));
        let polled = this.work.as_mut().poll(context);
        CURRENT.set(before);
        polled
    }
}

/// Runs `work` on its own paused clock, with random numbers from `seed`. Tasks that it has spawned
/// end with it.
///
/// # Panics
/// If `work` panics.
pub fn on_simulated_time<T>(seed: u64, work: impl Future<Output = T>) -> T {
    DICE.set(Some(fastrand::Rng::with_seed(seed)));
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without sockets needs nothing");
    let done = runtime.block_on(work);
    drop(runtime);
    DICE.set(None);
    done
}

/// Returns a random number of the scenario that this thread runs, or an unseeded one outside of a
/// scenario.
#[must_use]
pub fn roll() -> u64 {
    DICE.with_borrow_mut(|dice| match dice {
        Some(dice) => dice.u64(..),
        None => fastrand::u64(..),
    })
}
