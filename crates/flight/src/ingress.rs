//! Checks and decoding of received messages.
//!
//! Arrow's IPC reader trusts its input: a forged buffer panics it, and a forged compressed
//! buffer aborts the process. So each message's header is checked against the body and the
//! schema first, and the decoding itself runs where a panic is caught.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_ipc::{Message, MessageHeader, MetadataVersion};
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use volley_types::arrow_messages::{ArrowMessage, ReadArrow};
use volley_types::{ErrorCode, PredictError};

mod check;
mod forms;
mod schema;

use self::forms::Forms;
use crate::columns::{Columns, malformed};
use crate::schema_cache;
use crate::{END, MAX_MESSAGE_BYTES};

/// Maximum size of a message header in bytes.
const MAX_HEADER_BYTES: usize = 256 << 10;

/// The content of one message.
#[derive(Debug)]
pub enum Ingress {
    /// The schema of the batches that follow; always the first that is not `Empty`.
    Schema {
        /// The schema.
        schema: SchemaRef,
        /// Whether this is the end of the input.
        end: bool,
    },
    /// Rows.
    Batch {
        /// The rows, with the previously received schema.
        batch: RecordBatch,
        /// Whether these are the last rows.
        end: bool,
    },
    /// The end of the input.
    End,
    /// A message with only a descriptor or metadata.
    Empty,
}

/// Decoder of the messages of one direction of an exchange, in order.
#[derive(Debug, Default)]
pub struct Decoder {
    schema: Option<SchemaRef>,
    /// Encodings of columns that are not sent as plain values.
    forms: Option<Forms>,
    fills: bool,
    /// The columns of the last message, if it omitted some.
    said: Option<(Columns, SchemaRef)>,
}

impl Decoder {
    /// A decoder that accepts messages without blank columns.
    #[must_use]
    pub fn with_columns_left_out(self) -> Self {
        Self {
            fills: true,
            ..self
        }
    }

    /// Checks and decodes the next message.
    ///
    /// # Errors
    /// `InvalidInput` for a malformed message, `TooLarge` for one over the limits. Never panics,
    /// for any bytes.
    pub fn decode(&mut self, data: &FlightData) -> Result<Ingress, PredictError> {
        let end = data.app_metadata.as_ref() == END;
        if data.data_header.is_empty() {
            if !data.data_body.is_empty() {
                return Err(malformed("a body without a header"));
            }
            return Ok(if end { Ingress::End } else { Ingress::Empty });
        }
        check_size(data)?;
        if self.schema.is_none()
            && let Some(schema) = schema_cache::decoded(&data.data_header)
        {
            self.schema = Some(schema.clone());
            return Ok(Ingress::Schema { schema, end });
        }
        guarded(|| {
            let message = arrow_ipc::root_as_message(&data.data_header).map_err(|error| {
                malformed("a header that is not an Arrow message").with_source(error.to_string())
            })?;
            let said = Columns::named(&data.app_metadata).filter(|_| self.fills);
            let ingress = self.decode_message(&message, &data.data_body, said, end)?;
            if let (Ingress::Schema { schema, .. }, None) = (&ingress, &self.forms) {
                schema_cache::keep_decoded(&data.data_header, schema);
            }
            Ok(ingress)
        })
    }

    fn decode_message(
        &mut self,
        message: &Message<'_>,
        body: &Bytes,
        said: Option<Columns>,
        end: bool,
    ) -> Result<Ingress, PredictError> {
        if message.version() != MetadataVersion::V5 {
            return Err(malformed("an Arrow format older than version 1.0"));
        }
        match message.header_type() {
            MessageHeader::Schema => {
                if self.schema.is_some() {
                    return Err(malformed("a second schema"));
                }
                let (schema, forms) = decode_schema(message)?;
                self.schema = Some(schema.clone());
                self.forms = forms;
                Ok(Ingress::Schema { schema, end })
            }
            MessageHeader::RecordBatch => {
                let schema = self
                    .schema
                    .clone()
                    .ok_or_else(|| malformed("a record batch before the schema"))?;
                let batch = match (said, &self.forms) {
                    (None, None) => decode_batch(message, body, schema)?,
                    (_, Some(forms)) => {
                        forms.plain(&decode_batch(message, body, forms.sent.clone())?)?
                    }
                    (Some(said), None) => {
                        let batch = decode_batch(message, body, self.part(said, &schema)?)?;
                        said.fill(&batch, &schema)?
                    }
                };
                Ok(Ingress::Batch { batch, end })
            }
            MessageHeader::DictionaryBatch => {
                self.keep_dictionary(message, body)?;
                Ok(Ingress::Empty)
            }
            _ => Err(malformed(
                "a message that is neither schema nor record batch",
            )),
        }
    }
}

impl Decoder {
    fn keep_dictionary(&mut self, message: &Message<'_>, body: &Bytes) -> Result<(), PredictError> {
        let none = || malformed("a dictionary that no column has");
        let forms = self.forms.as_mut().ok_or_else(none)?;
        let header = message.header_as_dictionary_batch().ok_or_else(none)?;
        let rows = header
            .data()
            .ok_or_else(|| malformed("a dictionary without values"))?;
        let schema = forms.values_of(header.id())?;
        let batch = decode_rows(rows, body, schema, message.version())?;
        forms.keep(header.id(), &batch, header.isDelta())
    }

    /// The schema of these columns, cached because most messages have the same columns as the
    /// previous one.
    fn part(&mut self, said: Columns, schema: &Schema) -> Result<SchemaRef, PredictError> {
        if let Some((known, part)) = &self.said
            && *known == said
        {
            return Ok(part.clone());
        }
        let part = said.schema(schema)?;
        self.said = Some((said, part.clone()));
        Ok(part)
    }
}

impl ReadArrow for Decoder {
    fn read(&mut self, header: Bytes, body: Bytes) -> Result<ArrowMessage, PredictError> {
        Ok(match self.decode(&message(header, body))? {
            Ingress::Schema { schema, .. } => ArrowMessage::Schema(schema),
            Ingress::Batch { batch, .. } => ArrowMessage::Batch(batch),
            Ingress::End | Ingress::Empty => ArrowMessage::Other,
        })
    }
}

/// Decodes a whole sequence of messages; for fuzzing and tests.
///
/// # Errors
/// As [`Decoder::decode`], for the first message that fails.
pub fn decode_all(messages: &[FlightData]) -> Result<Vec<RecordBatch>, PredictError> {
    let mut decoder = Decoder::default();
    let mut batches = Vec::new();
    for message in messages {
        if let Ingress::Batch { batch, .. } = decoder.decode(message)? {
            batches.push(batch);
        }
    }
    Ok(batches)
}

/// Builds a message from these parts, for fuzzing.
#[must_use]
pub fn message(header: impl Into<Bytes>, body: impl Into<Bytes>) -> FlightData {
    FlightData {
        flight_descriptor: None::<FlightDescriptor>,
        data_header: header.into(),
        data_body: body.into(),
        app_metadata: Bytes::new(),
    }
}

/// Decodes an encapsulated schema, as in `GetSchema` and `FlightInfo`.
///
/// # Errors
/// `InvalidInput` when it is malformed.
pub fn decode_schema_bytes(bytes: &[u8]) -> Result<Schema, PredictError> {
    guarded(|| {
        arrow_ipc::convert::try_schema_from_ipc_buffer(bytes)
            .map_err(|error| malformed("a schema that cannot be read").with_source(error))
    })
}

fn check_size(data: &FlightData) -> Result<(), PredictError> {
    if data.data_header.len() > MAX_HEADER_BYTES || data.data_body.len() > MAX_MESSAGE_BYTES {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            "a message is over 16 MiB, or its header over 256 KiB; send fewer rows in one batch",
        ));
    }
    Ok(())
}

fn decode_schema(message: &Message<'_>) -> Result<(SchemaRef, Option<Forms>), PredictError> {
    let header = message
        .header_as_schema()
        .ok_or_else(|| malformed("a malformed schema"))?;
    schema::check(header)?;
    let schema = arrow_ipc::convert::fb_to_schema(header);
    Ok(match Forms::of(header, &schema)? {
        Some(forms) => (forms.plain.clone(), Some(forms)),
        None => (Arc::new(schema), None),
    })
}

fn decode_batch(
    message: &Message<'_>,
    body: &Bytes,
    schema: SchemaRef,
) -> Result<RecordBatch, PredictError> {
    let header = message
        .header_as_record_batch()
        .ok_or_else(|| malformed("a malformed record batch"))?;
    decode_rows(header, body, schema, message.version())
}

fn decode_rows(
    header: arrow_ipc::RecordBatch<'_>,
    body: &Bytes,
    schema: SchemaRef,
    version: MetadataVersion,
) -> Result<RecordBatch, PredictError> {
    check::check_batch(&header, body.len(), &schema)?;
    arrow_ipc::reader::read_record_batch(
        &Buffer::from(body.clone()),
        header,
        schema,
        &HashMap::new(),
        None,
        &version,
    )
    .map_err(|error| malformed("a record batch that cannot be read").with_source(error))
}

/// Runs a decoder that may panic on forged bytes. The decoder has no state that a panic could leave
/// inconsistent.
fn guarded<T>(decode: impl FnOnce() -> Result<T, PredictError>) -> Result<T, PredictError> {
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(malformed("values that contradict its header")))
}
