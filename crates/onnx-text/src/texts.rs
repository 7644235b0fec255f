//! Converts columns of text to tokens.

use std::path::Path;
use std::sync::OnceLock;

use arrow_array::RecordBatch;
use volley_tokens::tokenizers::{
    EncodeInput, Encoding, PostProcessor, Tokenizer, TruncationParams,
};
use volley_types::chat::text_at;
use volley_types::signature::{INPUT_TYPE, QUERY, TEXT, TEXT_PAIR};
use volley_types::{ErrorCode, PredictError, Task};

use super::parameters::EncodeParameters;
use super::settings::EncoderSettings;
use volley_tokens::vocabulary;

/// The tokens of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    /// The index of the text, first or second, that each token belongs to.
    pub(super) types: Vec<u32>,
    /// The span of each token in its text; `None` for special tokens. Empty if the task does not
    /// need it.
    pub(super) places: Vec<Option<TokenSpan>>,
    /// The text; empty if the task does not need it.
    pub(super) text: String,
    /// Whether the vectors of all tokens are requested instead of one vector.
    pub(super) each: bool,
}

/// The position of a token in its text, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenSpan {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Index of its word, in the tokenizer's own pre-tokenisation.
    pub(super) word: Option<u32>,
}

/// A token, for requests about tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenText {
    pub(super) id: u32,
    pub(super) text: String,
    /// Its range in the text, in characters; `None` for special tokens.
    pub(super) place: Option<(usize, usize)>,
}

/// Converts rows to tokens.
pub(super) struct Texts {
    tokenizer: Tokenizer,
    /// The tokenizer without truncation, created by the first request about tokens.
    uncut: OnceLock<Option<Tokenizer>>,
    task: Task,
    query_prefix: String,
    passage_prefix: String,
    default_prefix: String,
    lower_case: bool,
    max_length: usize,
}

impl Texts {
    /// Reads `tokenizer.json` or `vocab.txt`.
    ///
    /// # Errors
    /// `InvalidInput` when the file is missing or malformed, or the maximum length leaves no room
    /// for text.
    pub(super) fn read(directory: &Path, settings: &EncoderSettings) -> Result<Self, PredictError> {
        let malformed = |error: volley_tokens::tokenizers::Error| {
            PredictError::invalid("tokenizer.json is missing or malformed")
                .with_source(error.to_string())
        };
        let mut tokenizer = vocabulary::tokenizer(directory)?;
        let processor = tokenizer.get_post_processor();
        let special = processor.map_or(0, |processor| processor.added_tokens(true));
        if settings.max_length <= special {
            return Err(PredictError::invalid(format!(
                "a text may have {} tokens, of which {special} are special: no token is left for \
                 the text; raise 'max_length' in model.toml",
                settings.max_length
            )));
        }
        // Rows are padded per run.
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
            uncut: OnceLock::new(),
            task: settings.task,
            query_prefix: settings.query_prefix.clone(),
            passage_prefix: settings.passage_prefix.clone(),
            default_prefix: settings.default_prefix.clone(),
            lower_case: settings.lower_case,
            max_length: settings.max_length,
        })
    }

    /// The text of a token in the vocabulary.
    pub(super) fn term(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Tokenises each row, and truncates it to the model's length unless whole texts are required.
    /// The first row is row `first` of its request.
    ///
    /// # Errors
    /// `InvalidInput` with the row that is null, has an unknown input type, or is not a list of
    /// tokens where one is required; `TooLarge` with the row that is too long and may not be
    /// truncated.
    pub(super) fn tokenise(
        &self,
        rows: &RecordBatch,
        first: usize,
        wanted: EncodeParameters,
    ) -> Result<Vec<Tokens>, PredictError> {
        let column = |name| rows.column_by_name(name);
        let texts = column(TEXT).ok_or_else(|| missing(TEXT))?;
        let (kinds, pairs, queries) = (column(INPUT_TYPE), column(TEXT_PAIR), column(QUERY));
        let tokenise = |row| {
            let told = first + row;
            let text = text_at(texts, row).ok_or_else(|| null(TEXT, told))?;
            if wanted.token_inputs {
                return self.given(&text, told);
            }
            let mut kept = String::new();
            let input: EncodeInput<'_> = match self.task {
                Task::Rerank => {
                    let queries = queries.ok_or_else(|| missing(QUERY))?;
                    let query = text_at(queries, row).ok_or_else(|| null(QUERY, told))?;
                    (query, text).into()
                }
                Task::Classify => match pairs.and_then(|pairs| text_at(pairs, row)) {
                    Some(pair) => (text, pair).into(),
                    None => text.into(),
                },
                Task::Embed => {
                    let kind = kinds.and_then(|kinds| text_at(kinds, row));
                    let prefix = self.prefix(kind.as_deref(), told)?;
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
            self.tokens(input, kept, told, wanted.whole)
        };
        let tokenise = |row| {
            let tokens = tokenise(row)?;
            Ok(Tokens {
                each: wanted.token_vectors,
                ..tokens
            })
        };
        (0..rows.num_rows()).map(tokenise).collect()
    }

    fn tokens(
        &self,
        input: EncodeInput<'_>,
        text: String,
        row: usize,
        whole: bool,
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
        if whole && !encoded.get_overflowing().is_empty() {
            return Err(self.too_long(row));
        }
        Ok(Tokens {
            ids: encoded.get_ids().to_vec(),
            types: encoded.get_type_ids().to_vec(),
            places: if spans { places(&encoded) } else { Vec::new() },
            text,
            each: false,
        })
    }

    /// Reads a row that is a list of token ids, including the special ones.
    fn given(&self, text: &str, row: usize) -> Result<Tokens, PredictError> {
        let ids: Option<Vec<u32>> = serde_json::from_str(text).ok();
        let ids = ids.filter(|ids| !ids.is_empty()).ok_or_else(|| {
            PredictError::invalid(format!("row {row}: the text is not a list of token ids"))
        })?;
        self.check_known(&ids, row)?;
        if self.max_length < ids.len() {
            return Err(self.too_long(row));
        }
        Ok(Tokens {
            types: vec![0; ids.len()],
            ids,
            ..Tokens::default()
        })
    }

    fn too_long(&self, row: usize) -> PredictError {
        let message = format!(
            "row {row}: the text is too long: the model reads at most {} tokens; shorten it, or \
             let it be truncated",
            self.max_length
        );
        PredictError::new(ErrorCode::TooLarge, message)
    }

    /// All tokens of a text, without truncation.
    ///
    /// # Errors
    /// `InvalidInput` with the row.
    pub(super) fn inspect_tokens(
        &self,
        text: &str,
        special: bool,
        row: usize,
    ) -> Result<Vec<TokenText>, PredictError> {
        let text = match self.lower_case && self.task == Task::Embed {
            true => text.to_lowercase(),
            false => text.to_owned(),
        };
        let failed = |error: volley_tokens::tokenizers::Error| {
            PredictError::invalid(format!("row {row}: the text could not be tokenised"))
                .with_source(error.to_string())
        };
        let uncut = self.uncut.get_or_init(|| {
            let mut uncut = self.tokenizer.clone();
            uncut.with_truncation(None).is_ok().then_some(uncut)
        });
        let uncut = uncut
            .as_ref()
            .ok_or_else(|| failed("it is always truncated".into()))?;
        let encoded = uncut.encode_char_offsets(text.as_str(), special);
        let encoded = encoded.map_err(failed)?;
        let characters: Vec<char> = text.chars().collect();
        let places = encoded.get_offsets().iter();
        let places = places.zip(encoded.get_special_tokens_mask());
        let tokens = encoded.get_ids().iter().zip(places);
        let tokens = tokens.map(|(id, ((start, end), special))| {
            let place = (*special == 0).then_some((*start, *end));
            let own = place.and_then(|_| characters.get(*start..*end));
            TokenText {
                id: *id,
                text: match own {
                    Some(own) => own.iter().collect(),
                    None => self.term(*id).unwrap_or_default(),
                },
                place,
            }
        });
        Ok(tokens.collect())
    }

    /// Decodes tokens to text.
    ///
    /// # Errors
    /// `InvalidInput` with the row and the unknown token.
    pub(super) fn spell(
        &self,
        ids: &[u32],
        special: bool,
        row: usize,
    ) -> Result<String, PredictError> {
        self.check_known(ids, row)?;
        self.tokenizer.decode(ids, !special).map_err(|error| {
            PredictError::invalid(format!("row {row}: the tokens have no text"))
                .with_source(error.to_string())
        })
    }

    fn check_known(&self, ids: &[u32], row: usize) -> Result<(), PredictError> {
        match ids.iter().find(|id| self.term(**id).is_none()) {
            None => Ok(()),
            Some(unknown) => Err(PredictError::invalid(format!(
                "row {row}: token {unknown} is not in the model's vocabulary"
            ))),
        }
    }

    /// The prefix of a text with this input type.
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

fn places(encoded: &Encoding) -> Vec<Option<TokenSpan>> {
    let special = encoded.get_special_tokens_mask();
    let words = encoded.get_word_ids().iter().zip(special);
    let places = encoded.get_offsets().iter().zip(words);
    places
        .map(|((start, end), (word, special))| {
            (*special == 0).then_some(TokenSpan {
                start: *start,
                end: *end,
                word: *word,
            })
        })
        .collect()
}

fn null(name: &str, row: usize) -> PredictError {
    PredictError::invalid(format!("row {row}: '{name}' is null"))
}

fn missing(name: &str) -> PredictError {
    PredictError::invalid(format!("input column '{name}' (Utf8) is missing"))
}
