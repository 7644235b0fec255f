//! Requests about tokens, which do not generate: the number of a prompt's tokens, the tokens, and
//! the text of tokens.

use std::sync::Arc;

use arrow_array::RecordBatch;
use serde_json::Value;
use volley_backend::items::{self, Item};
use volley_types::params::{COUNT_TOKENS, DETOKENIZE, TOKENIZE};
use volley_types::{
    FinishReason, GenerationChunk, GenerationChunks, Input, Parameters, PredictError, Usage,
};

use super::event::AnswerIndex;
use super::merge::Merge;
use super::model::ModelFiles;
use super::options::Options;
use super::output_assembler::spelled;
use super::prompt;
use super::prompt::Prompt;
use volley_chat_template::CancelFlag;
use volley_tokens::text::Decode;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenView {
    /// Returns the number of tokens.
    Count,
    /// Returns the tokens, optionally with their text.
    Tokens { spelled: bool },
    /// Returns the text of tokens, optionally without special ones.
    Text { special: bool },
}

impl TokenView {
    /// Reads the kind of request; `None` for a generation.
    ///
    /// # Errors
    /// `InvalidInput` when several kinds are requested.
    pub(crate) fn read(parameters: &Parameters) -> Result<Option<Self>, PredictError> {
        let flag = |name: &str| Ok::<_, PredictError>(parameters.boolean(name)?.unwrap_or(false));
        let spelled = flag("return_token_strs")?;
        let special = !flag("skip_special_tokens")?;
        let wanted = [
            (flag(COUNT_TOKENS)?, Self::Count),
            (flag(TOKENIZE)?, Self::Tokens { spelled }),
            (flag(DETOKENIZE)?, Self::Text { special }),
        ];
        let mut wanted = wanted.into_iter().filter(|(wanted, _)| *wanted);
        match (wanted.next(), wanted.next()) {
            (first, None) => Ok(first.map(|(_, view)| view)),
            _ => Err(PredictError::invalid(
                "a request must have only one of 'count_tokens', 'tokenize' and 'detokenize'",
            )),
        }
    }

    fn at(
        self,
        files: &ModelFiles,
        item: &Item,
        options: &Options,
        ended: &CancelFlag,
    ) -> Result<GenerationChunk, PredictError> {
        let Prompt { ids, .. } = match self {
            Self::Text { .. } => prompt::given(files, item)?,
            Self::Count | Self::Tokens { .. } => prompt::tokens(files, item, options, ended)?,
        };
        let mut chunk = GenerationChunk {
            finish_reason: Some(FinishReason::Stop),
            usage: Some(Usage {
                prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
                ..Usage::default()
            }),
            last: true,
            ..GenerationChunk::default()
        };
        match self {
            Self::Count => {}
            Self::Text { special: false } => chunk.text = Some(files.texts.decode(&ids)),
            Self::Text { special: true } => chunk.text = Some(files.texts.decode_whole(&ids)),
            Self::Tokens { spelled: told } => {
                let spellings = told.then(|| files.spellings());
                chunk.token_logprobs = spellings.map(|spellings| {
                    let tokens = ids.iter().map(|id| spelled(*id, spellings));
                    tokens.collect::<Value>().to_string()
                });
                chunk.token_ids = Some(ids);
            }
        }
        Ok(chunk)
    }
}

/// Returns one row for each item. Cancel safe: dropping the future cancels the rendering of
/// prompts.
///
/// # Errors
/// Those of the items, when all of them fail; those of the input stream.
pub(crate) async fn inspect_tokens(
    files: Arc<ModelFiles>,
    input: Input,
    options: Options,
    view: TokenView,
) -> Result<RecordBatch, PredictError> {
    let rows = items::collect(input).await?;
    let mut merge = Merge::new(rows.len());
    let ended = CancelFlag::default();
    let _guard = ended.on_drop();
    let told = move || {
        let told = rows.iter();
        let told = told.map(|row| view.at(&files, row, &options, &ended));
        told.collect::<Vec<_>>()
    };
    let told = tokio::task::spawn_blocking(told)
        .await
        .map_err(|error| PredictError::internal("tokenising failed", error))?;
    let mut chunks = GenerationChunks::default();
    for (item, told) in (0_u32..).zip(told) {
        let told = told.map(|chunk| GenerationChunk { item, ..chunk });
        merge.push((AnswerIndex { item, choice: 0 }, told), &mut chunks)?;
    }
    Ok(chunks.finish())
}
