//! Texts into tokens and back: vocabularies, the bytes of each token, and text that grows by a
//! token at a time.
//!
//! This is the only crate that depends on `tokenizers`; others use its types through
//! [`tokenizers`].

pub mod text;
pub mod token_bytes;
pub mod vocabulary;

pub use tokenizers;
