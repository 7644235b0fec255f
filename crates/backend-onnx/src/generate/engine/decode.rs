//! The decode loop. Each round takes new requests, reads some of one prompt, decodes one token
//! for every generation that may go on, and gives the rows to their readers.
//!
//! Slots are kept in this order: generations that decode, generations whose reader is behind,
//! the prompt that is being read, free slots. So a step is one run over the first slots of the
//! cache, and a reader who sleeps costs no computation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use volley_types::PredictError;

use super::delivery::Delivery;
use super::running::Running;
use super::{QUEUE, Request};
use crate::generate::decoder::Decoder;
use crate::generate::model::ModelFiles;
use crate::generate::sampler::Sampler;

/// Prompt tokens that are read between two steps, so that a long prompt holds nobody up. Chunks
/// always begin at multiples of this, so that how a prompt is cut, and with it the last bits of
/// its numbers, does not depend on what else is read.
const PREFILL_TOKENS: usize = 256;
/// How often readers are looked at when all of them are behind.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Loop {
    decoder: Decoder,
    files: Arc<ModelFiles>,
    queue: Receiver<Request>,
    delivery: Delivery,
    waiting: VecDeque<Request>,
    /// In the order of their slots.
    running: Vec<Running>,
    /// How many of those, from the first on, decode in this round.
    active: usize,
    /// In the slot behind those.
    reading: Option<Reading>,
}

/// A prompt of which `read` tokens are in the KV cache.
struct Reading {
    request: Request,
    read: usize,
}

impl Loop {
    pub(super) fn new(
        decoder: Decoder,
        files: Arc<ModelFiles>,
        queue: Receiver<Request>,
        delivery: Delivery,
    ) -> Self {
        Self {
            delivery,
            decoder,
            files,
            queue,
            waiting: VecDeque::new(),
            running: Vec::new(),
            active: 0,
            reading: None,
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

    /// Takes what has come; waits when there is nothing to do. False when no more can come.
    fn receive(&mut self) -> bool {
        if self.running.is_empty() && self.reading.is_none() && self.waiting.is_empty() {
            match self.queue.recv() {
                Ok(request) => self.waiting.push_back(request),
                Err(_) => return false,
            }
        } else if self.reading.is_none() && self.running.iter().all(|running| running.paused) {
            self.pause();
        }
        while self.waiting.len() < QUEUE {
            let Ok(request) = self.queue.try_recv() else {
                break;
            };
            self.waiting.push_back(request);
        }
        self.waiting.retain(|request| !request.sender.is_closed());
        true
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

    /// Reads prompts, up to the budget of one round.
    fn read_prompts(&mut self) {
        let mut left = PREFILL_TOKENS;
        while 0 < left {
            let Some(reading) = self.reading.take().or_else(|| self.next_waiting()) else {
                return;
            };
            if !reading.request.sender.is_closed() {
                left = left.saturating_sub(self.read_chunk(reading));
            }
        }
    }

    fn next_waiting(&mut self) -> Option<Reading> {
        if self.running.len() == self.decoder.slots() {
            return None;
        }
        let request = self.waiting.pop_front()?;
        Some(Reading { request, read: 0 })
    }

    /// Reads the next chunk of a prompt; the last one gives the first token. Returns how many
    /// tokens were read.
    fn read_chunk(&mut self, Reading { mut request, read }: Reading) -> usize {
        let end = request.prompt.len().min(read + PREFILL_TOKENS);
        let slot = self.running.len();
        let mut sampler = (end == request.prompt.len()).then(|| {
            let options = &request.options;
            let sampling = options.sampling.clone();
            Sampler::new(sampling, &request.prompt, self.files.vocabulary)
                .with(request.constraint.take(), options.logprobs)
        });
        let tokens = &request.prompt[read..end];
        let chosen = self.decoder.prefill(slot, read, tokens, |logits| {
            sampler.as_mut().map(|sampler| sampler.choose(logits))
        });
        match (chosen, sampler) {
            (Err(error), _) => request.fail(error, &mut self.delivery),
            (Ok(Some(Err(error))), _) => request.fail(error, &mut self.delivery),
            (Ok(Some(Ok(chosen))), Some(sampler)) => {
                let running = Running::start(request, sampler, chosen, &self.files);
                self.running.push(running);
            }
            (Ok(_), _) => self.reading = Some(Reading { request, read: end }),
        }
        end - read
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
                let length = self.running[one].length.max(self.running[other].length);
                self.decoder.swap_slots(one, other, length);
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
        let tokens: Vec<u32> = active.iter().map(|running| running.next).collect();
        let lengths: Vec<usize> = active.iter().map(|running| running.length).collect();
        let result = self.decoder.decode(&tokens, &lengths, |logits| {
            for (running, logits) in active.iter_mut().zip(logits.chunks(files.vocabulary)) {
                running.advance(logits, files);
            }
        });
        if let Err(error) = result {
            self.fail_all(&error);
        }
    }

    /// A step failed, and what the cache holds now is not known.
    fn fail_all(&mut self, error: &PredictError) {
        tracing::error!(error = error.chain(), "a decode step failed");
        for running in self.running.drain(..) {
            running.request.fail(error.clone(), &mut self.delivery);
        }
        if let Some(reading) = self.reading.take() {
            reading.request.fail(error.clone(), &mut self.delivery);
        }
    }

    /// Gives rows to their readers, and frees the slots of what has ended or was left.
    fn deliver(&mut self) {
        let mut slot = 0;
        while slot < self.running.len() {
            if self.running[slot].give(&mut self.delivery) {
                slot += 1;
            } else {
                self.free(slot);
            }
        }
        self.delivery.flush();
    }

    /// Frees a slot, and moves the last one and the prompt behind it up.
    fn free(&mut self, slot: usize) {
        self.running.swap_remove(slot);
        let last = self.running.len();
        if slot < last {
            let length = self.running[slot].length;
            self.decoder.move_slot(last, slot, length);
        }
        if let Some(reading) = &self.reading {
            self.decoder.move_slot(last + 1, last, reading.read);
        }
    }
}

impl Request {
    /// Tells the reader that this item will not go on.
    fn fail(&self, error: PredictError, delivery: &mut Delivery) {
        // The reader may have gone, or be too far behind even for this: its stream then ends
        // without a last row, which is an error too.
        let _ = delivery.add(&self.sender, (self.place, Err(error)));
    }
}
