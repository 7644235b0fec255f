//! From the chosen tokens of one answer to its rows. What comes out depends on the tokens alone:
//! where another replica told a part of the answer, its tokens are taken again and the rows that
//! they made are left out.

use std::collections::VecDeque;

use serde_json::{Value, json};
use volley_types::{FinishReason, GenerationChunk, PredictError, PromptUsage, SentAnswer, Usage};

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

/// Tokens of a prompt whose probabilities are told in one row.
const ECHOED: usize = 1_024;

/// One answer as far as it is told.
pub(crate) struct OutputAssembler {
    place: AnswerIndex,
    prompt_tokens: usize,
    /// Tokens of the prompt that did not have to be read.
    cached: usize,
    max_tokens: usize,
    ignore_eos: bool,
    /// How many alternatives of each token are told.
    alternatives: usize,
    /// Whether the token that ends the answer has its probability too: where the prompt is scored,
    /// readers count on an entry for each token that was generated.
    scores_end: bool,
    detokenizer: Detokenizer,
    stops: StopFilter,
    /// Where tools may be called.
    tools: Option<ToolCalls>,
    generated: u32,
    /// Which of them are reasoning, where the model marks it.
    reasoning: Option<Reasoning>,
    /// Before so many tokens no stop string ends the answer.
    min_tokens: usize,
    include_stop: bool,
    stop_tokens: Vec<u32>,
    /// The answer ends behind its first call.
    one_call: bool,
    /// Whether a row has said how many tokens the prompt has.
    prompt_told: bool,
    /// The prompt's text and its tokens with their probabilities, until those are all there.
    echo: Option<(String, Vec<Value>)>,
    /// Tokens since the last row with text.
    unsaid: Vec<u32>,
    /// The probability of those, where asked for.
    logprob: Option<f32>,
    /// The same with alternatives, a token each in OpenAI's form, where those are asked for.
    told: Vec<Value>,
    /// Rows on their way to the reader.
    held: VecDeque<EngineEvent>,
    finished: bool,
}

impl OutputAssembler {
    /// An answer to a prompt of so many tokens, before its first one.
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

    /// Begins the answer with its prompt. With `scores`, a row of it waits for the probability of
    /// each token ([`OutputAssembler::score`]).
    pub(crate) fn echo(&mut self, prompt: &Prompt, scores: bool, files: &ModelFiles) {
        if !scores {
            return self.hold(GenerationChunk {
                text: Some(prompt.text.clone()),
                token_ids: Some(Vec::new()),
                ..GenerationChunk::default()
            });
        }
        // Nothing tells how likely the first one was.
        let first = prompt.ids.first().map(|first| {
            let mut first = spelled(*first, files.spellings());
            first["logprob"] = Value::Null;
            first["top_logprobs"] = Value::Null;
            first
        });
        self.echo = Some((prompt.text.clone(), first.into_iter().collect()));
    }

    /// The next token of the prompt is this one, behind these logits.
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

    /// All tokens of the prompt have their probability.
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

    /// Ends without a token.
    pub(crate) fn end_unsaid(&mut self) {
        self.end(FinishReason::Length);
    }

    /// Goes behind what another replica told of this answer: takes its tokens, also for the form
    /// that it is held to, and leaves out the rows that were sent.
    ///
    /// # Errors
    /// `InvalidInput` when this cannot have been told so.
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

    /// Which answer it is.
    pub(crate) fn place(&self) -> AnswerIndex {
        self.place
    }

    /// Whether nothing more is taken.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// So many of the tokens to read were there from before. Those of the answer's own do not
    /// count, nor what is no whole block of the prompt alone.
    pub(crate) fn took_over(&mut self, cached: usize) {
        let most = self.prompt_tokens.saturating_sub(1) / BLOCK * BLOCK;
        self.cached = cached.min(most);
    }

    /// The next row for the reader.
    pub(crate) fn next_row(&mut self) -> Option<EngineEvent> {
        self.held.pop_front()
    }

    /// A row that the reader had no room for.
    pub(crate) fn put_back(&mut self, row: EngineEvent) {
        self.held.push_front(row);
    }

    /// Takes a chosen token: its text, and whether it is the last one.
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

    /// Notes how likely the token without text was that ends the answer.
    fn score_end(&mut self, chosen: &SampledToken, files: &ModelFiles) {
        if let (true, Some(logprob)) = (self.scores_end, chosen.logprob) {
            let others = &chosen.alternatives;
            self.told
                .push(told(chosen.token, logprob, others, files.spellings()));
        }
    }

    /// Takes a special token that calls are written with, behind all text before it. True where a
    /// stop string was found in that text.
    fn take_mark(&mut self, mark: &str, files: &ModelFiles) -> bool {
        let rest = self.detokenizer.finish(&files.texts);
        let passed = self.stops.push(&rest);
        self.say(passed.text, false);
        if passed.stopped {
            return true;
        }
        // No stop string goes on behind a mark.
        let held = self.stops.finish();
        self.say(held, false);
        if let Some(tools) = &mut self.tools {
            let found = tools.mark(mark);
            self.give_out(found, false);
        }
        false
    }

    /// Ends with an error.
    pub(crate) fn fail(&mut self, error: PredictError) {
        self.finished = true;
        self.held.push_back((self.place, Err(error)));
    }

    /// Ends with what was held back in front of it.
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
            ..GenerationChunk::default()
        });
    }

    /// A row of text, or of calls that it makes. `of_token` says that it is the text of a token,
    /// where there was no other since the last row.
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

/// What one answer adds to the usage of its stream. A prompt with several answers is read for
/// each, and counted once.
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

/// A token and its alternatives in OpenAI's form.
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

/// How a token is written, in OpenAI's form.
pub(crate) fn spelled(id: u32, spellings: &TokenBytes) -> Value {
    let bytes = spellings.of(id);
    json!({ "token": String::from_utf8_lossy(bytes), "bytes": bytes })
}
