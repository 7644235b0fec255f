//! The engine of a replica: a handle to the single thread that decodes all of its generations.

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

/// Maximum number of chunks that wait for one reader. A generation pauses while its reader does not
/// read.
pub(crate) const CHUNKS_PER_READER: usize = 64;
/// Maximum number of items that wait for a slot. The worker admits at most as many requests as
/// there are slots, so these are items of requests with several items.
const QUEUE: usize = 1_024;

/// One answer to generate.
pub(crate) struct Request {
    /// The tokens to prefill: the prompt, followed by the part of the answer that another replica
    /// has already sent.
    pub(crate) prompt: Vec<u32>,
    /// Number of tokens at the end of `prompt` that belong to the answer.
    pub(crate) said: usize,
    pub(crate) options: Options,
    /// The constraint on the form of the answer.
    pub(crate) constraint: Option<Constraint>,
    /// Token sequences that the answer must not contain.
    pub(crate) banned: Arc<[Vec<u32>]>,
    /// Converts the tokens to rows.
    pub(crate) telling: OutputAssembler,
    pub(crate) sender: Sender<EngineEvent>,
}

/// Handle of the thread. The thread ends when the last handle is dropped and nothing is left to
/// decode.
#[derive(Clone)]
pub(crate) struct Engine(Arc<Owner>);

/// The thread and the channel to it.
struct Owner {
    // `Some` until it is dropped.
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread. With `prefix_reuse`, prompts reuse matching prefixes in the KV cache.
    ///
    /// # Errors
    /// `Internal` when the thread cannot be started.
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
    /// `Overloaded` when the queue is full; `Internal` when the thread has ended.
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
        // When the channel closes, the thread ends after its current step.
        self.requests.take();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let wait = move || {
            if thread.join().is_err() {
                tracing::error!("decode thread panicked");
            }
        };
        // The last handle is often dropped with a stream on a runtime thread, which must not block
        // for a step. The runtime waits for the model thread when it shuts down.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => wait(),
        }
    }
}
