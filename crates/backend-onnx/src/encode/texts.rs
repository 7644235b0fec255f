//! Columns of text into tokens.

use std::path::Path;

use arrow_array::{ArrayRef, RecordBatch};
use tokenizers::{EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationParams};
use volley_types::chat::text_at;
use volley_types::signature::{INPUT_TYPE, QUERY, TEXT, TEXT_PAIR};
use volley_types::{PredictError, Task};

use super::settings::Settings;

/// The tokens of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    /// Which of two texts each is of.
    pub(super) types: Vec<u32>,
    /// Where each token is in its text, in characters; nowhere for special ones. Only where the
    /// task needs it.
    pub(super) places: Vec<Option<Place>>,
    /// The text, where the task needs it.
    pub(super) text: String,
}

/// Where a token is in its text, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The word that it is of, counted as the tokenizer cuts words before it cuts tokens.
    pub(super) word: Option<u32>,
}

/// Turns rows into tokens.
pub(super) struct Texts {
    tokenizer: Tokenizer,
    task: Task,
    query_prefix: String,
    passage_prefix: String,
    default_prefix: String,
    lower_case: bool,
}

impl Texts {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// `InvalidInput` when it is missing, malformed, or leaves no room for text.
    pub(super) fn read(directory: &Path, settings: &Settings) -> Result<Self, PredictError> {
        let malformed = |error: tokenizers::Error| {
            PredictError::invalid("tokenizer.json is missing or malformed")
                .with_source(error.to_string())
        };
        let mut tokenizer =
            Tokenizer::from_file(directory.join("tokenizer.json")).map_err(malformed)?;
        let processor = tokenizer.get_post_processor();
        let special = processor.map_or(0, |processor| processor.added_tokens(true));
        if settings.max_length <= special {
            return Err(PredictError::invalid(format!(
                "a text may have {} tokens, and {special} of them are special: no room is left; \
                 'max_length' of model.toml says how many",
                settings.max_length
            )));
        }
        // Rows are padded run by run.
        tokenizer.with_padding(None);
        let truncation = TruncationParams {
            max_length: settings.max_length,
            ..TruncationParams::default()
        };
        tokenizer
            .with_truncation(Some(truncation))
            .map_err(malformed)?;
        Ok(Self {
            tokenizer,
            task: settings.task,
            query_prefix: settings.query_prefix.clone(),
            passage_prefix: settings.passage_prefix.clone(),
            default_prefix: settings.default_prefix.clone(),
            lower_case: settings.lower_case,
        })
    }

    /// The name of a token.
    pub(super) fn term(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The tokens of each row, cut to the model's length.
    ///
    /// # Errors
    /// `InvalidInput` naming the row that is null or of an unknown type.
    pub(super) fn tokenise(&self, rows: &RecordBatch) -> Result<Vec<Tokens>, PredictError> {
        let column = |name| rows.column_by_name(name);
        let texts = column(TEXT).ok_or_else(|| missing(TEXT))?;
        let (kinds, pairs, queries) = (column(INPUT_TYPE), column(TEXT_PAIR), column(QUERY));
        let tokenise = |row| {
            let text = text_of(texts, TEXT, row)?;
            let mut kept = String::new();
            let input: EncodeInput<'_> = match self.task {
                Task::Rerank => {
                    let queries = queries.ok_or_else(|| missing(QUERY))?;
                    (text_of(queries, QUERY, row)?, text).into()
                }
                Task::Classify => match pairs.and_then(|pairs| text_at(pairs, row)) {
                    Some(pair) => (text, pair).into(),
                    None => text.into(),
                },
                Task::Embed => {
                    let kind = kinds.and_then(|kinds| text_at(kinds, row));
                    let prefix = self.prefix(kind.as_deref(), row)?;
                    let text = format!("{prefix}{text}");
                    match self.lower_case {
                        true => text.to_lowercase().into(),
                        false => text.into(),
                    }
                }
                Task::ClassifyTokens => {
                    kept.clone_from(&text);
                    text.into()
                }
                _ => text.into(),
            };
            self.tokens(input, kept, row)
        };
        (0..rows.num_rows()).map(tokenise).collect()
    }

    fn tokens(
        &self,
        input: EncodeInput<'_>,
        text: String,
        row: usize,
    ) -> Result<Tokens, PredictError> {
        let spans = self.task == Task::ClassifyTokens;
        let encoded = if spans {
            self.tokenizer.encode_char_offsets(input, true)
        } else {
            self.tokenizer.encode(input, true)
        };
        let encoded = encoded.map_err(|error| {
            PredictError::invalid(format!("row {row}: the text could not be tokenised"))
                .with_source(error.to_string())
        })?;
        if encoded.is_empty() {
            return Err(PredictError::invalid(format!(
                "row {row}: the text has no tokens"
            )));
        }
        Ok(Tokens {
            ids: encoded.get_ids().to_vec(),
            types: encoded.get_type_ids().to_vec(),
            places: if spans { places(&encoded) } else { Vec::new() },
            text,
        })
    }

    /// What stands before a text of a kind.
    fn prefix(&self, kind: Option<&str>, row: usize) -> Result<&str, PredictError> {
        match kind {
            None => Ok(&self.default_prefix),
            Some("query" | "search_query") => Ok(&self.query_prefix),
            Some("passage" | "document" | "search_document") => Ok(&self.passage_prefix),
            Some(_) => Err(PredictError::invalid(format!(
                "row {row}: '{INPUT_TYPE}' must be 'query' or 'passage'"
            ))),
        }
    }
}

fn places(encoded: &Encoding) -> Vec<Option<Place>> {
    let special = encoded.get_special_tokens_mask();
    let words = encoded.get_word_ids().iter().zip(special);
    let places = encoded.get_offsets().iter().zip(words);
    places
        .map(|((start, end), (word, special))| {
            (*special == 0).then_some(Place {
                start: *start,
                end: *end,
                word: *word,
            })
        })
        .collect()
}

fn text_of(column: &ArrayRef, name: &str, row: usize) -> Result<String, PredictError> {
    text_at(column, row)
        .ok_or_else(|| PredictError::invalid(format!("row {row}: '{name}' is null")))
}

fn missing(name: &str) -> PredictError {
    PredictError::invalid(format!("input column '{name}' (Utf8) is missing"))
}
