//! A generation in its slot.

use super::Request;
use super::delivery::{Delivery, DeliveryResult};
use crate::model::ModelFiles;
use crate::sampler::{SampledToken, Sampler, Scratch};

/// A generation in its slot.
pub(super) struct RunningGeneration {
    pub(super) request: Request,
    /// Number of tokens in the KV cache.
    pub(super) length: usize,
    /// The sampled token that is not yet in the KV cache.
    pub(super) next: u32,
    /// Whether the reader is slow. Decoding continues when it has read half of its waiting rows.
    pub(super) paused: bool,
    sampler: Sampler,
}

impl RunningGeneration {
    /// Creates a generation whose prompt is in the KV cache, `cached` tokens of it reused, and
    /// whose next token is `chosen`.
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

    /// Creates a generation that only prefills its prompt; nothing is decoded.
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

    /// Samples the next token from `logits`, after the previous one was added to the KV cache.
    pub(super) fn advance(&mut self, logits: &[f32], files: &ModelFiles, scratch: &mut Scratch) {
        self.length += 1;
        match self.sampler.choose(logits, scratch) {
            Ok(chosen) => self.take(chosen, files),
            Err(error) => self.request.telling.fail(error),
        }
    }

    /// Delivers rows while the reader has room. Returns false when the slot is free, because all
    /// rows are delivered or the reader has gone.
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
