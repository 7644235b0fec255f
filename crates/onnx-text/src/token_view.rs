//! Requests about tokens, which do not run the model: the tokens of texts, and the texts of tokens.
//! The answer has the columns of a generation, with one row for each text.

use arrow_array::RecordBatch;
use serde_json::{Value, json};
use volley_types::chat::text_at;
use volley_types::params::{DETOKENIZE, TOKENIZE};
use volley_types::signature::TEXT;
use volley_types::{
    FinishReason, GenerationChunk, GenerationChunks, Parameters, PredictError, Usage,
    unknown_parameter,
};

use super::texts::{Texts, TokenText};

/// Whether the special tokens around a text are included.
const ADD_SPECIAL: &str = "add_special_tokens";
/// Whether the text of each token is returned.
const SPELLED: &str = "return_token_strs";
/// Whether special tokens are omitted from the text.
const SKIP_SPECIAL: &str = "skip_special_tokens";
/// Whether a text is used without a template; always the case for encoders.
const RAW: &str = "raw";

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenView {
    /// Returns the tokens of a text.
    Tokens { special: bool, spelled: bool },
    /// Returns the text of a list of token ids.
    Text { special: bool },
}

impl TokenView {
    /// Reads the kind of request; `None` for a normal prediction.
    ///
    /// # Errors
    /// `InvalidInput` with the parameter that does not apply, or when both kinds are requested.
    pub(super) fn read(parameters: &Parameters) -> Result<Option<Self>, PredictError> {
        let flag =
            |name: &str, usual| Ok::<_, PredictError>(parameters.boolean(name)?.unwrap_or(usual));
        let look = match (flag(TOKENIZE, false)?, flag(DETOKENIZE, false)?) {
            (false, false) => return Ok(None),
            (true, false) => Self::Tokens {
                special: flag(ADD_SPECIAL, true)?,
                spelled: flag(SPELLED, false)?,
            },
            (false, true) => Self::Text {
                special: !flag(SKIP_SPECIAL, false)?,
            },
            (true, true) => {
                return Err(PredictError::invalid(
                    "a request must have only one of 'tokenize' and 'detokenize'",
                ));
            }
        };
        let known = [
            TOKENIZE,
            DETOKENIZE,
            ADD_SPECIAL,
            SPELLED,
            SKIP_SPECIAL,
            RAW,
        ];
        match parameters.iter().find(|(name, _)| !known.contains(name)) {
            Some((name, _)) => Err(unknown_parameter(name, known)),
            None => Ok(Some(look)),
        }
    }

    /// Answers each of `rows`. The first row is row `first` of its request. Blocks.
    ///
    /// # Errors
    /// `InvalidInput` with the row that is null or not a list of token ids.
    pub(super) fn at(
        self,
        texts: &Texts,
        rows: &RecordBatch,
        first: usize,
    ) -> Result<RecordBatch, PredictError> {
        let column = rows.column_by_name(TEXT);
        let column = column.ok_or_else(|| PredictError::invalid("column 'text' is missing"))?;
        let mut chunks = GenerationChunks::default();
        for row in 0..rows.num_rows() {
            let told = first + row;
            let text = text_at(column, row)
                .ok_or_else(|| PredictError::invalid(format!("row {told}: 'text' is null")))?;
            let chunk = self.row(texts, &text, told)?;
            chunks.push(&GenerationChunk {
                item: u32::try_from(told).unwrap_or(u32::MAX),
                ..chunk
            });
        }
        Ok(chunks.finish())
    }

    fn row(self, texts: &Texts, text: &str, row: usize) -> Result<GenerationChunk, PredictError> {
        let mut chunk = GenerationChunk {
            finish_reason: Some(FinishReason::Stop),
            last: true,
            ..GenerationChunk::default()
        };
        let count = match self {
            Self::Text { special } => {
                let ids: Option<Vec<u32>> = serde_json::from_str(text).ok();
                let ids = ids.ok_or_else(|| {
                    PredictError::invalid(format!("row {row}: the text is not a list of token ids"))
                })?;
                chunk.text = Some(texts.spell(&ids, special, row)?);
                ids.len()
            }
            Self::Tokens { special, spelled } => {
                let tokens = texts.inspect_tokens(text, special, row)?;
                let told = tokens.iter().map(told);
                chunk.token_logprobs = spelled.then(|| told.collect::<Value>().to_string());
                chunk.token_ids = Some(tokens.iter().map(|token| token.id).collect());
                tokens.len()
            }
        };
        chunk.usage = Some(Usage {
            prompt_tokens: u32::try_from(count).unwrap_or(u32::MAX),
            ..Usage::default()
        });
        Ok(chunk)
    }
}

fn told(token: &TokenText) -> Value {
    match token.place {
        None => json!({ "token": token.text, "special": true }),
        Some((start, stop)) => {
            json!({ "token": token.text, "special": false, "start": start, "stop": stop })
        }
    }
}
