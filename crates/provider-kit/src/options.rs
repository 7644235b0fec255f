//! What a request asks of a remote model, beside its rows. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use volley_types::{Dialect, Parameters, PredictError};

use crate::{reserved, typed};

/// What a request asks of a remote model, beside its rows.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions {
    /// Its parameters over the model's and the connector's, each in its own type.
    pub fields: Map<String, Value>,
    /// The names of those that the request itself has.
    pub given: BTreeSet<String>,
    /// The interface that it came by.
    pub dialect: Dialect,
    /// Nobody reads the answer's parts as they come.
    pub whole: bool,
}

impl RequestOptions {
    /// A request's own parameters over `defaults`.
    ///
    /// # Errors
    /// `InvalidInput` naming a parameter that is not of its type, or that only a connector may
    /// have.
    pub fn read(
        given: Parameters,
        defaults: &Parameters,
        dialect: Dialect,
        whole: bool,
    ) -> Result<Self, PredictError> {
        reserved::refuse(&given)?;
        // Those who call tensors mean the model, as those do who name it themselves.
        let dialect = match dialect {
            Dialect::OpenInference => Dialect::Own,
            other => other,
        };
        let names = given.iter().map(|(name, _)| name.to_owned()).collect();
        Ok(Self {
            fields: typed::fields(&given.or_defaults(defaults))?,
            given: names,
            dialect,
            whole,
        })
    }
}
