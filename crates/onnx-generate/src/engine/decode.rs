//! The decode loop. Each round takes new requests, reads some of one prompt, decodes one token
//! for every generation that may go on, and gives the rows to their readers.
//!
//! Slots are kept in this order: generations that decode, generations whose reader is behind,
//! the prompt that is being read, free slots. So a step is one run over the first slots of the
//! cache, and a reader who sleeps costs no computation.

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

/// Prompt tokens that are read between two steps, so that a long prompt holds nobody up. Chunks
/// always end at multiples of this, so that how a prompt is cut, and with it the last bits of
/// its numbers, does not depend on what else is read.
const PREFILL_TOKENS: usize = 256;
/// The same of a prompt whose tokens' probabilities are told: there are logits of each.
const SCORED_TOKENS: usize = 64;
/// How often readers are looked at when all of them are behind.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Loop {
    decoder: Decoder,
    files: Arc<ModelFiles>,
    queue: Receiver<Request>,
    delivery: Delivery,
    waiting: VecDeque<Request>,
    /// In the order of their slots.
    running: Vec<RunningGeneration>,
    /// How many of those, from the first on, decode in this round.
    active: usize,
    /// In the slot behind those.
    reading: Option<PromptProgress>,
    slots: Slots,
    prefix_reuse: bool,
    /// Of all choices, which are made one after the other.
    scratch: Scratch,
}

/// A prompt of which `read` tokens are in the KV cache.
struct PromptProgress {
    request: Request,
    read: usize,
    /// How many of those were there from before.
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

    /// Runs until all handles are gone and nothing is left to do.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.read_prompts();
            self.arrange();
            self.step();
            self.deliver();
        }
    }

    /// Waits when there is nothing to do. False when no more can come.
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

    /// Takes what has come.
    fn receive_more(&mut self) {
        while self.waiting.len() < QUEUE {
            let Ok(request) = self.queue.try_recv() else {
                break;
            };
            self.waiting.push_back(request);
        }
        self.waiting.retain(|request| !request.sender.is_closed());
    }

    /// Waits a moment for readers to make room, or for a request.
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

    /// Reads prompts, up to the budget of one round: also those that come while others are read,
    /// which wait for no step then.
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
            // Each of its tokens is read.
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

    /// Readies a slot, the first that is free, for a prompt. Returns how much of the prompt it
    /// holds already.
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
            // Only free slots were written to.
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

    /// Reads the next chunk of a prompt; the last one gives the first token. Returns how many
    /// tokens were read.
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

    /// As [`Loop::read_chunk`], with the probability of each token of the prompt.
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

    /// Puts what decodes in this round in front of what does not.
    fn arrange(&mut self) {
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

    /// One token for every generation that decodes.
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

    /// A step failed, and what the cache holds now is not known.
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

    /// Gives rows to their readers, and frees the slots of what has ended or was left. Rows are on
    /// their way before anything is moved.
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

    /// Frees these slots, in rising order, and moves the last ones and the prompt behind them up.
    /// What they held is behind them then, for prompts that begin like it. From the last one on, so
    /// that nothing is moved that is freed itself.
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

/// Where the chunk ends that begins at `read`: always at the same places, wherever it begins.
fn chunk_end(read: usize) -> usize {
    (read / PREFILL_TOKENS + 1) * PREFILL_TOKENS
}

impl Request {
    /// What chooses its tokens; takes what holds them to their form.
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

    /// Tells the reader that this item will not go on.
    fn fail(&self, error: PredictError, delivery: &mut Delivery) {
        // The reader may have gone, or be too far behind even for this: its stream then ends
        // without a last row, which is an error too.
        let _ = delivery.add(&self.sender, (self.telling.place(), Err(error)));
    }
}
