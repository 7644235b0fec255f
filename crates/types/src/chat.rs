//! Conversations: the `messages` column of a generation request, and its rows.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_schema::{DataType, Field, Fields};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` or whatever the model's template knows.
    pub role: String,
    /// The text; empty where the sender gave none.
    pub content: String,
    /// The tools that an assistant called: a JSON array in OpenAI's form.
    pub tool_calls: Option<String>,
    /// The call that a tool's message answers.
    pub tool_call_id: Option<String>,
}

impl ChatMessage {
    /// A message of text alone.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            ..Self::default()
        }
    }
}

/// The fields of one chat message. `tool_calls` and `tool_call_id` may be left out of a column.
#[must_use]
pub fn message_fields() -> Fields {
    Fields::from(vec![
        Field::new("role", DataType::Utf8, false),
        Field::new("content", DataType::Utf8, true),
        Field::new("tool_calls", DataType::Utf8, true),
        Field::new("tool_call_id", DataType::Utf8, true),
    ])
}

/// The `messages` column with one conversation, or null, a row.
#[must_use]
pub fn conversations<'a>(rows: impl IntoIterator<Item = Option<&'a [ChatMessage]>>) -> ArrayRef {
    let fields = message_fields();
    let texts = fields
        .iter()
        .map(|_| Box::new(StringBuilder::new()) as Box<dyn ArrayBuilder>);
    let item = Field::new("item", DataType::Struct(fields.clone()), false);
    let builder = StructBuilder::new(fields.clone(), texts.collect());
    let mut list = ListBuilder::new(builder).with_field(Arc::new(item));
    for row in rows {
        for message in row.unwrap_or_default() {
            let content = Some(&message.content).filter(|content| !content.is_empty());
            let values = [
                Some(&message.role),
                content,
                message.tool_calls.as_ref(),
                message.tool_call_id.as_ref(),
            ];
            let message = list.values();
            for (index, value) in values.into_iter().enumerate() {
                let column = message.field_builder::<StringBuilder>(index);
                column
                    .expect("every field of a message is text")
                    .append_option(value);
            }
            message.append(true);
        }
        list.append(row.is_some());
    }
    Arc::new(list.finish())
}

/// The conversation in a row that is not null; `None` where the column is no list of messages.
#[must_use]
pub fn conversation(column: &dyn Array, row: usize) -> Option<Vec<ChatMessage>> {
    let list = match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().value(row),
        DataType::LargeList(_) => column.as_list::<i64>().value(row),
        _ => return None,
    };
    let messages = list.as_struct_opt()?;
    messages.column_by_name("role")?;
    messages.column_by_name("content")?;
    let text = |name, index| text(messages, name, index);
    let read = |index| {
        Some(ChatMessage {
            role: text("role", index)?,
            content: text("content", index).unwrap_or_default(),
            tool_calls: text("tool_calls", index),
            tool_call_id: text("tool_call_id", index),
        })
    };
    (0..messages.len()).map(read).collect()
}

fn text(messages: &StructArray, name: &str, row: usize) -> Option<String> {
    text_at(messages.column_by_name(name)?, row)
}

/// The text in a row of a `Utf8` or `LargeUtf8` column; `None` where null, or another type.
#[must_use]
pub fn text_at(column: &dyn Array, row: usize) -> Option<String> {
    if column.is_null(row) {
        return None;
    }
    match column.data_type() {
        DataType::Utf8 => Some(column.as_string::<i32>().value(row).to_owned()),
        DataType::LargeUtf8 => Some(column.as_string::<i64>().value(row).to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_read_as_they_were_written() {
        let called = ChatMessage {
            role: "assistant".to_owned(),
            tool_calls: Some("[]".to_owned()),
            ..ChatMessage::default()
        };
        let answered = ChatMessage {
            tool_call_id: Some("c1".to_owned()),
            ..ChatMessage::new("tool", "21 °C")
        };
        let rows = [vec![ChatMessage::new("user", "Hi")], vec![called, answered]];
        let column = conversations(rows.iter().map(|row| Some(row.as_slice())));
        assert_eq!(column.null_count(), 0);
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(conversation(&column, index).as_ref(), Some(row));
        }
    }
}
