//! Prompts and conversations into token ids.

use volley_backend::items::Item;
use volley_types::{ChatMessage, ErrorCode, PredictError};

use super::model::ModelFiles;
use super::options::Options;

/// The tokens of one item, which leave room for an answer.
///
/// # Errors
/// Those of [`tokens`]; `TooLarge` when there is no such room.
pub(crate) fn encode(
    files: &ModelFiles,
    item: &Item,
    options: &Options,
) -> Result<Vec<u32>, PredictError> {
    let ids = tokens(files, item, options)?;
    if files.context <= ids.len() {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!(
                "the prompt has {} tokens, and the model's context is {}; shorten it",
                ids.len(),
                files.context
            ),
        ));
    }
    if let Some(id) = ids.iter().find(|id| files.vocabulary <= **id as usize) {
        let message = "the tokenizer does not belong to the model";
        return Err(PredictError::internal(message, format!("token {id}")));
    }
    Ok(ids)
}

/// The tokens of one item. Where the model has a chat template, a plain prompt is one user
/// message, unless the request asks for it raw.
///
/// # Errors
/// `InvalidInput` when a conversation comes to a model without a template, or does not fit it;
/// `TooLarge` when the prompt is far too long.
pub(crate) fn tokens(
    files: &ModelFiles,
    item: &Item,
    options: &Options,
) -> Result<Vec<u32>, PredictError> {
    let tools = options.tools.as_deref();
    if tools.is_some() && (files.chat.is_none() || options.raw) {
        return Err(PredictError::invalid(
            "tools need a chat template, and this prompt has none",
        ));
    }
    let (text, special) = match (item, &files.chat) {
        (Item::Prompt(prompt), Some(chat)) if !options.raw => {
            let message = ChatMessage::new("user", prompt);
            (chat.render(&[message], tools)?, false)
        }
        (Item::Prompt(prompt), _) => (prompt.clone(), true),
        (Item::Chat(messages), Some(chat)) => (chat.render(messages, tools)?, false),
        (Item::Chat(_), None) => {
            return Err(PredictError::invalid(
                "this model has no chat template; send 'prompt' instead of 'messages'",
            ));
        }
    };
    if files.prompt_bytes < text.len() {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!(
                "the prompt has {} bytes, which is far more than the model's context of {} tokens; \
                 shorten it",
                text.len(),
                files.context
            ),
        ));
    }
    let encoding = files
        .texts
        .tokenizer()
        .encode(text, special)
        .map_err(|error| {
            PredictError::invalid("the prompt could not be tokenised")
                .with_source(error.to_string())
        })?;
    let ids = encoding.get_ids().to_vec();
    if ids.is_empty() {
        return Err(PredictError::invalid("the prompt is empty"));
    }
    Ok(ids)
}
