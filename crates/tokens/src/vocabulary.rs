//! Loads a model's tokenizer from `tokenizer.json`, or builds a WordPiece tokenizer from
//! `vocab.txt` for older models of the BERT family.

use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;
use volley_types::PredictError;

/// Vocabulary of a BERT tokenizer, one token per line.
pub const VOCABULARY: &str = "vocab.txt";
/// Complete tokenizer of Hugging Face `tokenizers`.
pub const TOKENIZER: &str = "tokenizer.json";

/// Maximum size of a vocabulary, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// BERT tokenizer classes in `tokenizer_config.json`.
const CLASSES: [&str; 8] = [
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "ConvBertTokenizer",
    "LxmertTokenizer",
    "SqueezeBertTokenizer",
    "RetriBertTokenizer",
];

/// The contents of `tokenizer_config.json`, with defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Settings {
    tokenizer_class: Option<String>,
    do_lower_case: bool,
    tokenize_chinese_chars: bool,
    strip_accents: Option<bool>,
    unk_token: Token,
    cls_token: Token,
    sep_token: Token,
    pad_token: Token,
    mask_token: Token,
}

/// The text of a token. Newer files have it in an object.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let token = |text: &str| Token::Text(text.to_owned());
        Self {
            tokenizer_class: None,
            do_lower_case: true,
            tokenize_chinese_chars: true,
            strip_accents: None,
            unk_token: token("[UNK]"),
            cls_token: token("[CLS]"),
            sep_token: token("[SEP]"),
            pad_token: token("[PAD]"),
            mask_token: token("[MASK]"),
        }
    }
}

/// Loads the tokenizer of a model directory. `tokenizer.json` takes precedence. Blocks on file I/O.
///
/// # Errors
/// `InvalidInput` naming the missing or malformed file.
pub fn tokenizer(directory: &Path) -> Result<Tokenizer, PredictError> {
    let (file, malformed) = match directory.join(TOKENIZER).is_file() {
        true => (None, "tokenizer.json is missing or malformed"),
        false => (
            Some(of_vocabulary(directory)?),
            "vocab.txt is not a usable vocabulary",
        ),
    };
    let made = match file {
        None => Tokenizer::from_file(directory.join(TOKENIZER)),
        Some(file) => Tokenizer::from_bytes(file.to_string()),
    };
    made.map_err(|error| PredictError::invalid(malformed).with_source(error.to_string()))
}

/// Builds the contents of `tokenizer.json` from `vocab.txt`. Blocks on file I/O.
///
/// # Errors
/// `InvalidInput` if `vocab.txt` is missing, or is not the vocabulary of a BERT tokenizer.
pub fn of_vocabulary(directory: &Path) -> Result<Value, PredictError> {
    let settings = settings(directory)?;
    let class = settings.tokenizer_class.as_deref().unwrap_or(CLASSES[0]);
    if !CLASSES.contains(&class.trim_end_matches("Fast")) {
        return Err(PredictError::invalid(format!(
            "tokenizer.json is missing, and vocab.txt cannot replace it: tokenizer_config.json \
             names '{}', which is not BERT's tokenizer; save it with `{SAVE}`",
            class.escape_debug()
        )));
    }
    let tokens = vocabulary(directory)?;
    let mut special = Map::new();
    let mut added = Vec::new();
    for (token, needed) in [
        (&settings.pad_token, false),
        (&settings.unk_token, true),
        (&settings.cls_token, true),
        (&settings.sep_token, true),
        (&settings.mask_token, false),
    ] {
        let text = token.text();
        match tokens.get(text) {
            Some(id) => {
                special.insert(
                    text.to_owned(),
                    json!({ "id": text, "ids": [id], "tokens": [text] }),
                );
                added.push(json!({
                    "id": id, "content": text, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true,
                }));
            }
            None if needed => {
                return Err(PredictError::invalid(format!(
                    "vocab.txt lacks the token '{}', which a BERT tokenizer needs",
                    text.escape_debug()
                )));
            }
            None => {}
        }
    }
    added.sort_by_key(|token| token["id"].as_u64());
    let token =
        |text: &Token, kind: u8| json!({ "SpecialToken": { "id": text.text(), "type_id": kind } });
    let text = |name: &str, kind: u8| json!({ "Sequence": { "id": name, "type_id": kind } });
    let (begin, end) = (&settings.cls_token, &settings.sep_token);
    let single = [token(begin, 0), text("A", 0), token(end, 0)];
    let pair = [&single[..], &[text("B", 1), token(end, 1)]].concat();
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": settings.tokenize_chinese_chars,
            "strip_accents": settings.strip_accents, "lowercase": settings.do_lower_case,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special,
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": settings.unk_token.text(),
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": tokens,
        },
    }))
}

/// Command that saves a tokenizer as `tokenizer.json`.
const SAVE: &str = "python -c \"from transformers import AutoTokenizer; \
                    AutoTokenizer.from_pretrained('DIRECTORY').save_pretrained('DIRECTORY')\"";

/// The error for a text model without a tokenizer.
pub fn missing(directory: &Path) -> PredictError {
    let others = [
        "spiece.model",
        "tokenizer.model",
        "sentencepiece.bpe.model",
        "vocab.json",
        "merges.txt",
    ];
    let there = others.iter().filter(|name| directory.join(name).is_file());
    let mut told = String::new();
    for name in there {
        let joint = if told.is_empty() { " beside " } else { " and " };
        // Writing to a string does not fail.
        let _ = write!(told, "{joint}{name}");
    }
    PredictError::invalid(format!(
        "config.json describes a text model, but its tokenizer is missing: the directory has \
         neither tokenizer.json nor vocab.txt{told}; save it with `{SAVE}`, or serve the graph's \
         tensors with task = \"tensors\" in model.toml"
    ))
}

fn settings(directory: &Path) -> Result<Settings, PredictError> {
    let path = directory.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(Settings::default());
    }
    let malformed = |error: String| {
        PredictError::invalid("tokenizer_config.json is malformed").with_source(error)
    };
    let text = std::fs::read(path).map_err(|error| malformed(error.to_string()))?;
    let mut file: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    // Null values count as absent.
    file.retain(|_, value| !value.is_null());
    serde_json::from_value(Value::Object(file)).map_err(|error| malformed(error.to_string()))
}

/// The tokens of `vocab.txt`, numbered by line from 0.
fn vocabulary(directory: &Path) -> Result<Map<String, Value>, PredictError> {
    let unreadable = |error: std::io::Error| {
        PredictError::invalid("vocab.txt is missing or is not text").with_source(error)
    };
    let path = directory.join(VOCABULARY);
    let bytes = std::fs::metadata(&path).map_err(unreadable)?.len();
    if MAX_BYTES < bytes {
        return Err(PredictError::invalid("vocab.txt is over 64 MiB"));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let tokens = text.lines().zip(0_u32..);
    Ok(tokens
        .map(|(token, id)| (token.to_owned(), id.into()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nparis\nParis\nun\n##able\n,\ncafe\n";

    fn directory(config: Option<&str>, vocabulary: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(VOCABULARY), vocabulary).unwrap();
        if let Some(config) = config {
            std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        }
        folder
    }

    fn tokens(config: Option<&str>, text: &str) -> Vec<String> {
        let folder = directory(config, TOKENS);
        let tokenizer = tokenizer(folder.path()).unwrap();
        let encoded = tokenizer.encode(text, true).unwrap();
        encoded.get_tokens().to_vec()
    }

    #[test]
    fn a_vocabulary_is_berts_tokenizer() {
        let told = tokens(None, "Unable, Paris Café");
        let lower = ["[CLS]", "un", "##able", ",", "paris", "cafe", "[SEP]"];
        assert_eq!(told, lower);
        let cased = r#"{"do_lower_case": false, "tokenizer_class": "BertTokenizer",
                        "strip_accents": null, "cls_token": {"content": "[CLS]"}}"#;
        let told = tokens(Some(cased), "unable, Paris Rome [MASK]");
        let upper = [
            "[CLS]", "un", "##able", ",", "Paris", "[UNK]", "[MASK]", "[SEP]",
        ];
        assert_eq!(told, upper);
        let folder = directory(None, TOKENS);
        let pair = tokenizer(folder.path()).unwrap();
        let pair = pair.encode(("paris", "un"), true).unwrap();
        assert_eq!(pair.get_ids(), [2, 5, 3, 7, 3]);
        assert_eq!(pair.get_type_ids(), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn what_is_no_vocabulary_of_berts_is_refused_by_name() {
        let other = r#"{"tokenizer_class": "MPNetTokenizer"}"#;
        for (config, vocabulary, text) in [
            (Some(other), TOKENS, "MPNetTokenizer"),
            (Some("{"), TOKENS, "tokenizer_config.json"),
            (None, "[PAD]\n[UNK]\n", "'[CLS]'"),
        ] {
            let folder = directory(config, vocabulary);
            let error = tokenizer(folder.path()).unwrap_err();
            assert!(error.message.contains(text), "{}", error.message);
        }
    }
}
