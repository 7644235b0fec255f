//! Options of a request to a remote model, besides its rows. Pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use volley_types::{Dialect, Parameters, PredictError};

use crate::{reserved, typed};

/// Options of a request to a remote model, besides its rows.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions {
    /// Typed parameters: the request's, then the model's, then the connector's.
    pub fields: Map<String, Value>,
    /// Names of the parameters in the request itself.
    pub given: BTreeSet<String>,
    /// The dialect of the request.
    pub dialect: Dialect,
    /// The answer is not streamed to the caller.
    pub whole: bool,
}

impl RequestOptions {
    /// Whether an Ollama caller sends a prompt that the server must not put into its template. The
    /// other dialects set `raw` themselves, for local models.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.dialect == Dialect::Ollama && self.given.contains("raw")
    }

    /// Merges a request's parameters with `defaults`.
    ///
    /// # Errors
    /// `InvalidInput` naming a parameter of the wrong type, or one that only a connector may set.
    pub fn read(
        given: Parameters,
        defaults: &Parameters,
        dialect: Dialect,
        whole: bool,
    ) -> Result<Self, PredictError> {
        reserved::refuse(&given)?;
        // Inference requests address the model's own parameters, like requests in Volley's dialect.
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
