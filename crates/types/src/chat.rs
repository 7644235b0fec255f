//! Conversations: the `messages` column of a generation request, and its rows.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StructArray};
use arrow_schema::{DataType, Field, Fields};

use crate::PredictError;

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// One of [`ROLES`].
    pub role: String,
    /// The text; empty if the message has none.
    pub content: String,
    /// Tool calls of an assistant: a JSON array in OpenAI's format.
    pub tool_calls: Option<String>,
    /// The call that a tool's message answers.
    pub tool_call_id: Option<String>,
    /// Other fields, as a JSON object: `thinking` (reasoning of an assistant: a list of objects
    /// with `text` and optionally `signature`, `redacted`, and the provider `format` of these),
    /// `refusal` (the part of an assistant's `content` that is a refusal), `is_error` (for a tool's
    /// message), `beside` (the name of a field that only servers of the caller's dialect know),
    /// `calls_at` (for an assistant's message with text behind a call: the position of each call in
    /// the text, in characters), `cache` (marks for a cache: `control` behind `at` characters of text
    /// and `calls` calls), and `parts` (the whole content in OpenAI's format, if it
    /// is not only text).
    pub details: Option<String>,
}

impl ChatMessage {
    /// A text-only message.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
            ..Self::default()
        }
    }
}

/// The fields of one chat message. A column may omit all but `role` and `content`.
#[must_use]
pub fn message_fields() -> Fields {
    Fields::from(vec![
        Field::new("role", DataType::Utf8, false),
        Field::new("content", DataType::Utf8, true),
        Field::new("tool_calls", DataType::Utf8, true),
        Field::new("tool_call_id", DataType::Utf8, true),
        Field::new("details", DataType::Utf8, true),
    ])
}

/// Builds the `messages` column: one conversation, or null, for each row. The field `details` is
/// only present if a message has it, because nodes of the previous version do not support it.
#[must_use]
pub fn conversations<'a>(rows: impl IntoIterator<Item = Option<&'a [ChatMessage]>>) -> ArrayRef {
    let rows: Vec<_> = rows.into_iter().collect();
    let mut messages = rows.iter().flatten().flat_map(|row| row.iter());
    let detailed = messages.any(|message| message.details.is_some());
    let fields = message_fields();
    let fields = fields.iter().take(4 + usize::from(detailed)).cloned();
    conversations_of(&fields.collect(), rows)
}

/// As [`conversations`], with only the first `fields` of [`message_fields`], all of type text.
#[must_use]
pub fn conversations_of<'a>(
    fields: &Fields,
    rows: impl IntoIterator<Item = Option<&'a [ChatMessage]>>,
) -> ArrayRef {
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
                message.details.as_ref(),
            ];
            let values = values.into_iter().take(fields.len());
            let message = list.values();
            for (index, value) in values.enumerate() {
                let column = message.field_builder::<StringBuilder>(index);
                #[expect(
                    clippy::expect_used,
                    reason = "the builders are made from the fields of a message"
                )]
                let column = column.expect("every field of a message is text");
                column.append_option(value);
            }
            message.append(true);
        }
        list.append(row.is_some());
    }
    Arc::new(list.finish())
}

/// The conversation in a row that is not null; `None` if the column is not a list of messages.
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
            details: text("details", index),
        })
    };
    (0..messages.len()).map(read).collect()
}

fn text(messages: &StructArray, name: &str, row: usize) -> Option<String> {
    text_at(messages.column_by_name(name)?, row)
}

/// The text in a row of a `Utf8` or `LargeUtf8` column; `None` for a null or another column type.
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

/// The roles that a message may have.
pub const ROLES: [&str; 6] = [
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
];

/// Rejects a conversation with an unknown role, because a template or a provider might silently
/// skip the message.
///
/// # Errors
/// `InvalidInput` with the index of the message and its role.
pub fn check_roles(messages: &[ChatMessage]) -> Result<(), PredictError> {
    let mut roles = messages.iter().map(|message| message.role.as_str());
    let Some(place) = roles.position(|role| !ROLES.contains(&role)) else {
        return Ok(());
    };
    let role = messages[place].role.chars().filter(|c| !c.is_control());
    let role: String = role.take(64).collect();
    Err(PredictError::invalid(format!(
        "message {place} has the unknown role '{role}'; the roles are {}",
        ROLES.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_are_read_as_they_were_written() {
        let called = ChatMessage {
            role: "assistant".to_owned(),
            tool_calls: Some("[]".to_owned()),
            details: Some("{}".to_owned()),
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
        let plain = conversations([Some(&rows[0][..])]);
        assert_ne!(
            plain.data_type(),
            column.data_type(),
            "as the version before has it"
        );
        assert_eq!(conversation(&plain, 0).as_ref(), Some(&rows[0]));
    }

    #[test]
    fn a_role_is_one_that_is_known() {
        let chat = |role: &str| [ChatMessage::new("user", "a"), ChatMessage::new(role, "b")];
        for role in ROLES {
            assert!(check_roles(&chat(role)).is_ok(), "{role}");
        }
        for bad in ["", "User", "admin", "users"] {
            let message = check_roles(&chat(bad)).unwrap_err().message;
            assert!(message.contains(&format!("message 1 has the unknown role '{bad}'")));
        }
    }
}
