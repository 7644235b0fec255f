//! A generation in its slot.

use super::Request;
use super::delivery::{Delivery, DeliveryResult};
use crate::model::ModelFiles;
use crate::sampler::{SampledToken, Sampler, Scratch};

/// A generation in its slot.
pub(super) struct RunningGeneration {
    pub(super) request: Request,
    /// Tokens in the KV cache.
    pub(super) length: usize,
    /// Chosen and not yet in the KV cache.
    pub(super) next: u32,
    /// The reader is behind; nothing is decoded until it has read half of what waits for it.
    pub(super) paused: bool,
    sampler: Sampler,
}

impl RunningGeneration {
    /// A generation whose prompt is in the KV cache, `cached` tokens of it from before, and whose
    /// next token is chosen.
    pub(super) fn start(
        mut request: Request,
        sampler: Sampler,
        chosen: SampledToken,
        cached: usize,
        files: &ModelFiles,
    ) -> Self {
        request.telling.took_over(cached);
        let mut running = Self {
            length: request.prompt.len(),
            next: chosen.token,
            paused: false,
            sampler,
            request,
        };
        running.take(chosen, files);
        running
    }

    /// One whose prompt was all that was to be read: nothing is decoded.
    pub(super) fn ended(mut request: Request, files: &ModelFiles) -> Self {
        request.telling.end_unsaid();
        Self {
            length: request.prompt.len(),
            next: 0,
            paused: false,
            sampler: request.sampler(files),
            request,
        }
    }

    /// Whether the next step decodes a token for it.
    pub(super) fn decodes(&self) -> bool {
        !self.request.telling.finished() && !self.paused
    }

    /// The next token was put into the KV cache, with these logits behind it.
    pub(super) fn advance(&mut self, logits: &[f32], files: &ModelFiles, scratch: &mut Scratch) {
        self.length += 1;
        match self.sampler.choose(logits, scratch) {
            Ok(chosen) => self.take(chosen, files),
            Err(error) => self.request.telling.fail(error),
        }
    }

    /// Gives rows to the reader, as far as it has room. False when the slot is free: all was
    /// given, or the reader has gone.
    pub(super) fn give(&mut self, delivery: &mut Delivery) -> bool {
        let Request {
            sender, telling, ..
        } = &mut self.request;
        while let Some(event) = telling.next_row() {
            match delivery.add(sender, event) {
                DeliveryResult::Taken => {}
                DeliveryResult::Full(event) => {
                    telling.put_back(*event);
                    self.paused = true;
                    return true;
                }
                DeliveryResult::Closed => return false,
            }
        }
        if self.paused {
            self.paused = sender.capacity() < sender.max_capacity() / 2;
        }
        !telling.finished() && !sender.is_closed()
    }

    fn take(&mut self, chosen: SampledToken, files: &ModelFiles) {
        self.next = chosen.token;
        self.request.telling.take(chosen, files);
    }
}
