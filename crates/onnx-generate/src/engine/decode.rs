//! The decode loop. Each round receives new requests, prefills a part of a prompt, decodes one
//! token for every generation that is not paused, and delivers the rows to their readers.
//!
//! Slots are ordered: decoding generations, paused generations, the prompt that is being prefilled,
//! free slots. So a step is one run over the first slots of the cache, and a slow reader costs no
//! computation.

mod together;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use volley_types::PredictError;

use super::delivery::Delivery;
use super::running::RunningGeneration;
use super::slots::Slots;
use super::{QUEUE, Request};
use crate::decoder::Decoder;
use crate::model::ModelFiles;
use crate::sampler::{Sampler, Scratch, TokenLimits};

/// Maximum prompt tokens that are prefilled between two steps, so that a long prompt does not delay
/// running generations. Chunks always end at multiples of this number. So the way a prompt is
/// split, and with it the last bits of its numbers, does not depend on concurrent requests.
const PREFILL_TOKENS: usize = 256;
/// The same for a prompt with log probabilities, which needs the logits of every token.
const SCORED_TOKENS: usize = 64;
/// Interval of checks while all readers are slow.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Loop {
    decoder: Decoder,
    files: Arc<ModelFiles>,
    queue: Receiver<Request>,
    delivery: Delivery,
    waiting: VecDeque<Request>,
    /// In the order of their slots.
    running: Vec<RunningGeneration>,
    /// Number of generations, from the first on, that decode in this round.
    active: usize,
    /// Uses the slot after the running generations.
    reading: Option<PromptProgress>,
    slots: Slots,
    prefix_reuse: bool,
    /// Shared by all samplers, which run one after the other.
    scratch: Scratch,
}

/// A prompt of which `read` tokens are in the KV cache.
struct PromptProgress {
    request: Request,
    read: usize,
    /// Number of these tokens that were reused from another prompt.
    cached: usize,
}

impl Loop {
    pub(super) fn new(
        decoder: Decoder,
        files: Arc<ModelFiles>,
        queue: Receiver<Request>,
        delivery: Delivery,
        prefix_reuse: bool,
    ) -> Self {
        Self {
            slots: Slots::new(decoder.slots()),
            prefix_reuse: prefix_reuse && decoder.reads_on(),
            delivery,
            decoder,
            files,
            queue,
            waiting: VecDeque::new(),
            running: Vec::new(),
            active: 0,
            reading: None,
            scratch: Scratch::default(),
        }
    }

    /// Runs until all handles are dropped and nothing is left to decode.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.read_prompts();
            self.arrange();
            self.step();
            self.deliver();
        }
    }

    /// Waits if there is nothing to do. Returns false when the queue is closed and everything is
    /// done.
    fn receive(&mut self) -> bool {
        if self.running.is_empty() && self.reading.is_none() && self.waiting.is_empty() {
            match self.queue.recv() {
                Ok(request) => self.waiting.push_back(request),
                Err(_) => return false,
            }
        } else if self.reading.is_none() && self.running.iter().all(|running| running.paused) {
            self.pause();
        }
        true
    }

    /// Takes all requests from the queue.
    fn receive_more(&mut self) {
        while self.waiting.len() < QUEUE {
            let Ok(request) = self.queue.try_recv() else {
                break;
            };
            self.waiting.push_back(request);
        }
        self.waiting.retain(|request| !request.sender.is_closed());
    }

    /// Waits shortly for readers to make room, or for a request.
    fn pause(&mut self) {
        if QUEUE <= self.waiting.len() {
            return std::thread::sleep(PAUSE);
        }
        match self.queue.recv_timeout(PAUSE) {
            Ok(request) => self.waiting.push_back(request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE),
        }
    }

    /// Prefills prompts within the budget of one round. Prompts that arrive meanwhile are included,
    /// so they need not wait for a step.
    fn read_prompts(&mut self) {
        let mut left = PREFILL_TOKENS;
        while 0 < left {
            self.receive_more();
            let together = self.read_together(left);
            if 0 < together {
                left = left.saturating_sub(together);
                continue;
            }
            let Some(reading) = self.reading.take().or_else(|| self.next_waiting()) else {
                return;
            };
            if !reading.request.sender.is_closed() {
                left = left.saturating_sub(self.read_chunk(reading));
            }
        }
    }

    fn next_waiting(&mut self) -> Option<PromptProgress> {
        if self.running.len() == self.decoder.slots() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        let slot = self.running.len();
        let cached = if request.options.scores_prompt() {
            // Every token needs its logits, so nothing is reused.
            self.slots.forget(slot);
            0
        } else {
            self.reuse_prefix(slot, &request.prompt)
        };
        Some(PromptProgress {
            request,
            read: cached,
            cached,
        })
    }

    /// Prepares the first free slot for a prompt. Returns the number of prompt tokens that it
    /// already holds.
    fn reuse_prefix(&mut self, slot: usize, prompt: &[u32]) -> usize {
        if !self.prefix_reuse {
            self.slots.forget(slot);
            return 0;
        }
        let plan = self.slots.reuse_prefix(slot, prompt);
        let exchanged = match plan.exchange {
            Some((one, other, length)) => self.decoder.swap_slots(one, other, length),
            None => Ok(()),
        };
        let taken = exchanged.and_then(|()| match plan.length {
            0 => Ok(()),
            length => self.decoder.reuse_prefix(plan.from, slot, length),
        });
        match taken {
            Ok(()) => plan.length,
            // Only free slots were changed.
            Err(error) => {
                tracing::warn!(
                    error = error.chain(),
                    "prefix reuse failed; prefilling the whole prompt"
                );
                (slot..self.decoder.slots()).for_each(|slot| self.slots.forget(slot));
                0
            }
        }
    }

    /// Prefills the next chunk of a prompt; the last chunk yields the first token. Returns the
    /// number of prefilled tokens.
    fn read_chunk(&mut self, reading: PromptProgress) -> usize {
        let PromptProgress {
            mut request,
            read,
            cached,
        } = reading;
        let scores = request.options.scores_prompt();
        let end = match (self.decoder.reads_on(), scores) {
            (true, false) => request.prompt.len().min(chunk_end(read)),
            (true, true) => request.prompt.len().min(read + SCORED_TOKENS),
            (false, _) => request.prompt.len(),
        };
        let slot = self.running.len();
        if scores {
            self.score_chunk(slot, request, read..end);
            return end - read;
        }
        let mut sampler = (end == request.prompt.len()).then(|| request.sampler(&self.files));
        let tokens = &request.prompt[read..end];
        let scratch = &mut self.scratch;
        let chosen = self.decoder.prefill(slot, read, tokens, |logits| {
            sampler
                .as_mut()
                .map(|sampler| sampler.choose(logits, scratch))
        });
        self.slots.extend(slot, tokens);
        match (chosen, sampler) {
            (Err(error), _) => {
                self.slots.forget(slot);
                request.fail(error, &mut self.delivery);
            }
            (Ok(Some(Err(error))), _) => request.fail(error, &mut self.delivery),
            (Ok(Some(Ok(chosen))), Some(sampler)) => {
                let running =
                    RunningGeneration::start(request, sampler, chosen, cached, &self.files);
                self.running.push(running);
            }
            (Ok(_), _) => {
                self.reading = Some(PromptProgress {
                    request,
                    read: end,
                    cached,
                });
            }
        }
        end - read
    }

    /// As [`Loop::read_chunk`], with the log probability of each prompt token.
    fn score_chunk(&mut self, slot: usize, mut request: Request, chunk: Range<usize>) {
        let Range { start, end } = chunk;
        let whole = end == request.prompt.len();
        let answers = whole && 0 < request.options.max_tokens;
        let mut sampler = answers.then(|| request.sampler(&self.files));
        let Request {
            prompt, telling, ..
        } = &mut request;
        let (files, scratch) = (&self.files, &mut self.scratch);
        let mut chosen = None;
        let tokens = &prompt[start..end];
        let ran = self
            .decoder
            .prefill_all(slot, start, tokens, |index, logits| {
                match prompt.get(start + index + 1) {
                    Some(next) => telling.score(*next, logits, scratch, files),
                    None => {
                        let sampler = sampler.as_mut();
                        chosen = sampler.map(|sampler| sampler.choose(logits, scratch));
                    }
                }
            });
        self.slots.extend(slot, tokens);
        match (ran, chosen, sampler) {
            (Err(error), ..) => {
                self.slots.forget(slot);
                request.fail(error, &mut self.delivery);
            }
            (Ok(()), Some(Err(error)), _) => request.fail(error, &mut self.delivery),
            (Ok(()), Some(Ok(chosen)), Some(sampler)) => {
                request.telling.scored();
                let running = RunningGeneration::start(request, sampler, chosen, 0, &self.files);
                self.running.push(running);
            }
            (Ok(()), ..) if whole => {
                request.telling.scored();
                self.running
                    .push(RunningGeneration::ended(request, &self.files));
            }
            (Ok(()), ..) => {
                self.reading = Some(PromptProgress {
                    request,
                    read: end,
                    cached: 0,
                });
            }
        }
    }

    /// Moves decoding generations to the first slots.
    fn arrange(&mut self) {
        // Partitions in place with a minimum of swaps, because each swap copies two slots.
        let (mut front, mut back) = (0, self.running.len());
        while front < back {
            if self.running[front].decodes() {
                front += 1;
            } else if !self.running[back - 1].decodes() {
                back -= 1;
            } else {
                let (one, other) = (front, back - 1);
                if let Err(error) = self.swap_slots(one, other) {
                    return self.fail_all(&error);
                }
                self.running.swap(one, other);
            }
        }
        self.active = front;
    }

    /// Decodes one token for every decoding generation.
    fn step(&mut self) {
        if self.active == 0 {
            return;
        }
        let (active, files) = (&mut self.running[..self.active], &self.files);
        let scratch = &mut self.scratch;
        let tokens: Vec<u32> = active.iter().map(|running| running.next).collect();
        let lengths: Vec<usize> = active.iter().map(|running| running.length).collect();
        let result = self.decoder.decode(&tokens, &lengths, |logits| {
            for (running, logits) in active.iter_mut().zip(logits.chunks(files.vocabulary)) {
                running.advance(logits, files, scratch);
            }
        });
        match result {
            Ok(()) => {
                for (slot, token) in tokens.iter().enumerate() {
                    self.slots.extend(slot, &[*token]);
                }
            }
            Err(error) => self.fail_all(&error),
        }
    }

    /// Fails all generations after a failed step, because the content of the cache is undefined.
    fn fail_all(&mut self, error: &PredictError) {
        tracing::error!(error = error.chain(), "decode step failed");
        for running in self.running.drain(..) {
            running.request.fail(error.clone(), &mut self.delivery);
        }
        if let Some(reading) = self.reading.take() {
            reading.request.fail(error.clone(), &mut self.delivery);
        }
        self.slots.forget_all();
        self.active = 0;
    }

    /// Delivers rows to their readers, and frees the slots of generations that have ended or lost
    /// their reader. Rows are sent before slots are moved.
    fn deliver(&mut self) {
        let (running, delivery) = (&mut self.running, &mut self.delivery);
        let mut ended = Vec::new();
        for (slot, running) in running.iter_mut().enumerate() {
            if !running.give(delivery) {
                ended.push(slot);
            }
        }
        delivery.flush();
        if let Err(error) = self.free(&ended) {
            self.fail_all(&error);
            self.delivery.flush();
        }
    }

    /// Frees these slots, which are in ascending order, and moves the last ones and the prompt into
    /// the gaps. Their content remains in the slots behind as prefixes for later prompts. The order
    /// is descending, so that no slot is moved that is freed itself.
    fn free(&mut self, ended: &[usize]) -> Result<(), PredictError> {
        let reading = self.running.len();
        for slot in ended.iter().rev().copied() {
            self.running.swap_remove(slot);
            self.slots.free(slot);
            let last = self.running.len();
            if slot < last {
                self.swap_slots(slot, last)?;
            }
        }
        if self.reading.is_some() && self.running.len() < reading {
            self.swap_slots(self.running.len(), reading)?;
        }
        Ok(())
    }

    fn swap_slots(&mut self, one: usize, other: usize) -> Result<(), PredictError> {
        let length = self.slots.longer(one, other);
        self.decoder.swap_slots(one, other, length)?;
        self.slots.swap(one, other);
        Ok(())
    }
}

/// End of the chunk that begins at `read`: always a multiple of the chunk size.
fn chunk_end(read: usize) -> usize {
    (read / PREFILL_TOKENS + 1) * PREFILL_TOKENS
}

impl Request {
    /// Creates the sampler of its tokens; takes the constraint.
    pub(super) fn sampler(&mut self, files: &ModelFiles) -> Sampler {
        let options = &self.options;
        let (prompt, said) = self.prompt.split_at(self.prompt.len() - self.said);
        let ends = files.eos.iter().chain(&options.stop_tokens);
        let limits = TokenLimits {
            least: options.min_tokens,
            ends: ends.copied().collect(),
            banned: self.banned.clone(),
        };
        Sampler::new(options.sampling.clone(), prompt, files.vocabulary)
            .with(self.constraint.take(), options.logprobs)
            .within(limits)
            .behind(said)
    }

    /// Reports the error to the reader.
    fn fail(&self, error: PredictError, delivery: &mut Delivery) {
        // If the reader has gone or its channel is full, its stream ends without a last row, which
        // is also an error.
        let _ = delivery.add(&self.sender, (self.telling.place(), Err(error)));
    }
}
