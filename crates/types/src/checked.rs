//! Records that a request's columns were checked, so that each process checks them once.
//!
//! Every hop inside a process checks whether the rows fit the model, but only the first hop
//! compares schemas. All hops share one [`Signature`], so the address of its input schema
//! identifies the check.

use std::ops::Deref;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};

use crate::error::PredictError;
use crate::input::Input;
use crate::signature::Signature;

/// A value with a record of the schema that it was checked against.
///
/// The value cannot be changed without losing the record: [`Checked::from`] makes one that was not
/// checked, and [`Signature::check`] and [`Signature::conform`] are the only checks.
#[derive(Debug)]
pub struct Checked<T> {
    value: T,
    against: Option<SchemaRef>,
}

impl<T> Checked<T> {
    pub(crate) fn new(value: T, against: SchemaRef) -> Self {
        Self {
            value,
            against: Some(against),
        }
    }

    /// Whether the value was checked against this schema, compared by address.
    pub(crate) fn is_against(&self, schema: &SchemaRef) -> bool {
        let against = self.against.as_ref();
        against.is_some_and(|against| Arc::ptr_eq(against, schema))
    }

    /// Discards the record.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl Checked<Input> {
    /// A copy with the same record; `None` for a stream.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        Some(Self {
            value: self.value.try_clone()?,
            against: self.against.clone(),
        })
    }
}

impl<T> From<T> for Checked<T> {
    fn from(value: T) -> Self {
        Self {
            value,
            against: None,
        }
    }
}

impl<T> Deref for Checked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl Signature {
    /// Checks that the columns of `input` have the types of the model, as
    /// [`Signature::check_input`] does. Returns immediately if this process has already checked
    /// them.
    ///
    /// # Errors
    /// `InvalidInput` naming the column, its type and the model's type.
    pub fn check(&self, input: &mut Checked<Input>) -> Result<(), PredictError> {
        if input.is_against(&self.input) {
            return Ok(());
        }
        self.check_input(&input.schema())?;
        input.against = Some(self.input.clone());
        Ok(())
    }

    /// As [`Signature::check_input`], for the schema of rows that have not arrived yet, and for
    /// columns that can be cast. The result turns the rows into the model's own columns.
    ///
    /// # Errors
    /// `InvalidInput` naming the column, its type and the model's type.
    pub fn fit(&self, schema: &Schema) -> Result<Fit, PredictError> {
        self.check_castable(schema)?;
        Ok(Fit {
            against: self.input.clone(),
            casts: self.casts(schema),
        })
    }

    /// Converts the columns of `input` to the model's types: numbers of other widths and kinds,
    /// dictionaries, views of texts, and single values for tensors of one value are cast. Returns
    /// immediately if this process has already checked them.
    ///
    /// # Errors
    /// `InvalidInput` for a column that cannot be cast. For a stream, a value that cannot be cast
    /// without loss is an error inside the stream.
    pub fn conform(
        &self,
        input: impl Into<Checked<Input>>,
    ) -> Result<Checked<Input>, PredictError> {
        let input = input.into();
        match input.is_against(&self.input) {
            true => Ok(input),
            false => self.fit(&input.schema())?.apply(input.into_inner()),
        }
    }
}

/// Converts rows of a checked schema to the rows of a model.
pub struct Fit {
    against: SchemaRef,
    /// `None` if the columns already have the model's types.
    casts: Option<crate::signature::Casts>,
}

impl Fit {
    /// Converts the rows of `input`, which must have the checked schema, to the model's columns.
    ///
    /// # Errors
    /// `InvalidInput` for a value that cannot be cast without loss. For a stream, the stream yields
    /// the error.
    pub fn apply(self, input: Input) -> Result<Checked<Input>, PredictError> {
        let input = match self.casts {
            Some(casts) => casts.apply(input)?,
            None => input,
        };
        Ok(Checked::new(input, self.against))
    }
}

impl std::fmt::Debug for Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fit").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
