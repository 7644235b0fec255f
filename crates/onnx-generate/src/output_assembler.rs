//! Converts the sampled tokens of one answer to rows. The result only depends on the tokens. If
//! another replica has already sent a part of the answer, its tokens are replayed and the rows that
//! they produce are dropped.

use std::collections::VecDeque;

use serde_json::{Value, json};
use volley_types::{
    Details, FinishReason, GenerationChunk, PredictError, PromptUsage, SentAnswer, Usage,
};

use super::event::{AnswerIndex, EngineEvent};
use super::model::ModelFiles;
use super::options::Options;
use super::prompt::{BLOCK, Prompt};
use super::reasoning::Reasoning;
use super::sampler::{SampledToken, Scratch, scores};
use volley_constraints::Constraint;
use volley_tokens::text::{Detokenizer, StopFilter};
use volley_tokens::token_bytes::TokenBytes;
use volley_tool_calls::{ParsedCalls, ToolCalls};

/// Number of prompt tokens with log probabilities in one row.
const ECHOED: usize = 1_024;

/// The output state of one answer.
pub(crate) struct OutputAssembler {
    place: AnswerIndex,
    prompt_tokens: usize,
    /// Number of prompt tokens that were reused from the KV cache.
    cached: usize,
    max_tokens: usize,
    ignore_eos: bool,
    /// Number of alternatives that are returned for each token.
    alternatives: usize,
    /// Whether the token that ends the answer also has a log probability. With a scored prompt,
    /// readers expect an entry for each generated token.
    scores_end: bool,
    detokenizer: Detokenizer,
    stops: StopFilter,
    /// `Some` if tools may be called.
    tools: Option<ToolCalls>,
    generated: u32,
    /// Counts reasoning tokens, if the model marks reasoning.
    reasoning: Option<Reasoning>,
    /// Until the answer has this many tokens, no stop string ends it.
    min_tokens: usize,
    include_stop: bool,
    stop_tokens: Vec<u32>,
    /// Whether the answer ends after its first call.
    one_call: bool,
    /// Whether a row has reported the number of prompt tokens.
    prompt_told: bool,
    /// The prompt's text and its scored tokens, until all tokens are scored.
    echo: Option<(String, Vec<Value>)>,
    /// Tokens since the last row with text.
    unsaid: Vec<u32>,
    /// The sum of their log probabilities, if requested.
    logprob: Option<f32>,
    /// Their log probabilities with alternatives, one object per token in OpenAI's format, if
    /// requested.
    told: Vec<Value>,
    /// Rows that have not been delivered.
    held: VecDeque<EngineEvent>,
    finished: bool,
}

impl OutputAssembler {
    /// Creates the state of an answer to a prompt of `prompt_tokens` tokens.
    pub(crate) fn new(
        place: AnswerIndex,
        prompt_tokens: usize,
        reasoning: Option<Reasoning>,
        options: &Options,
    ) -> Self {
        Self {
            place,
            prompt_tokens,
            cached: 0,
            max_tokens: options.max_tokens,
            ignore_eos: options.ignore_eos,
            alternatives: options.alternatives(),
            scores_end: options.scores_prompt(),
            detokenizer: Detokenizer::default(),
            stops: StopFilter::new(options.stop.clone(), options.include_stop),
            tools: options.tools.as_deref().map(ToolCalls::of),
            min_tokens: options.min_tokens,
            include_stop: options.include_stop,
            stop_tokens: options.stop_tokens.clone(),
            one_call: options.one_call,
            prompt_told: false,
            echo: None,
            generated: 0,
            reasoning,
            unsaid: Vec::new(),
            logprob: None,
            told: Vec::new(),
            held: VecDeque::new(),
            finished: false,
        }
    }

    /// Starts the answer with its prompt. With `scores`, the row is held back until each token has
    /// its log probability ([`OutputAssembler::score`]).
    pub(crate) fn echo(&mut self, prompt: &Prompt, scores: bool, files: &ModelFiles) {
        if !scores {
            return self.hold(GenerationChunk {
                text: Some(prompt.text.clone()),
                token_ids: Some(Vec::new()),
                ..GenerationChunk::default()
            });
        }
        // The first token has no log probability.
        let first = prompt.ids.first().map(|first| {
            let mut first = spelled(*first, files.spellings());
            first["logprob"] = Value::Null;
            first["top_logprobs"] = Value::Null;
            first
        });
        self.echo = Some((prompt.text.clone(), first.into_iter().collect()));
    }

    /// Scores the next prompt token with the logits before it.
    pub(crate) fn score(
        &mut self,
        token: u32,
        logits: &[f32],
        scratch: &mut Scratch,
        files: &ModelFiles,
    ) {
        let (logprob, alternatives) = scores(token, logits, self.alternatives, scratch);
        if let Some((_, tokens)) = &mut self.echo {
            tokens.push(told(token, logprob, &alternatives, files.spellings()));
        }
    }

    /// Releases the rows of the prompt when all of its tokens are scored.
    pub(crate) fn scored(&mut self) {
        let Some((text, mut tokens)) = self.echo.take() else {
            return;
        };
        let mut text = Some(text);
        while !tokens.is_empty() {
            let rest = tokens.split_off(tokens.len().min(ECHOED));
            let part = std::mem::replace(&mut tokens, rest);
            self.hold(GenerationChunk {
                text: text.take(),
                token_logprobs: Some(Value::Array(part).to_string()),
                ..GenerationChunk::default()
            });
        }
    }

    /// Ends the answer without a token.
    pub(crate) fn end_unsaid(&mut self) {
        self.end(FinishReason::Length);
    }

    /// Replays the part of this answer that another replica has sent: takes its tokens, also for
    /// the constraint, and drops the rows that were sent.
    ///
    /// # Errors
    /// `InvalidInput` when this model cannot have produced that part.
    pub(crate) fn replay(
        &mut self,
        sent: &SentAnswer,
        mut constraint: Option<&mut Constraint>,
        files: &ModelFiles,
    ) -> Result<(), PredictError> {
        for token in &sent.tokens {
            if self.finished || files.vocabulary <= *token as usize {
                return Err(unfit());
            }
            let completes = match &mut constraint {
                Some(constraint) => constraint.take(*token)?,
                None => false,
            };
            let chosen = SampledToken {
                token: *token,
                logprob: None,
                alternatives: Vec::new(),
                completes,
            };
            self.take(chosen, files);
        }
        let rows = sent.rows as usize;
        let left_over = self.held.len().checked_sub(rows).ok_or_else(unfit)?;
        if 0 < left_over && !self.finished {
            return Err(unfit());
        }
        let rows = self.held.drain(..rows).flat_map(|(_, row)| row);
        let bytes = rows.map(|row| row.text.map_or(0, |text| text.len() as u64));
        if bytes.sum::<u64>() == sent.text_bytes {
            Ok(())
        } else {
            Err(unfit())
        }
    }

    /// Index of the answer.
    pub(crate) fn place(&self) -> AnswerIndex {
        self.place
    }

    /// Whether the answer has ended.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// Records the number of reused tokens. Only whole blocks of the prompt count, not tokens of
    /// the answer.
    pub(crate) fn took_over(&mut self, cached: usize) {
        let most = self.prompt_tokens.saturating_sub(1) / BLOCK * BLOCK;
        self.cached = cached.min(most);
    }

    /// Removes the next row for the reader.
    pub(crate) fn next_row(&mut self) -> Option<EngineEvent> {
        self.held.pop_front()
    }

    /// Returns a row for which the reader had no room.
    pub(crate) fn put_back(&mut self, row: EngineEvent) {
        self.held.push_front(row);
    }

    /// Takes a sampled token: adds its text, and ends the answer if it is the last one.
    pub(crate) fn take(&mut self, chosen: SampledToken, files: &ModelFiles) {
        let token = chosen.token;
        self.generated += 1;
        self.unsaid.push(token);
        let goes_on = self.ignore_eos && !chosen.completes;
        if files.eos.contains(&token) && !goes_on {
            self.score_end(&chosen, files);
            return self.finish(FinishReason::Stop, files);
        }
        let stops = self.stop_tokens.contains(&token) && !self.include_stop;
        if stops && self.min_tokens < self.generated as usize {
            self.score_end(&chosen, files);
            return self.finish(FinishReason::Stop, files);
        }
        if let Some(reasoning) = self.reasoning.as_mut().filter(|it| !it.is_over()) {
            reasoning.push(&files.written(token));
        }
        if let Some(logprob) = chosen.logprob {
            *self.logprob.get_or_insert(0.0) += logprob;
            if 0 < self.alternatives || self.scores_end {
                let others = &chosen.alternatives;
                self.told
                    .push(told(token, logprob, others, files.spellings()));
            }
        }
        let stopped = match files.texts.mark(token) {
            Some(mark) if self.tools.is_some() => self.take_mark(mark, files),
            _ => {
                let text = self.detokenizer.push(token, &files.texts);
                let passed = match (self.generated as usize) <= self.min_tokens {
                    true => self.stops.pass(&text),
                    false => self.stops.push(&text),
                };
                self.say(passed.text, true);
                passed.stopped
            }
        };
        let called = self.one_call && self.tools.as_ref().is_some_and(ToolCalls::any_whole);
        if stopped {
            self.end(FinishReason::Stop);
        } else if chosen.completes || called || self.stop_tokens.contains(&token) {
            self.finish(FinishReason::Stop, files);
        } else if self.max_tokens <= self.generated as usize
            || files.context <= self.prompt_tokens + self.generated as usize
        {
            self.finish(FinishReason::Length, files);
        }
    }

    /// Records the log probability of the final token, which has no text.
    fn score_end(&mut self, chosen: &SampledToken, files: &ModelFiles) {
        if let (true, Some(logprob)) = (self.scores_end, chosen.logprob) {
            let others = &chosen.alternatives;
            self.told
                .push(told(chosen.token, logprob, others, files.spellings()));
        }
    }

    /// Takes a special token of the tool-call syntax, after all earlier text. Returns true if that
    /// text contains a stop string.
    fn take_mark(&mut self, mark: &str, files: &ModelFiles) -> bool {
        let rest = self.detokenizer.finish(&files.texts);
        let passed = self.stops.push(&rest);
        self.say(passed.text, false);
        if passed.stopped {
            return true;
        }
        // A stop string cannot continue after a special token.
        let held = self.stops.finish();
        self.say(held, false);
        if let Some(tools) = &mut self.tools {
            let found = tools.mark(mark);
            self.give_out(found, false);
        }
        false
    }

    /// Ends the answer with an error.
    pub(crate) fn fail(&mut self, error: PredictError) {
        self.finished = true;
        self.held.push_back((self.place, Err(error)));
    }

    /// Ends the answer, after releasing the text that was held back.
    fn finish(&mut self, reason: FinishReason, files: &ModelFiles) {
        let rest = self.detokenizer.finish(&files.texts);
        let passed = self.stops.push(&rest);
        let mut text = passed.text;
        if !passed.stopped {
            text.push_str(&self.stops.finish());
        }
        self.say(text, false);
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
            self.give_out(found, false);
        }
        let token_ids = Some(std::mem::take(&mut self.unsaid));
        let reasoned = self.reasoning.as_ref().map_or(0, Reasoning::count);
        let told = std::mem::take(&mut self.told);
        let told = Some(told).filter(|told| self.scores_end && !told.is_empty());
        self.hold(GenerationChunk {
            token_logprobs: told.map(|told| Value::Array(told).to_string()),
            finish_reason: Some(reason),
            usage: Some(Usage {
                reasoning_tokens: reasoned,
                ..usage(self.place, self.prompt_tokens, self.cached, self.generated)
            }),
            last: true,
            token_ids,
            details: self.stopped_at().to_json(),
            ..GenerationChunk::default()
        });
    }

    /// The stop string that ended the answer.
    fn stopped_at(&self) -> Details {
        Details {
            stop_sequence: self.stops.found().map(str::to_owned),
            ..Details::default()
        }
    }

    /// Adds a row with text, or with the calls that it completes. `of_token` means that the text
    /// belongs to a single token, if there was no other since the last row.
    fn say(&mut self, text: String, of_token: bool) {
        if text.is_empty() {
            return;
        }
        let found = match &mut self.tools {
            Some(tools) => tools.push(&text),
            None => ParsedCalls { text, calls: None },
        };
        self.give_out(found, of_token);
    }

    fn give_out(&mut self, ParsedCalls { text, calls }: ParsedCalls, of_token: bool) {
        if text.is_empty() && calls.is_none() {
            return;
        }
        let token_id = match self.unsaid.as_slice() {
            [token] if of_token => Some(*token),
            _ => None,
        };
        let token_ids = token_id.is_none().then(|| self.unsaid.clone());
        self.unsaid.clear();
        let logprob = self.logprob.take();
        let told = std::mem::take(&mut self.told);
        let token_logprobs = (!told.is_empty()).then(|| Value::Array(told).to_string());
        self.hold(GenerationChunk {
            text: Some(text).filter(|text| !text.is_empty()),
            tool_calls: calls,
            token_id,
            logprob,
            token_logprobs,
            token_ids,
            ..GenerationChunk::default()
        });
    }

    fn hold(&mut self, mut chunk: GenerationChunk) {
        let place = self.place;
        if !self.prompt_told && place.choice == 0 {
            chunk.prompt = Some(PromptUsage {
                prompt_tokens: u32::try_from(self.prompt_tokens).unwrap_or(u32::MAX),
                cached_tokens: u32::try_from(self.cached).unwrap_or(u32::MAX),
            });
        }
        self.prompt_told = true;
        (chunk.item, chunk.choice) = (place.item, place.choice);
        self.held.push_back((place, Ok(chunk)));
    }
}

/// The usage that one answer adds to its stream. A prompt with several answers is prefilled for
/// each, but counted once.
pub(crate) fn usage(place: AnswerIndex, prompt: usize, cached: usize, generated: u32) -> Usage {
    let (prompt, cached) = if place.choice == 0 {
        (prompt, cached)
    } else {
        (0, 0)
    };
    Usage {
        prompt_tokens: u32::try_from(prompt).unwrap_or(u32::MAX),
        completion_tokens: generated,
        cached_tokens: u32::try_from(cached).unwrap_or(u32::MAX),
        ..Usage::default()
    }
}

fn unfit() -> PredictError {
    PredictError::invalid("the start of the response differs from this model's output")
}

/// A token and its alternatives in OpenAI's format.
fn told(token: u32, logprob: f32, others: &[(f32, u32)], spellings: &TokenBytes) -> Value {
    let one = |id: u32, logprob: f32| {
        let mut one = spelled(id, spellings);
        one["logprob"] = logprob.into();
        one
    };
    let others = others.iter();
    let others: Vec<_> = others.map(|(logprob, id)| one(*id, *logprob)).collect();
    let mut told = one(token, logprob);
    told["top_logprobs"] = others.into();
    told
}

/// The text and bytes of a token in OpenAI's format.
pub(crate) fn spelled(id: u32, spellings: &TokenBytes) -> Value {
    let bytes = spellings.of(id);
    json!({ "token": String::from_utf8_lossy(bytes), "bytes": bytes })
}
