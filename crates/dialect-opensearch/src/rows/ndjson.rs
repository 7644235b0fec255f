//! Reads JSON lines as rows.
//!
//! Lines that have arrived together become one batch, and no batch waits for more lines. The next
//! piece of the body is only read when the model takes rows.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray, new_null_array};
use arrow_schema::{DataType, Fields, SchemaRef};
use bytes::{Buf, Bytes, BytesMut};
use futures::stream;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use volley_types::chat::{conversations, conversations_of};
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{ChatMessage, ErrorCode, Input, Parameters, PredictError, Signature, Task};

use super::pieces::Pieces;
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_dialect_kit::tensors;
use volley_http_edge::compact;
use volley_http_edge::intake::tree_room;

/// Maximum number of lines in a batch.
const MAX_LINES: usize = 1_024;

/// Reads the first line, and returns its parameters and a stream of all rows.
///
/// # Errors
/// `InvalidInput`; `TooLarge`; `DeadlineExceeded` if no line arrives within `timeout`.
pub(super) async fn read(
    body: Pieces,
    signature: Signature,
    limit: usize,
    timeout: Duration,
) -> Result<(Parameters, Input), PredictError> {
    let mut lines = Lines::new(body, limit, signature.task != Task::Generate);
    let first = tokio::time::timeout(timeout, lines.next()).await;
    let first = first.map_err(|_| late())??;
    let (from, mut first) = first.ok_or_else(|| {
        PredictError::invalid("the request has no rows; send one JSON object per line")
    })?;
    let mut given = Parameters::default();
    if let Some(line) = first.first().and_then(Line::only_parameters) {
        let Some(Value::Object(object)) = line.get("parameters") else {
            return Err(PredictError::invalid(
                "field 'parameters' of the first line must be an object",
            ));
        };
        given = parameters::from_json(object)?;
        first.remove(0);
    }
    let schema = signature.input.clone();
    let state = (Some((from, first)), lines, signature);
    let batches = stream::unfold(Some(state), async |state| {
        let (pending, mut lines, signature) = state?;
        let next = match pending.filter(|(_, rows)| !rows.is_empty()) {
            Some(next) => Ok(Some(next)),
            None => lines.next().await,
        };
        let batch = match next {
            Ok(Some((from, rows))) => batch(&rows, &signature)
                .map_err(|error| in_lines(error, from, from + rows.len() - 1)),
            Ok(None) => return None,
            Err(error) => Err(error),
        };
        let more = batch.is_ok().then_some((None, lines, signature));
        Some((batch, more))
    });
    let batches = Box::pin(batches);
    Ok((given, Input::Stream { schema, batches }))
}

pub(super) fn late() -> PredictError {
    PredictError::new(
        ErrorCode::DeadlineExceeded,
        "the request's first row did not arrive in time",
    )
}

/// A row, parsed into a tree or, if it is large, as text.
#[derive(Debug)]
enum Line {
    Tree(Value),
    Text(Bytes),
}

impl Line {
    fn only_parameters(&self) -> Option<&Map<String, Value>> {
        let Self::Tree(Value::Object(object)) = self else {
            return None;
        };
        (object.len() == 1 && object.contains_key("parameters")).then_some(object)
    }
}

fn in_lines(mut error: PredictError, from: usize, to: usize) -> PredictError {
    error.message = if from == to {
        format!("line {from}: {}", error.message)
    } else {
        format!("lines {from} to {to}: {}", error.message)
    };
    error
}

fn batch(lines: &[Line], signature: &Signature) -> Result<RecordBatch, PredictError> {
    if signature.task == Task::Generate {
        let rows = lines.iter().map(|line| match line {
            Line::Tree(row) => item(row),
            Line::Text(_) => item(&Value::Null),
        });
        return generation(rows, &signature.input);
    }
    let mut rows = tensors::RequestRows::new(&signature.input);
    for line in lines {
        match line {
            Line::Tree(row) => rows.tree(row)?,
            Line::Text(row) => rows.text(std::str::from_utf8(row).unwrap_or_default())?,
        }
    }
    whole(&rows.finish()?, &signature.input)
}

/// Builds a batch of the model's input schema. Absent nullable columns become nulls.
///
/// # Errors
/// `InvalidInput` if the rows do not fit the schema.
pub fn batch_of(rows: &[Value], signature: &Signature) -> Result<RecordBatch, PredictError> {
    if signature.task == Task::Generate {
        return generation(rows.iter().map(item), &signature.input);
    }
    let mut all = tensors::RequestRows::new(&signature.input);
    rows.iter().try_for_each(|row| all.tree(row))?;
    whole(&all.finish()?, &signature.input)
}

/// Adds missing columns to `batch` as nulls.
fn whole(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, PredictError> {
    let column = |field: &arrow_schema::FieldRef| {
        let given = batch.column_by_name(field.name()).cloned();
        given.unwrap_or_else(|| new_null_array(field.data_type(), batch.num_rows()))
    };
    let columns = schema.fields().iter().map(column).collect();
    RecordBatch::try_new(schema.clone(), columns)
        .map_err(|error| PredictError::invalid("the rows do not fit the model").with_source(error))
}

fn generation(
    rows: impl Iterator<Item = Result<Item, PredictError>>,
    schema: &SchemaRef,
) -> Result<RecordBatch, PredictError> {
    let items: Vec<_> = rows.collect::<Result<_, _>>()?;
    let prompts: StringArray = items.iter().map(|(prompt, _)| prompt.as_deref()).collect();
    let said = items.iter().map(|(_, messages)| messages.as_deref());
    // All batches must have the columns of the model's own version.
    let messages = match message_fields(schema) {
        Some(fields) => conversations_of(fields, said),
        None => conversations(said),
    };
    let columns = schema
        .fields()
        .iter()
        .map(|field| match field.name().as_str() {
            PROMPT => Arc::new(prompts.clone()) as ArrayRef,
            _ => messages.clone(),
        });
    RecordBatch::try_new(schema.clone(), columns.collect())
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))
}

fn message_fields(schema: &SchemaRef) -> Option<&Fields> {
    match schema.field_with_name(MESSAGES).ok()?.data_type() {
        DataType::List(item) => match item.data_type() {
            DataType::Struct(fields) => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

type Item = (Option<String>, Option<Vec<ChatMessage>>);

fn item(row: &Value) -> Result<Item, PredictError> {
    let wrong = || {
        PredictError::invalid(format!(
            "a line must be an object with '{PROMPT}' (a string) or '{MESSAGES}' (a list of \
             messages); parameters of all rows go into a separate first line, {{\"parameters\": \
             {{…}}}}"
        ))
    };
    let row: &Map<String, Value> = row
        .as_object()
        .filter(|row| row.len() == 1)
        .ok_or_else(wrong)?;
    if let Some(prompt) = row.get(PROMPT) {
        let prompt = prompt.as_str().ok_or_else(wrong)?;
        return Ok((Some(prompt.to_owned()), None));
    }
    let messages = row
        .get(MESSAGES)
        .and_then(Value::as_array)
        .ok_or_else(wrong)?;
    let messages: Option<Vec<_>> = messages.iter().map(chat::openai_message).collect();
    let messages = messages.filter(|messages| !messages.is_empty());
    Ok((None, Some(messages.ok_or_else(wrong)?)))
}

/// Splits a body into lines.
struct Lines {
    body: Pieces,
    /// Received bytes that have not been returned as lines.
    buffer: BytesMut,
    /// Length of the start of the buffer that is known to have no line end.
    seen: usize,
    limit: usize,
    /// Whether large lines are kept as text.
    keeps_text: bool,
    /// Number of returned lines.
    count: usize,
    ended: bool,
}

impl Lines {
    fn new(body: Pieces, limit: usize, keeps_text: bool) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
            seen: 0,
            limit,
            keeps_text,
            count: 0,
            ended: false,
        }
    }

    /// The next lines, as many as have arrived, and the number of the first one.
    async fn next(&mut self) -> Result<Option<(usize, Vec<Line>)>, PredictError> {
        // The caller has consumed the previous lines.
        self.body.taken(self.buffer.len());
        let mut rows = Vec::new();
        let mut from = None;
        loop {
            while rows.len() < MAX_LINES
                && let Some(line) = self.line()
            {
                self.count += 1;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let row = self.read(line)?;
                from.get_or_insert(self.count);
                rows.push(row);
            }
            match from {
                Some(from) => return Ok(Some((from, rows))),
                None if self.ended => return Ok(None),
                None => self.fill().await?,
            }
        }
    }

    fn read(&mut self, line: Bytes) -> Result<Line, PredictError> {
        let count = self.count;
        let malformed = |error: serde_json::Error| {
            PredictError::invalid(format!("line {count}: not valid JSON: {error}"))
        };
        if self.keeps_text && compact::LARGE <= line.len() {
            self.body.read(compact::FACTOR * line.len())?;
            serde_json::from_slice::<&RawValue>(&line).map_err(malformed)?;
            return Ok(Line::Text(line));
        }
        self.body.read(tree_room(&line)?)?;
        serde_json::from_slice(line.trim_ascii())
            .map(Line::Tree)
            .map_err(malformed)
    }

    fn line(&mut self) -> Option<Bytes> {
        match memchr::memchr(b'\n', &self.buffer[self.seen..]) {
            Some(at) => {
                let line = self.buffer.split_to(self.seen + at).freeze();
                self.buffer.advance(1);
                self.seen = 0;
                Some(line)
            }
            None if self.ended && !self.buffer.is_empty() => {
                self.seen = 0;
                Some(self.buffer.split().freeze())
            }
            None => {
                self.seen = self.buffer.len();
                None
            }
        }
    }

    async fn fill(&mut self) -> Result<(), PredictError> {
        if self.limit < self.buffer.len() {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "line {} is over the limit of {} bytes",
                    self.count + 1,
                    self.limit
                ),
            ));
        }
        self.ended = !self.body.append(&mut self.buffer).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
