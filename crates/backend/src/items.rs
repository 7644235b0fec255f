//! Parsed rows of a generation request.

use arrow_array::{Array, RecordBatch};
use futures::TryStreamExt;
use volley_types::chat::{check_roles, conversation, text_at};
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{ChatMessage, ErrorCode, Input, PredictError};

/// The most items in one generation request.
pub const MAX_ITEMS: usize = 1_024;

/// One row of a generation request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Plain text to continue.
    Prompt(String),
    /// A conversation to answer.
    Chat(Vec<ChatMessage>),
}

/// Collects all rows of a generation request.
///
/// # Errors
/// `InvalidInput` when a row has neither or both of prompt and messages, or there are no rows;
/// `TooLarge` past [`MAX_ITEMS`]; the input stream's own error.
pub async fn collect(input: Input) -> Result<Vec<Item>, PredictError> {
    let mut batches = input.into_stream();
    let mut items = Vec::new();
    while let Some(batch) = batches.try_next().await? {
        if MAX_ITEMS < items.len() + batch.num_rows() {
            let message = format!("a generation request may have at most {MAX_ITEMS} items");
            return Err(PredictError::new(ErrorCode::TooLarge, message));
        }
        items.extend(read(&batch)?);
    }
    if items.is_empty() {
        return Err(PredictError::invalid(
            "the request has no rows; send at least one prompt",
        ));
    }
    Ok(items)
}

/// Reads the rows of one batch.
///
/// # Errors
/// As [`collect`].
pub fn read(batch: &RecordBatch) -> Result<Vec<Item>, PredictError> {
    let prompts = batch.column_by_name(PROMPT);
    let messages = batch.column_by_name(MESSAGES);
    (0..batch.num_rows())
        .map(|row| {
            let prompt = prompts.and_then(|column| text_at(column, row));
            let messages = messages.filter(|column| !column.is_null(row));
            let chat = messages.map(|column| conversation(column, row));
            match (prompt, chat) {
                (Some(prompt), None) => Ok(Item::Prompt(prompt)),
                (None, Some(Some(chat))) if !chat.is_empty() => {
                    check_roles(&chat)?;
                    Ok(Item::Chat(chat))
                }
                (None, Some(_)) => Err(PredictError::invalid(format!(
                    "row {row}: '{MESSAGES}' must be a list of at least one message with text \
                     columns 'role' and 'content'"
                ))),
                _ => Err(PredictError::invalid(format!(
                    "row {row}: exactly one of '{PROMPT}' and '{MESSAGES}' must have a value"
                ))),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, LargeStringArray, StringArray};
    use volley_types::chat::conversations;

    use super::*;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(
            columns
                .into_iter()
                .map(|(name, column)| (name, column, true)),
        )
        .unwrap()
    }

    #[test]
    fn prompts_and_chats_are_read_and_a_row_has_exactly_one() {
        let hello = ChatMessage::new("user", "hello");
        let chats = conversations([Some(std::slice::from_ref(&hello)), None]);
        let prompts =
            |a: Option<&str>, b: Option<&str>| Arc::new(StringArray::from(vec![a, b])) as ArrayRef;
        let good = batch(vec![
            (PROMPT, prompts(None, Some("hi"))),
            (MESSAGES, chats.clone()),
        ]);
        assert_eq!(
            read(&good).unwrap(),
            [Item::Chat(vec![hello]), Item::Prompt("hi".to_owned())]
        );
        let unknown = ChatMessage::new("admin", "hello");
        let unknown = conversations([Some(std::slice::from_ref(&unknown))]);
        let refused = read(&batch(vec![(MESSAGES, unknown)])).unwrap_err();
        assert!(refused.message.contains("'admin'"), "{}", refused.message);
        for (a, b) in [(Some("x"), Some("y")), (None, None)] {
            let bad = batch(vec![(PROMPT, prompts(a, b)), (MESSAGES, chats.clone())]);
            assert_eq!(read(&bad).unwrap_err().code, ErrorCode::InvalidInput);
        }
        let large: ArrayRef = Arc::new(LargeStringArray::from(vec!["big"]));
        assert_eq!(
            read(&batch(vec![(PROMPT, large)])).unwrap(),
            [Item::Prompt("big".to_owned())]
        );
    }
}
