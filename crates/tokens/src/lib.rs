//! Tokenization and detokenization: vocabularies, the bytes of each token, and incremental text.
//!
//! This is the only crate that depends on `tokenizers`; others use its types through
//! [`tokenizers`].
//!
//! Reading order: [`vocabulary`] (loading a tokenizer), [`token_bytes`] (bytes for constraints),
//! [`text`] (text of an answer).

pub mod text;
pub mod token_bytes;
pub mod vocabulary;

pub use tokenizers;
