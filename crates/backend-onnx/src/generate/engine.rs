//! The decode loop: one thread that runs all generations of a replica.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError};
use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError as ChunkError;
use volley_types::{ErrorCode, FinishReason, GenerationChunk, ModelName, PredictError, Usage};

use super::decoder::Decoder;
use super::model::ModelFiles;
use super::options::Options;
use super::sampler::Sampler;
use super::text::{Detokenizer, StopFilter};

/// Chunks that wait for one reader; its generation pauses when they are not read.
pub(crate) const CHUNKS_PER_READER: usize = 64;
/// Requests that wait for a slot; the worker admits no more than there are slots, so these are
/// the items of requests with several.
const QUEUE: usize = 1_024;
/// Prompt tokens that are read between two steps, so that a long prompt holds nobody up.
const PREFILL_TOKENS: usize = 256;
/// How often readers are looked at when all of them are slow.
const PAUSE: Duration = Duration::from_millis(2);

/// One item to generate.
pub(crate) struct Request {
    pub(crate) item: u32,
    pub(crate) prompt: Vec<u32>,
    pub(crate) options: Options,
    pub(crate) sender: Sender<Result<GenerationChunk, PredictError>>,
}

/// The way to the thread, which ends when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct Engine {
    requests: SyncSender<Request>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub(crate) fn start(
        model: &ModelName,
        decoder: Decoder,
        files: Arc<ModelFiles>,
    ) -> Result<Self, PredictError> {
        let (requests, queue) = std::sync::mpsc::sync_channel(QUEUE);
        std::thread::Builder::new()
            .name(format!("decode-{model}"))
            .spawn(move || Loop::new(decoder, files, queue).run())
            .map_err(|error| PredictError::internal("the decode thread cannot start", error))?;
        Ok(Self { requests })
    }

    /// Queues one item.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full, `Internal` when the thread has ended.
    pub(crate) fn submit(&self, request: Request) -> Result<(), PredictError> {
        self.requests
            .try_send(request)
            .map_err(|error| match error {
                TrySendError::Full(_) => {
                    PredictError::new(ErrorCode::Overloaded, "too many prompts wait for the model")
                        .with_retry_after(Duration::from_secs(1))
                }
                TrySendError::Disconnected(_) => {
                    PredictError::new(ErrorCode::Internal, "the model's thread has ended")
                }
            })
    }
}

/// A generation in its slot.
struct Running {
    request: Request,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stops: StopFilter,
    /// Tokens in the KV cache.
    length: usize,
    /// Chosen and not yet in the KV cache.
    next: u32,
    generated: u32,
    /// Waits for its reader to make room.
    held: VecDeque<GenerationChunk>,
    finished: bool,
}

struct Loop {
    decoder: Decoder,
    files: Arc<ModelFiles>,
    queue: Receiver<Request>,
    waiting: VecDeque<Request>,
    /// In the order of their slots.
    running: Vec<Running>,
    /// Being read into the slot behind those, with how many tokens are in.
    reading: Option<(Request, usize)>,
}

impl Loop {
    fn new(decoder: Decoder, files: Arc<ModelFiles>, queue: Receiver<Request>) -> Self {
        Self {
            decoder,
            files,
            queue,
            waiting: VecDeque::new(),
            running: Vec::new(),
            reading: None,
        }
    }

    fn run(mut self) {
        while self.receive() {
            self.read_prompts();
            self.step();
            self.give_and_clear();
        }
    }

    /// Takes what has come; waits when there is nothing to do. False when no more can come.
    fn receive(&mut self) -> bool {
        let idle = self.running.is_empty() && self.reading.is_none() && self.waiting.is_empty();
        if idle {
            match self.queue.recv() {
                Ok(request) => self.waiting.push_back(request),
                Err(_) => return false,
            }
        } else if !self.running.is_empty() && self.reading.is_none() && self.all_paused() {
            match self.queue.recv_timeout(PAUSE) {
                Ok(request) => self.waiting.push_back(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE),
            }
        }
        loop {
            match self.queue.try_recv() {
                Ok(request) => self.waiting.push_back(request),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn all_paused(&self) -> bool {
        self.running.iter().all(|running| !running.held.is_empty())
    }

    /// Reads prompts, up to the budget of one round.
    fn read_prompts(&mut self) {
        let mut budget = PREFILL_TOKENS;
        while 0 < budget {
            let Some((request, read)) = self.reading.take().or_else(|| self.next_waiting()) else {
                return;
            };
            if request.sender.is_closed() {
                continue;
            }
            let end = request.prompt.len().min(read + budget);
            budget -= end - read;
            let slot = self.running.len();
            let mut sampler = (end == request.prompt.len()).then(|| {
                let sampling = request.options.sampling.clone();
                Sampler::new(sampling, &request.prompt, self.files.vocabulary)
            });
            let tokens = &request.prompt[read..end];
            let chosen = self.decoder.prefill(slot, read, tokens, |logits| {
                sampler.as_mut().map(|sampler| sampler.choose(logits))
            });
            match (chosen, sampler) {
                (Err(error), _) => fail(&request, error),
                (Ok(Some(token)), Some(sampler)) => {
                    let mut running = Running::new(request, sampler, end);
                    running.take(token, &self.files);
                    self.running.push(running);
                }
                (Ok(_), _) => self.reading = Some((request, end)),
            }
        }
    }

    fn next_waiting(&mut self) -> Option<(Request, usize)> {
        if self.running.len() == self.decoder.slots() {
            return None;
        }
        self.waiting.pop_front().map(|request| (request, 0))
    }

    /// One token for every generation that runs. One whose reader is slow is computed along and
    /// its result thrown away: its slot stays as it is.
    fn step(&mut self) {
        let active = |running: &Running| !running.finished && running.held.is_empty();
        if !self.running.iter().any(active) {
            return;
        }
        let tokens: Vec<u32> = self.running.iter().map(|running| running.next).collect();
        let lengths: Vec<usize> = self.running.iter().map(|running| running.length).collect();
        let (running, files) = (&mut self.running, &self.files);
        let result = self.decoder.decode(&tokens, &lengths, |logits| {
            for (running, logits) in running.iter_mut().zip(logits.chunks(files.vocabulary)) {
                if active(running) {
                    running.length += 1;
                    let token = running.sampler.choose(logits);
                    running.take(token, files);
                }
            }
        });
        if let Err(error) = result {
            for running in self.running.drain(..) {
                fail(&running.request, error.clone());
            }
        }
    }

    /// Gives chunks to their readers, and frees the slots of what has ended or was left.
    fn give_and_clear(&mut self) {
        let mut slot = 0;
        while slot < self.running.len() {
            if self.running[slot].give() {
                slot += 1;
                continue;
            }
            self.running.swap_remove(slot);
            let last = self.running.len();
            if slot < last {
                self.decoder
                    .move_slot(last, slot, self.running[slot].length);
            }
            if let Some((_, read)) = &self.reading {
                self.decoder.move_slot(last + 1, last, *read);
            }
        }
    }
}

fn fail(request: &Request, error: PredictError) {
    // The reader may have gone, or may be too slow even for this: its channel then ends without
    // a last row, which is an error too.
    let _ = request.sender.try_send(Err(error));
}

impl Running {
    fn new(request: Request, sampler: Sampler, length: usize) -> Self {
        let stops = StopFilter::new(request.options.stop.clone());
        Self {
            request,
            sampler,
            detokenizer: Detokenizer::default(),
            stops,
            length,
            next: 0,
            generated: 0,
            held: VecDeque::new(),
            finished: false,
        }
    }

    /// Takes a chosen token: its text, and whether it is the last one.
    fn take(&mut self, token: u32, files: &ModelFiles) {
        self.next = token;
        self.generated += 1;
        if files.eos.contains(&token) && !self.request.options.ignore_eos {
            return self.finish(FinishReason::Stop, files);
        }
        let passed = self
            .stops
            .push(&self.detokenizer.push(token, &files.tokenizer));
        if !passed.text.is_empty() {
            self.hold(GenerationChunk {
                text: Some(passed.text),
                token_id: Some(token),
                ..GenerationChunk::default()
            });
        }
        if passed.stopped {
            self.end(FinishReason::Stop);
        } else if self.request.options.max_tokens <= self.generated as usize
            || files.context <= self.length + 1
        {
            self.finish(FinishReason::Length, files);
        }
    }

    /// Ends with what was held back in front of it.
    fn finish(&mut self, reason: FinishReason, files: &ModelFiles) {
        let rest = self.detokenizer.finish(&files.tokenizer);
        let passed = self.stops.push(&rest);
        let mut text = passed.text;
        if !passed.stopped {
            text.push_str(&self.stops.finish());
        }
        if !text.is_empty() {
            self.hold(GenerationChunk {
                text: Some(text),
                ..GenerationChunk::default()
            });
        }
        self.end(reason);
    }

    fn end(&mut self, reason: FinishReason) {
        self.finished = true;
        let usage = Usage {
            prompt_tokens: u32::try_from(self.request.prompt.len()).unwrap_or(u32::MAX),
            completion_tokens: self.generated,
        };
        self.hold(GenerationChunk {
            finish_reason: Some(reason),
            usage: Some(usage),
            last: true,
            ..GenerationChunk::default()
        });
    }

    fn hold(&mut self, mut chunk: GenerationChunk) {
        chunk.item = self.request.item;
        self.held.push_back(chunk);
    }

    /// Gives what is held, as far as the reader takes it. False when the slot is free: all was
    /// given, or the reader has gone.
    fn give(&mut self) -> bool {
        while let Some(chunk) = self.held.pop_front() {
            match self.request.sender.try_send(Ok(chunk)) {
                Ok(()) => {}
                Err(ChunkError::Full(Ok(chunk))) => {
                    self.held.push_front(chunk);
                    return true;
                }
                Err(ChunkError::Full(Err(_)) | ChunkError::Closed(_)) => return false,
            }
        }
        !self.finished && !self.request.sender.is_closed()
    }
}
