//! Prepares the answers of a request before their first step: tokenises prompts, builds the
//! constraint, and replays the parts that another replica has sent.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc::Sender;
use volley_backend::items::Item;
use volley_types::{AnswerEnd, PredictError, SentAnswer, SentAnswers, Usage};

use super::engine::Request;
use super::event::{AnswerIndex, EngineEvent};
use super::merge::Merge;
use super::model::ModelFiles;
use super::options::Options;
use super::output_assembler::{OutputAssembler, usage};
use super::prompt;
use super::prompt::Prompt;
use volley_chat_template::CancelFlag;
use volley_constraints::Constraint;

/// A request that is ready to be decoded.
pub(crate) struct PreparedRequest {
    /// The answers to decode.
    pub(crate) requests: Vec<Request>,
    /// Merges the rows of the answers.
    pub(crate) merge: Merge,
    /// Rows that exist without any step.
    pub(crate) ready: Vec<EngineEvent>,
}

/// Prepares the answers to `rows`, or continues after the part in `sent`. Rows will be sent to
/// `sender`. Cancel safe: dropping the future cancels the rendering of prompts.
///
/// # Errors
/// `InvalidInput` when the form is not supported, or `sent` does not fit the request.
pub(crate) async fn begin(
    files: &Arc<ModelFiles>,
    rows: Vec<Item>,
    options: Options,
    sent: Option<Arc<SentAnswers>>,
    sender: Sender<EngineEvent>,
) -> Result<PreparedRequest, PredictError> {
    let files = files.clone();
    let ended = CancelFlag::default();
    // Cancels the rendering of prompts if the reader goes away.
    let _guard = ended.on_drop();
    let begin = move || {
        let banned = banned(&files, &options)?;
        let beginning = RequestBuilder {
            banned,
            ended,
            constraint: options
                .form
                .as_ref()
                .map(|form| files.constraint(form))
                .transpose()?,
            files: &files,
            options: &options,
            sender,
        };
        if options.scores_prompt() || 0 < options.alternatives() {
            // Builds the table here, so that no decode step waits for it.
            files.spellings();
        }
        beginning.all(&rows, sent.as_deref())
    };
    // Tokenising a long prompt would block the runtime's thread for too long.
    tokio::task::spawn_blocking(begin)
        .await
        .map_err(|error| PredictError::internal("tokenising failed", error))?
}

struct RequestBuilder<'a> {
    files: &'a ModelFiles,
    options: &'a Options,
    constraint: Option<Constraint>,
    banned: Arc<[Vec<u32>]>,
    ended: CancelFlag,
    sender: Sender<EngineEvent>,
}

/// The tokens of the forbidden words, at the start of a text and after a space.
fn banned(files: &ModelFiles, options: &Options) -> Result<Arc<[Vec<u32>]>, PredictError> {
    let words = options.bad_words.iter();
    let words = words.flat_map(|word| [word.clone(), format!(" {}", word.trim_start())]);
    let ids = words.map(|word| {
        let encoding = files.texts.tokenizer().encode(word.as_str(), false);
        let encoding = encoding.map_err(|error| {
            PredictError::invalid("parameter 'bad_words' could not be tokenised")
                .with_source(error.to_string())
        })?;
        Ok(encoding.get_ids().to_vec())
    });
    let mut ids: Vec<Vec<u32>> = ids.collect::<Result<_, PredictError>>()?;
    ids.retain(|ids| !ids.is_empty());
    ids.sort_unstable();
    ids.dedup();
    Ok(ids.into())
}

impl RequestBuilder<'_> {
    fn all(
        &self,
        rows: &[Item],
        sent: Option<&SentAnswers>,
    ) -> Result<PreparedRequest, PredictError> {
        let choices = self.options.choices;
        let answers = sent.map_or(&[][..], SentAnswers::answers);
        let known =
            |answer: &&SentAnswer| (answer.item as usize) < rows.len() && answer.choice < choices;
        if !answers.iter().all(|answer| known(&answer)) {
            return Err(PredictError::invalid(
                "the continuation has answers that the request does not have",
            ));
        }
        let answers: HashMap<_, _> = answers
            .iter()
            .map(|answer| (answer.place(), answer))
            .collect();
        let count = rows.len().saturating_mul(choices as usize);
        let mut begun = PreparedRequest {
            requests: Vec::new(),
            merge: Merge::behind(count, sent.map_or(0, SentAnswers::rows)),
            ready: Vec::new(),
        };
        for (item, row) in (0_u32..).zip(rows) {
            let prompt = prompt::encode(self.files, row, self.options, &self.ended);
            for choice in 0..choices {
                let place = AnswerIndex { item, choice };
                let sent = answers.get(&(item, choice)).copied();
                self.one(place, &prompt, sent, &mut begun)?;
            }
        }
        if begun.merge.complete() {
            return Err(PredictError::invalid("the continuation has no tokens left"));
        }
        Ok(begun)
    }

    fn one(
        &self,
        place: AnswerIndex,
        prompt: &Result<Prompt, PredictError>,
        sent: Option<&SentAnswer>,
        begun: &mut PreparedRequest,
    ) -> Result<(), PredictError> {
        match (prompt, sent.and_then(|sent| sent.end)) {
            (_, Some(AnswerEnd::Failed)) => begun.merge.settle(None),
            (Err(error), _) => begun.ready.push((place, Err(error.clone()))),
            (Ok(prompt), Some(AnswerEnd::Whole)) => {
                let generated = sent.map_or(0, |sent| sent.tokens.len());
                let generated = u32::try_from(generated).unwrap_or(u32::MAX);
                let tokens = sent.map_or(&[][..], |sent| &sent.tokens);
                let usage = Usage {
                    reasoning_tokens: self.files.reasoned(&prompt.text, tokens),
                    ..usage(place, prompt.ids.len(), 0, generated)
                };
                begun.merge.settle(Some(usage));
            }
            (Ok(prompt), None) => {
                let mut request = self.request(place, prompt, sent)?;
                if request.telling.finished() {
                    begun
                        .ready
                        .extend(std::iter::from_fn(|| request.telling.next_row()));
                } else {
                    begun.requests.push(request);
                }
            }
        }
        Ok(())
    }

    fn request(
        &self,
        place: AnswerIndex,
        prompt: &Prompt,
        sent: Option<&SentAnswer>,
    ) -> Result<Request, PredictError> {
        let options = self.options.of_choice(place.choice);
        let reasoning = self.files.reasoning(&prompt.text);
        let mut telling = OutputAssembler::new(place, prompt.ids.len(), reasoning, &options);
        if options.echo {
            telling.echo(prompt, options.scores_prompt(), self.files);
        }
        if options.max_tokens == 0 && !options.scores_prompt() {
            telling.end_unsaid();
        }
        let mut constraint = self.constraint.as_ref().map(Constraint::again);
        let mut prompt = prompt.ids.clone();
        let mut said = 0;
        if let Some(sent) = sent {
            telling.replay(sent, constraint.as_mut(), self.files)?;
            prompt.extend_from_slice(&sent.tokens);
            said = sent.tokens.len();
        }
        Ok(Request {
            prompt,
            said,
            options,
            constraint,
            banned: self.banned.clone(),
            telling,
            sender: self.sender.clone(),
        })
    }
}
