//! Converts prompts and conversations to token ids.

use volley_backend::items::Item;
use volley_types::{ChatMessage, PredictError};

use super::model::ModelFiles;
use super::options::Options;
use volley_chat_template::CancelFlag;
use volley_tokens::text::Decode;

/// Prompts share prefixes in multiples of this number of tokens. Prefilling fewer tokens is as fast
/// as finding them in the cache.
pub(crate) const BLOCK: usize = 64;

/// A tokenised prompt.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    /// Its text, for answers that echo it.
    pub(crate) text: String,
}

/// Tokenises one item, and checks that the context has room for an answer.
///
/// # Errors
/// Those of [`tokens`]; `InvalidInput` when the context has no room.
pub(crate) fn encode(
    files: &ModelFiles,
    item: &Item,
    options: &Options,
    ended: &CancelFlag,
) -> Result<Prompt, PredictError> {
    let prompt = tokens(files, item, options, ended)?;
    let count = prompt.ids.len();
    // A prompt without an answer may fill the context.
    let room = usize::from(0 < options.max_tokens);
    if files.context < count + room {
        return Err(too_long(format!(
            "the prompt has {count} tokens, but the model's context is {}; shorten it",
            files.context
        )));
    }
    Ok(prompt)
}

/// Tokenises one item. If the model has a chat template, a plain prompt becomes one user message,
/// unless the request is raw.
///
/// # Errors
/// `InvalidInput` when the model has no chat template for a conversation, the conversation does not
/// fit the template, or the prompt is far too long.
pub(crate) fn tokens(
    files: &ModelFiles,
    item: &Item,
    options: &Options,
    ended: &CancelFlag,
) -> Result<Prompt, PredictError> {
    if options.token_inputs {
        return given(files, item);
    }
    let (text, template) = text(files, item, options, ended)?;
    check_length(files, &text)?;
    let special = options.rendering.special_tokens.unwrap_or(!template);
    let encoding = files
        .texts
        .tokenizer()
        .encode(text.as_str(), special)
        .map_err(|error| {
            PredictError::invalid("the prompt could not be tokenised")
                .with_source(error.to_string())
        })?;
    let mut ids = encoding.get_ids().to_vec();
    if let Some(most) = options.rendering.truncated {
        ids.drain(..ids.len().saturating_sub(most));
    }
    if ids.is_empty() {
        return Err(PredictError::invalid("the prompt is empty"));
    }
    if let Some(id) = ids.iter().find(|id| files.vocabulary <= **id as usize) {
        let message = "the tokenizer does not belong to the model";
        return Err(PredictError::internal(message, format!("token {id}")));
    }
    Ok(Prompt { ids, text })
}

/// Reads an item that is a JSON array of token ids.
///
/// # Errors
/// `InvalidInput` when it is not an array of known token ids.
pub(crate) fn given(files: &ModelFiles, item: &Item) -> Result<Prompt, PredictError> {
    let Item::Prompt(prompt) = item else {
        return Err(PredictError::invalid(
            "a prompt of token ids must be a list; send 'prompt' instead of 'messages'",
        ));
    };
    check_length(files, prompt)?;
    let ids: Vec<u32> = serde_json::from_str(prompt).map_err(|_| {
        PredictError::invalid("a prompt of token ids must be a list of whole numbers from 0 on")
    })?;
    if ids.is_empty() {
        return Err(PredictError::invalid("the prompt is empty"));
    }
    if let Some(id) = ids.iter().find(|id| files.vocabulary <= **id as usize) {
        return Err(PredictError::invalid(format!(
            "the prompt has the token {id}, but the model's vocabulary has {} tokens",
            files.vocabulary
        )));
    }
    let text = files.texts.decode(&ids);
    Ok(Prompt { ids, text })
}

/// The text for the model, and whether a chat template rendered it.
fn text(
    files: &ModelFiles,
    item: &Item,
    options: &Options,
    ended: &CancelFlag,
) -> Result<(String, bool), PredictError> {
    let tools = options.tools.as_deref();
    if tools.is_some() && (files.chat.is_none() || options.raw) {
        return Err(PredictError::invalid(
            "tools need a chat template, but this prompt has none",
        ));
    }
    let rendering = &options.rendering;
    match (item, &files.chat) {
        (Item::Prompt(prompt), Some(chat)) if !options.raw => {
            check_length(files, prompt)?;
            let message = ChatMessage::new("user", prompt);
            Ok((chat.render(&[message], tools, rendering, ended)?, true))
        }
        (Item::Prompt(prompt), _) => Ok((prompt.clone(), false)),
        (Item::Chat(messages), Some(chat)) => {
            for message in messages {
                check_length(files, &message.content)?;
            }
            Ok((chat.render(messages, tools, rendering, ended)?, true))
        }
        (Item::Chat(_), None) => Err(PredictError::invalid(
            "this model has no chat template; send 'prompt' instead of 'messages'",
        )),
    }
}

fn check_length(files: &ModelFiles, text: &str) -> Result<(), PredictError> {
    if text.len() <= files.prompt_bytes {
        return Ok(());
    }
    Err(too_long(format!(
        "the prompt has {} bytes, which is far more than the model's context of {} tokens; \
         shorten it",
        text.len(),
        files.context
    )))
}

fn too_long(message: String) -> PredictError {
    PredictError::context_length(message)
}
