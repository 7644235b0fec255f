//! What is told of texts without running the model: their tokens, and the text of tokens. The answer
//! has the columns of a generation's, one row for each text.

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

/// Whether the model's special tokens stand around a text.
const ADD_SPECIAL: &str = "add_special_tokens";
/// Whether each token is told with its spelling.
const SPELLED: &str = "return_token_strs";
/// Whether special tokens have no text.
const SKIP_SPECIAL: &str = "skip_special_tokens";
/// Whether a text is read as it is, which an encoder always does.
const RAW: &str = "raw";

/// What is told of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenView {
    /// Its tokens.
    Tokens { special: bool, spelled: bool },
    /// The text of the tokens that it is a list of.
    Text { special: bool },
}

impl TokenView {
    /// What a request asks to be told in place of an answer.
    ///
    /// # Errors
    /// `InvalidInput` naming a parameter that says nothing here, or where it asks for two things.
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

    /// One row for each of `rows`, of which the first is row `first` of its request. Blocks.
    ///
    /// # Errors
    /// `InvalidInput` naming the row that has no text, or no list of tokens where it should.
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
