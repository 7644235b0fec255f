//! Processes on tokio's paused clock, which leaps to the next thing that happens: lives that end or
//! stand still at once, between two steps of any task, and dice that a story seeds.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

thread_local! {
    /// Whose task is polled now.
    static CURRENT: RefCell<Option<Life>> = const { RefCell::new(None) };
    /// The dice of the story that this thread tells.
    static DICE: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// One process of a node, from its start to its end. Cloning gives another handle.
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
    /// When that began or ended.
    changed: Option<Instant>,
    waiting: Vec<Waker>,
}

impl Life {
    /// A process of that node, which runs.
    #[must_use]
    pub fn new(node: u64) -> Self {
        Self(Arc::new(State {
            node,
            ended: CancellationToken::new(),
            tasks: Mutex::default(),
            frozen: Mutex::default(),
        }))
    }

    /// Whose task is polled now.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// The node whose process it is.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.0.node
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.ended.is_cancelled()
    }

    /// Resolves when it has ended.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Ends it: none of its tasks runs any further.
    pub fn end(&self) {
        self.0.ended.cancel();
        for task in self.0.tasks.lock().drain(..) {
            task.abort();
        }
        self.freeze(false);
    }

    /// Its tasks stand still, or go on.
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

    /// Whether its tasks stand still.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.0.frozen.lock().now
    }

    /// Whether it stood still at any time after `then`.
    #[must_use]
    pub fn was_frozen_since(&self, then: Instant) -> bool {
        let state = self.0.frozen.lock();
        state.now || state.changed.is_some_and(|changed| then <= changed)
    }

    /// Whether `other` is the same life, not only of the same node.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `work` as a part of it.
    pub fn part<F: Future>(&self, work: F) -> Part<F> {
        Part {
            life: self.clone(),
            work: Box::pin(work),
        }
    }

    /// Runs `work` as a task of it.
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

/// Work of a life: it ends and stands still with it.
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

/// Runs `work` on a clock of its own, with dice from `seed`. All that it has begun ends with it.
///
/// # Panics
/// Where `work` does.
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

/// A number from the dice of the story that this thread tells; a random one where it tells none.
#[must_use]
pub fn roll() -> u64 {
    DICE.with_borrow_mut(|dice| match dice {
        Some(dice) => dice.u64(..),
        None => fastrand::u64(..),
    })
}
