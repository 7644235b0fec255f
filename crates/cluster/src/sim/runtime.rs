//! What the consensus library's tasks run on: tokio, with dice that a story seeds, and with lives
//! that end or stand still at once, as processes do.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

thread_local! {
    /// Whose task is polled now.
    static CURRENT: RefCell<Option<Life>> = const { RefCell::new(None) };
    /// Election timeouts of the story that this thread tells.
    static DICE: RefCell<Option<fastrand::Rng>> = const { RefCell::new(None) };
}

/// One process of a coordinator, from its start to its end.
#[derive(Clone, Debug)]
pub(super) struct Life(Arc<State>);

#[derive(Debug)]
struct State {
    node: u64,
    ended: CancellationToken,
    tasks: Mutex<Vec<AbortHandle>>,
    frozen: Mutex<Frozen>,
}

#[derive(Debug, Default)]
struct Frozen {
    now: bool,
    /// When that began or ended.
    changed: Option<Instant>,
    waiting: Vec<Waker>,
}

impl Life {
    pub(super) fn new(node: u64) -> Self {
        Self(Arc::new(State {
            node,
            ended: CancellationToken::new(),
            tasks: Mutex::default(),
            frozen: Mutex::default(),
        }))
    }

    pub(super) fn node(&self) -> u64 {
        self.0.node
    }

    pub(super) fn has_ended(&self) -> bool {
        self.0.ended.is_cancelled()
    }

    /// Resolves when it has ended.
    pub(super) async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Ends it: none of its tasks runs any further.
    pub(super) fn end(&self) {
        self.0.ended.cancel();
        for task in self.0.tasks.lock().drain(..) {
            task.abort();
        }
        self.freeze(false);
    }

    /// Its tasks stand still, or go on.
    pub(super) fn freeze(&self, frozen: bool) {
        let mut state = self.0.frozen.lock();
        if state.now != frozen {
            state.changed = Some(Instant::now());
        }
        state.now = frozen;
        if !frozen {
            state.waiting.drain(..).for_each(Waker::wake);
        }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.0.frozen.lock().now
    }

    /// Whether it stood still at any time after `then`.
    pub(super) fn was_frozen_since(&self, then: Instant) -> bool {
        let state = self.0.frozen.lock();
        state.now || state.changed.is_some_and(|changed| then <= changed)
    }

    /// Whether `other` is the same life, not only of the same node.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Runs `work` as a part of it.
    pub(super) fn part<F: Future>(&self, work: F) -> Part<F> {
        Part {
            life: self.clone(),
            work: Box::pin(work),
        }
    }

    /// Runs `work` as a task of it.
    pub(super) fn spawn<F>(&self, work: F) -> JoinHandle<F::Output>
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

/// Work of a life.
pub(super) struct Part<F> {
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

/// Runs `work` on a clock of its own, with election timeouts from `seed`. All that it has begun
/// ends with it.
pub(super) fn on_simulated_time<T>(seed: u64, work: impl Future<Output = T>) -> T {
    DICE.set(Some(fastrand::Rng::with_seed(seed)));
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without sockets needs nothing");
    let done = runtime.block_on(work);
    drop(runtime);
    DICE.set(None);
    done
}

/// Tokio, where no story is told.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Simulated;

impl AsyncRuntime for Simulated {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = tokio::time::Sleep;
    type Instant = tokio::time::Instant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = Dice;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiverError = tokio::sync::oneshot::error::RecvError;
    type OneshotReceiver<T: OptionalSend> = tokio::sync::oneshot::Receiver<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match CURRENT.with_borrow(Clone::clone) {
            Some(life) => life.spawn(future),
            None => tokio::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        error.is_panic()
    }

    fn thread_rng() -> Dice {
        Dice
    }

    fn oneshot<T: OptionalSend>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

/// Seeded in a story, random elsewhere.
#[derive(Debug)]
pub(crate) struct Dice;

impl rand_core::RngCore for Dice {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        DICE.with_borrow_mut(|dice| match dice {
            Some(dice) => dice.u64(..),
            None => fastrand::u64(..),
        })
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next_u64() as u8;
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}
