//! Converts JSON rows to a batch: objects with one value for each input, or arrays by input.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use volley_types::PredictError;

use super::decode::Column;

/// Builder of a request's rows.
pub struct RequestRows<'s> {
    schema: &'s SchemaRef,
    inputs: Vec<InputColumn<'s>>,
    /// Number of single rows; `None` for columns.
    rows: Option<usize>,
}

/// State of one input.
#[derive(Default)]
struct InputColumn<'s> {
    column: Option<Column<'s>>,
    /// Number of leading rows without this input.
    lacking: usize,
    /// Index of the last row with this input.
    row: Option<usize>,
}

impl<'s> RequestRows<'s> {
    /// Creates an empty builder for rows of `schema`.
    pub fn new(schema: &'s SchemaRef) -> Self {
        let inputs = schema
            .fields()
            .iter()
            .map(|_| InputColumn::default())
            .collect();
        Self {
            schema,
            inputs,
            rows: None,
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// `InvalidInput` naming the input, the row and what it should be.
    pub fn tree(&mut self, row: &Value) -> Result<(), PredictError> {
        let members = row.as_object().ok_or_else(|| self.no_object())?;
        for (name, value) in members {
            let index = self.index(name)?;
            let column = self.column(index)?;
            let there = column.tree(value, true)?;
            self.note(index, there)?;
        }
        self.end_row()
    }

    /// Adds a row, which is the text of an object.
    ///
    /// # Errors
    /// As for [`RequestRows::tree`].
    pub fn text(&mut self, row: &str) -> Result<(), PredictError> {
        self.read(row, |deserializer, reader| reader.deserialize(deserializer))
    }

    fn read<'t>(
        &mut self,
        text: &'t str,
        with: impl FnOnce(
            &mut serde_json::Deserializer<serde_json::de::StrRead<'t>>,
            &mut Reader<'_, 's>,
        ) -> serde_json::Result<()>,
    ) -> Result<(), PredictError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let mut reader = Reader {
            rows: self,
            failed: None,
        };
        let read = with(&mut deserializer, &mut reader);
        let failed = reader.failed.take();
        read.map_err(|error| {
            failed.unwrap_or_else(|| {
                let row = self.rows.unwrap_or(0);
                PredictError::invalid(format!("'inputs' row {row}: {error}"))
            })
        })
    }

    /// Adds the columns in an object.
    fn columns(&mut self, columns: &serde_json::Map<String, Value>) -> Result<(), PredictError> {
        for (name, values) in columns {
            let index = self.index(name)?;
            let rows = values.as_array().ok_or_else(|| no_rows(name))?;
            let column = self.column(index)?;
            for row in rows {
                column.tree(row, false)?;
            }
        }
        Ok(())
    }

    /// Adds the columns in the text of an object.
    fn column_texts(&mut self, text: &str) -> Result<(), PredictError> {
        let columns: BTreeMap<String, &RawValue> = serde_json::from_str(text)
            .map_err(|error| PredictError::invalid(format!("'inputs' is malformed: {error}")))?;
        for (name, values) in columns {
            let index = self.index(&name)?;
            let values = values.get();
            if !values.starts_with('[') {
                return Err(no_rows(&name));
            }
            let column = self.column(index)?;
            let commas = memchr::memchr_iter(b',', values.as_bytes()).count();
            column.reserve(commas + 1, values.len());
            column.rows().read(values)?;
        }
        Ok(())
    }

    fn index(&self, name: &str) -> Result<usize, PredictError> {
        let found = self.schema.index_of(name);
        found.map_err(|_| unknown(name, self.schema))
    }

    fn column(&mut self, index: usize) -> Result<&mut Column<'s>, PredictError> {
        let given = &mut self.inputs[index];
        if given.column.is_none() {
            given.column = Some(Column::new(self.schema.field(index))?);
        }
        given.column.as_mut().ok_or_else(|| {
            PredictError::internal("the request's rows cannot be built", "a column is missing")
        })
    }

    /// Records that the current row has this input, and whether it is not null.
    fn note(&mut self, index: usize, there: bool) -> Result<(), PredictError> {
        let row = self.rows.unwrap_or(0);
        let given = &mut self.inputs[index];
        if given.row == Some(row) {
            let name = self.schema.field(index).name();
            let message = format!("'inputs' row {row} has '{name}' twice");
            return Err(PredictError::invalid(message));
        }
        given.row = Some(row);
        if !there {
            return lack(given);
        }
        match given.lacking {
            0 => Ok(()),
            _ => Err(PredictError::invalid(format!(
                "input '{}', row 0: {}",
                self.schema.field(index).name(),
                given
                    .column
                    .as_ref()
                    .map(Column::wanted)
                    .unwrap_or_default()
            ))),
        }
    }

    fn end_row(&mut self) -> Result<(), PredictError> {
        let row = self.rows.unwrap_or(0);
        for given in &mut self.inputs {
            if given.row != Some(row) {
                lack(given)?;
            }
        }
        self.rows = Some(row + 1);
        Ok(())
    }

    fn no_object(&self) -> PredictError {
        let row = self.rows.unwrap_or(0);
        PredictError::invalid(format!("'inputs' row {row} must be an object"))
    }

    /// All rows.
    ///
    /// # Errors
    /// `InvalidInput` naming an input that is missing or has too few rows.
    pub fn finish(self) -> Result<RecordBatch, PredictError> {
        let (mut fields, mut arrays): (Vec<Arc<Field>>, Vec<_>) = (Vec::new(), Vec::new());
        for (field, given) in self.schema.fields().iter().zip(self.inputs) {
            // A column without values is omitted instead of filled with nulls.
            let column = given
                .column
                .filter(|column| 0 < column.len() || given.lacking == 0);
            match column {
                Some(column) => {
                    arrays.push(column.finish()?);
                    fields.push(field.clone());
                }
                None if field.is_nullable() => {}
                None => {
                    let message = format!("input '{}' is missing", field.name());
                    return Err(PredictError::invalid(message));
                }
            }
        }
        let rows = match arrays.first() {
            Some(array) => array.len(),
            // A model without inputs is called once for each row, or once.
            None if self.schema.fields().is_empty() => self.rows.unwrap_or(1),
            None => 0,
        };
        if let Some(index) = arrays.iter().position(|array| array.len() != rows) {
            return Err(PredictError::invalid(format!(
                "input '{}' has {} rows and input '{}' has {rows}; all inputs need the same number",
                fields[index].name(),
                arrays[index].len(),
                fields[0].name(),
            )));
        }
        if rows == 0 {
            return Err(PredictError::invalid("'inputs' has no rows"));
        }
        let schema = Arc::new(Schema::new(fields));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema, arrays, &options).map_err(|error| {
            PredictError::invalid("the inputs do not fit the model").with_source(error)
        })
    }
}

/// Handles a row without this input, which is valid if no row has it.
fn lack(given: &mut InputColumn<'_>) -> Result<(), PredictError> {
    match &given.column {
        Some(column) if 0 < column.len() => Err(column.wrong(&column.wanted())),
        _ => {
            given.lacking += 1;
            Ok(())
        }
    }
}

/// Rows from `inputs`: an object with one array of rows for each input, or a list of objects with
/// one value for each input. Nullable inputs may be missing.
///
/// # Errors
/// `InvalidInput` naming the input, the row and what it should be.
pub fn from_json(inputs: &Value, schema: &SchemaRef) -> Result<RecordBatch, PredictError> {
    let mut all = RequestRows::new(schema);
    match inputs {
        Value::Object(columns) => all.columns(columns)?,
        Value::Array(rows) => {
            all.rows = Some(0);
            rows.iter().try_for_each(|row| all.tree(row))?;
        }
        _ => return Err(neither()),
    }
    all.finish()
}

/// As [`from_json`], directly from the text.
///
/// # Errors
/// As for [`from_json`].
pub fn from_text(inputs: &str, schema: &SchemaRef) -> Result<RecordBatch, PredictError> {
    let mut all = RequestRows::new(schema);
    let inputs = inputs.trim_start();
    if inputs.starts_with('{') {
        all.column_texts(inputs)?;
    } else if inputs.starts_with('[') {
        all.rows = Some(0);
        all.read(inputs, |deserializer, reader| {
            deserializer.deserialize_seq(&mut RowsVisitor(reader))
        })?;
    } else {
        return Err(neither());
    }
    all.finish()
}

/// Parses a text column from the text of a JSON list; `None` if it is malformed.
pub fn texts(list: &str) -> Option<ArrayRef> {
    let field = Field::new("text", DataType::Utf8, false);
    let mut column = Column::new(&field).ok()?;
    if !list.starts_with('[') {
        return None;
    }
    column.reserve(0, list.len());
    column.rows().read(list).ok()?;
    column.finish().ok()
}

fn neither() -> PredictError {
    PredictError::invalid(
        "'inputs' must be an object with one array of rows for each input, or a list of rows",
    )
}

fn no_rows(name: &str) -> PredictError {
    PredictError::invalid(format!("input '{name}' must be an array of rows"))
}

fn unknown(name: &str, schema: &Schema) -> PredictError {
    let known: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| format!("'{}'", field.name()))
        .collect();
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let known = match known.is_empty() {
        true => "it takes none".to_owned(),
        false => format!("its inputs are {}", known.join(", ")),
    };
    PredictError::invalid(format!("'{name}' is not an input of this model; {known}"))
}

/// Parses one row from a text.
struct Reader<'r, 's> {
    rows: &'r mut RequestRows<'s>,
    failed: Option<PredictError>,
}

impl Reader<'_, '_> {
    fn done<T, E: Error>(&mut self, done: Result<T, PredictError>) -> Result<T, E> {
        done.map_err(|error| {
            let custom = E::custom(&error.message);
            self.failed.get_or_insert(error);
            custom
        })
    }
}

impl<'de> DeserializeSeed<'de> for &mut Reader<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Rejects values that are not objects.
macro_rules! no_object {
    ($($visit:ident($kind:ty),)*) => {
        $(fn $visit<E: Error>(self, _: $kind) -> Result<(), E> {
            let refused = Err(self.rows.no_object());
            self.done(refused)
        })*
    };
}

impl<'de> Visitor<'de> for &mut Reader<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one value for each input")
    }

    no_object! {
        visit_bool(bool),
        visit_i64(i64),
        visit_u64(u64),
        visit_f64(f64),
        visit_str(&str),
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        let refused = Err(self.rows.no_object());
        self.done(refused)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        let refused = Err(self.rows.no_object());
        self.done(refused)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            let index = self.rows.index(&name);
            let index = self.done(index)?;
            let value = members.next_value::<&RawValue>()?;
            let read = self
                .rows
                .column(index)
                .and_then(|column| column.text(value.get(), true));
            let noted = read.and_then(|there| self.rows.note(index, there));
            self.done(noted)?;
        }
        let ended = self.rows.end_row();
        self.done(ended)
    }
}

/// Reads a list of rows.
struct RowsVisitor<'e, 'r, 's>(&'e mut Reader<'r, 's>);

impl<'de> Visitor<'de> for &mut RowsVisitor<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(&mut *self.0)?.is_some() {}
        Ok(())
    }
}
