//! A generation in its slot.

use std::collections::VecDeque;

use serde_json::{Value, json};
use volley_types::{FinishReason, GenerationChunk, Usage};

use super::delivery::{Added, Delivery};
use super::{Event, Request};
use crate::generate::model::ModelFiles;
use crate::generate::sampler::{Chosen, Sampler, Scratch};
use crate::generate::spelling::Spellings;
use crate::generate::text::{Detokenizer, StopFilter};
use crate::generate::tools::{Found, ToolCalls};

/// A generation in its slot.
pub(super) struct Running {
    pub(super) request: Request,
    /// Tokens in the KV cache.
    pub(super) length: usize,
    /// Tokens of the prompt that did not have to be read.
    cached: usize,
    /// Chosen and not yet in the KV cache.
    pub(super) next: u32,
    /// The reader is behind; nothing is decoded until it has read half of what waits for it.
    pub(super) paused: bool,
    sampler: Sampler,
    detokenizer: Detokenizer,
    stops: StopFilter,
    /// Where tools may be called.
    tools: Option<ToolCalls>,
    generated: u32,
    /// Tokens since the last row with text.
    unsaid: u32,
    /// The probability of those, where asked for.
    logprob: Option<f32>,
    /// The same with alternatives, a token each in OpenAI's form, where those are asked for.
    told: Vec<Value>,
    /// Rows on their way to the reader.
    held: VecDeque<Event>,
    finished: bool,
}

impl Running {
    /// A generation whose prompt is in the KV cache, `cached` tokens of it from before, and whose
    /// first token is chosen.
    pub(super) fn start(
        request: Request,
        sampler: Sampler,
        chosen: Chosen,
        cached: usize,
        files: &ModelFiles,
    ) -> Self {
        let mut running = Self {
            length: request.prompt.len(),
            cached,
            next: chosen.token,
            paused: false,
            sampler,
            detokenizer: Detokenizer::default(),
            stops: StopFilter::new(request.options.stop.clone()),
            tools: request.options.tools.as_deref().map(ToolCalls::of),
            generated: 0,
            unsaid: 0,
            logprob: None,
            told: Vec::new(),
            held: VecDeque::new(),
            finished: false,
            request,
        };
        running.take(chosen, files);
        running
    }

    /// Whether the next step decodes a token for it.
    pub(super) fn decodes(&self) -> bool {
        !self.finished && !self.paused
    }

    /// The next token was put into the KV cache, with these logits behind it.
    pub(super) fn advance(&mut self, logits: &[f32], files: &ModelFiles, scratch: &mut Scratch) {
        self.length += 1;
        match self.sampler.choose(logits, scratch) {
            Ok(chosen) => self.take(chosen, files),
            Err(error) => {
                self.finished = true;
                self.held.push_back((self.request.place, Err(error)));
            }
        }
    }

    /// Gives rows to the reader, as far as it has room. False when the slot is free: all was
    /// given, or the reader has gone.
    pub(super) fn give(&mut self, delivery: &mut Delivery) -> bool {
        let sender = &self.request.sender;
        while let Some(event) = self.held.pop_front() {
            match delivery.add(sender, event) {
                Added::Taken => {}
                Added::Full(event) => {
                    self.held.push_front(*event);
                    self.paused = true;
                    return true;
                }
                Added::Closed => return false,
            }
        }
        if self.paused {
            self.paused = sender.capacity() < sender.max_capacity() / 2;
        }
        !self.finished && !sender.is_closed()
    }

    /// Takes a chosen token: its text, and whether it is the last one.
    fn take(&mut self, chosen: Chosen, files: &ModelFiles) {
        let token = chosen.token;
        self.next = token;
        self.generated += 1;
        self.unsaid += 1;
        let goes_on = self.request.options.ignore_eos && !chosen.completes;
        if files.eos.contains(&token) && !goes_on {
            return self.finish(FinishReason::Stop, files);
        }
        if let Some(logprob) = chosen.logprob {
            *self.logprob.get_or_insert(0.0) += logprob;
            if 0 < self.request.options.alternatives() {
                self.told.push(told(&chosen, logprob, files.spellings()));
            }
        }
        let text = self.detokenizer.push(token, &files.texts);
        let passed = self.stops.push(&text);
        self.say(passed.text, Some(token));
        if passed.stopped {
            self.end(FinishReason::Stop);
        } else if chosen.completes {
            self.finish(FinishReason::Stop, files);
        } else if self.request.options.max_tokens <= self.generated as usize
            || files.context <= self.length + 1
        {
            self.finish(FinishReason::Length, files);
        }
    }

    /// Ends with what was held back in front of it.
    fn finish(&mut self, reason: FinishReason, files: &ModelFiles) {
        let rest = self.detokenizer.finish(&files.texts);
        let passed = self.stops.push(&rest);
        let mut text = passed.text;
        if !passed.stopped {
            text.push_str(&self.stops.finish());
        }
        self.say(text, None);
        self.end(if passed.stopped {
            FinishReason::Stop
        } else {
            reason
        });
    }

    fn end(&mut self, mut reason: FinishReason) {
        self.finished = true;
        if let Some(mut tools) = self.tools.take() {
            let found = tools.finish();
            if tools.any() && reason == FinishReason::Stop {
                reason = FinishReason::ToolCalls;
            }
            self.give_out(found, None);
        }
        // A prompt with several answers is read for each, and counted once.
        let (prompt, cached) = if self.request.place.choice == 0 {
            (self.request.prompt.len(), self.cached)
        } else {
            (0, 0)
        };
        let usage = Usage {
            prompt_tokens: u32::try_from(prompt).unwrap_or(u32::MAX),
            completion_tokens: self.generated,
            cached_tokens: u32::try_from(cached).unwrap_or(u32::MAX),
        };
        self.hold(GenerationChunk {
            finish_reason: Some(reason),
            usage: Some(usage),
            last: true,
            ..GenerationChunk::default()
        });
    }

    /// A row of text, with its token where it is the text of one, or of calls that it makes.
    fn say(&mut self, text: String, token: Option<u32>) {
        if text.is_empty() {
            return;
        }
        let found = match &mut self.tools {
            Some(tools) => tools.push(&text),
            None => Found { text, calls: None },
        };
        self.give_out(found, token);
    }

    fn give_out(&mut self, Found { text, calls }: Found, token: Option<u32>) {
        if text.is_empty() && calls.is_none() {
            return;
        }
        let token_id = token.filter(|_| self.unsaid == 1);
        self.unsaid = 0;
        let logprob = self.logprob.take();
        let told = std::mem::take(&mut self.told);
        let token_logprobs = (!told.is_empty()).then(|| Value::Array(told).to_string());
        self.hold(GenerationChunk {
            text: Some(text).filter(|text| !text.is_empty()),
            tool_calls: calls,
            token_id,
            logprob,
            token_logprobs,
            ..GenerationChunk::default()
        });
    }

    fn hold(&mut self, mut chunk: GenerationChunk) {
        let place = self.request.place;
        (chunk.item, chunk.choice) = (place.item, place.choice);
        self.held.push_back((place, Ok(chunk)));
    }
}

/// A chosen token and its alternatives in OpenAI's form.
fn told(chosen: &Chosen, logprob: f32, spellings: &Spellings) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = spellings.of(id);
        let token = String::from_utf8_lossy(bytes);
        json!({ "token": token, "bytes": bytes, "logprob": logprob })
    };
    let others = chosen.alternatives.iter();
    let others: Vec<_> = others.map(|(logprob, id)| one(*id, *logprob)).collect();
    let mut told = one(chosen.token, logprob);
    told["top_logprobs"] = others.into();
    told
}
