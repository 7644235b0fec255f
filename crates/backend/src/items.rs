//! The rows of a generation request as a backend reads them.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use futures::TryStreamExt;
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{ErrorCode, Input, PredictError};

/// The most items in one generation request.
pub const MAX_ITEMS: usize = 1_024;

/// One row of a generation request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Plain text to go on with.
    Prompt(String),
    /// A conversation to answer.
    Chat(Vec<Message>),
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or whatever the model's template knows.
    pub role: String,
    /// The text; empty where the sender gave none.
    pub content: String,
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
            let prompt = prompts.and_then(|column| text(column, row));
            let chat = messages.and_then(|column| chat(column, row));
            match (prompt, chat) {
                (Some(prompt), None) => Ok(Item::Prompt(prompt)),
                (None, Some(Some(chat))) if !chat.is_empty() => Ok(Item::Chat(chat)),
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

/// The text in a row of a `Utf8` or `LargeUtf8` column; `None` where null.
fn text(column: &ArrayRef, row: usize) -> Option<String> {
    if column.is_null(row) {
        return None;
    }
    let small = column
        .as_string_opt::<i32>()
        .map(|texts| texts.value(row).to_owned());
    small.or_else(|| {
        column
            .as_string_opt::<i64>()
            .map(|texts| texts.value(row).to_owned())
    })
}

/// The messages in a row: `None` where null, `Some(None)` where the column is malformed.
fn chat(column: &ArrayRef, row: usize) -> Option<Option<Vec<Message>>> {
    if column.is_null(row) {
        return None;
    }
    let read = || {
        let list = column.as_list_opt::<i32>()?.value(row);
        let list = list.as_struct_opt()?;
        let (roles, contents) = (
            list.column_by_name("role")?,
            list.column_by_name("content")?,
        );
        let messages = (0..list.len()).map(|index| {
            let content = text(contents, index).unwrap_or_default();
            Some(Message {
                role: text(roles, index)?,
                content,
            })
        });
        messages.collect()
    };
    Some(read())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{ListBuilder, StringBuilder, StructBuilder};
    use arrow_array::{LargeStringArray, StringArray};
    use arrow_schema::{DataType, Field};
    use volley_types::signature::message_fields;

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
        let item = Field::new("item", DataType::Struct(message_fields()), false);
        let text = || Box::new(StringBuilder::new()) as Box<dyn arrow_array::builder::ArrayBuilder>;
        let fields = StructBuilder::new(message_fields(), vec![text(), text()]);
        let mut chats = ListBuilder::new(fields).with_field(Arc::new(item));
        for (index, value) in ["user", "hello"].into_iter().enumerate() {
            let builder = chats.values().field_builder::<StringBuilder>(index);
            builder.unwrap().append_value(value);
        }
        chats.values().append(true);
        chats.append(true);
        chats.append(false);
        let chats: ArrayRef = Arc::new(chats.finish());
        let prompts =
            |a: Option<&str>, b: Option<&str>| Arc::new(StringArray::from(vec![a, b])) as ArrayRef;
        let good = batch(vec![
            (PROMPT, prompts(None, Some("hi"))),
            (MESSAGES, chats.clone()),
        ]);
        let hello = Message {
            role: "user".to_owned(),
            content: "hello".to_owned(),
        };
        assert_eq!(
            read(&good).unwrap(),
            [Item::Chat(vec![hello]), Item::Prompt("hi".to_owned())]
        );
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
