//! Texts and conversations as columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, StringArray};
use arrow_schema::DataType;
use volley_types::ChatMessage;
use volley_types::chat::{conversation, conversations, text_at};
use volley_types::signature::{MESSAGES, PROMPT};

/// Casts text to the type that steps use.
pub(super) fn plain(column: &ArrayRef) -> ArrayRef {
    if *column.data_type() != DataType::LargeUtf8 {
        return column.clone();
    }
    let texts = (0..column.len()).map(|row| text_at(column, row));
    Arc::new(texts.collect::<StringArray>())
}

/// Converts each text to a conversation of one message.
pub(super) fn messages(column: &ArrayRef) -> ArrayRef {
    let rows = 0..column.len();
    let said = rows.map(|row| text_at(column, row).map(|text| [ChatMessage::new("user", text)]));
    let said: Vec<_> = said.collect();
    conversations(
        said.iter()
            .map(|row| row.as_ref().map(|row| row.as_slice())),
    )
}

/// The question of each row: the prompt, or the last message of the user.
pub(super) fn questions(columns: &BTreeMap<String, ArrayRef>, rows: usize) -> ArrayRef {
    let prompt = |row| text_at(columns.get(PROMPT)?, row);
    let said = |row: usize| {
        let column = columns
            .get(MESSAGES)
            .filter(|column| column.is_valid(row))?;
        let mut said = conversation(column, row)?.into_iter();
        let last = said.rfind(|message| message.role == "user");
        last.map(|message| message.content)
    };
    let questions = (0..rows).map(|row| prompt(row).or_else(|| said(row)));
    Arc::new(questions.collect::<StringArray>())
}
