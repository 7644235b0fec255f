//! The engine of a replica: a handle to the one thread that decodes all its generations.

mod decode;
mod delivery;
mod running;
mod slots;

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use volley_types::{ErrorCode, ModelName, PredictError};

use self::decode::Loop;
use self::delivery::Delivery;
use super::decoder::Decoder;
use super::event::EngineEvent;
use super::model::ModelFiles;
use super::options::Options;
use super::output_assembler::OutputAssembler;
use volley_constraints::Constraint;

/// Chunks that wait for one reader; its generation pauses when they are not read.
pub(crate) const CHUNKS_PER_READER: usize = 64;
/// Items that wait for a slot. The worker admits no more requests than there are slots, so these
/// are the items of requests with several.
const QUEUE: usize = 1_024;

/// One answer to generate.
pub(crate) struct Request {
    /// What is read before the next token: the prompt, and behind it what another replica told of
    /// the answer.
    pub(crate) prompt: Vec<u32>,
    /// How many tokens at the end of that are the answer's own.
    pub(crate) said: usize,
    pub(crate) options: Options,
    /// What holds the answer to its form.
    pub(crate) constraint: Option<Constraint>,
    /// Tokens that must not follow each other.
    pub(crate) banned: Arc<[Vec<u32>]>,
    /// What becomes of its tokens.
    pub(crate) telling: OutputAssembler,
    pub(crate) sender: Sender<EngineEvent>,
}

/// The way to the thread. The thread ends when the last handle is dropped and nothing is left
/// to decode.
#[derive(Clone)]
pub(crate) struct Engine(Arc<Owner>);

/// The thread with its entrance.
struct Owner {
    // `Some` until it is dropped.
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread. With `prefix_reuse`, prompts take over what others left in the KV cache.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub(crate) fn start(
        model: &ModelName,
        decoder: Decoder,
        files: Arc<ModelFiles>,
        prefix_reuse: bool,
    ) -> Result<Self, PredictError> {
        let (requests, queue) = sync_channel(QUEUE);
        let runtime = tokio::runtime::Handle::try_current().map_err(|error| {
            PredictError::internal("a generation model is loaded within a runtime", error)
        })?;
        let delivery = Delivery::start(&runtime);
        let thread = std::thread::Builder::new()
            .name(format!("decode-{model}"))
            .spawn(move || Loop::new(decoder, files, queue, delivery, prefix_reuse).run())
            .map_err(|error| PredictError::internal("the decode thread cannot start", error))?;
        Ok(Self(Arc::new(Owner {
            requests: Some(requests),
            thread: Some(thread),
        })))
    }

    /// Queues one item.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full, `Internal` when the thread has ended.
    pub(crate) fn submit(&self, request: Request) -> Result<(), PredictError> {
        let ended = || PredictError::new(ErrorCode::Internal, "the model's thread has ended");
        let requests = self.0.requests.as_ref().ok_or_else(ended)?;
        requests.try_send(request).map_err(|error| match error {
            TrySendError::Full(_) => {
                PredictError::new(ErrorCode::Overloaded, "too many prompts wait for the model")
                    .with_retry_after(Duration::from_secs(1))
            }
            TrySendError::Disconnected(_) => ended(),
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Without an entrance the thread ends after the step that it is in.
        self.requests.take();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let wait = move || {
            if thread.join().is_err() {
                tracing::error!("decode thread panicked");
            }
        };
        // The last handle is often a stream's, dropped on a runtime's thread, which must not be
        // held for a step. The runtime waits for the thread instead when it shuts down.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => wait(),
        }
    }
}
