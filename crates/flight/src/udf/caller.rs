//! Detection of the caller from headers, path and request schema.

use arrow_schema::Schema;
use tonic::metadata::{KeyRef, MetadataMap};
use volley_types::{PredictError, Signature};

use super::types::argument_name;

/// Header that selects the kind of call: `rows` or `function`.
pub(crate) const CALL: &str = "volley-call";
/// Metadata key for Databend's and Volley's clients: the number of argument fields of a function.
pub(crate) const ARGUMENTS: &str = "x-databend-udf-input-count";
const DATABEND: &str = "x-databend-";
const AIRPORT: &str = "airport-";

/// The engine of a function's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// RisingWave and other clients of the Arrow UDF protocol.
    ArrowUdf,
    /// Databend.
    Databend,
    /// DuckDB with the extension Airport: one response for each message, and its own error format.
    Airport,
}

/// Kind of a call by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallTarget {
    /// The model's own rows.
    Rows,
    /// One value for each row.
    Function(Engine),
    /// Decided by the names of the request's columns; see [`is_call`].
    Undecided,
}

/// Data about the caller from the headers of a call.
#[derive(Clone, Debug)]
pub(crate) struct UdfCaller {
    target: CallTarget,
    /// The catalogue that Airport was told to attach.
    pub(crate) catalog: String,
    /// The schema that Airport requests.
    pub(crate) schema: Option<String>,
    /// The operation that Airport requests.
    pub(crate) operation: Option<String>,
}

impl UdfCaller {
    /// The sender of a call with these headers.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown target.
    pub(crate) fn of(headers: &MetadataMap) -> Result<Self, PredictError> {
        let text = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        let begins = |prefix: &str| {
            headers.keys().any(|key| match key {
                KeyRef::Ascii(key) => key.as_str().starts_with(prefix),
                KeyRef::Binary(_) => false,
            })
        };
        let target = match text(CALL).as_deref() {
            Some("rows") => CallTarget::Rows,
            Some("function") => CallTarget::Function(Engine::ArrowUdf),
            Some(_) => {
                return Err(PredictError::invalid(
                    "the header 'volley-call' must be 'rows' or 'function'",
                ));
            }
            None if begins(AIRPORT) => CallTarget::Function(Engine::Airport),
            None if begins(DATABEND) => CallTarget::Function(Engine::Databend),
            None => CallTarget::Undecided,
        };
        Ok(Self {
            target,
            catalog: text("airport-list-flights-filter-catalog")
                .or_else(|| text("airport-catalog"))
                .unwrap_or_default(),
            schema: text("airport-list-flights-filter-schema"),
            operation: text("airport-operation"),
        })
    }

    /// The kind of a call of `name`. Only functions have options or are built in.
    pub(crate) fn target(&self, name: &str) -> CallTarget {
        match self.target {
            CallTarget::Undecided if name.contains('?') || super::function::is_builtin(name) => {
                CallTarget::Function(Engine::ArrowUdf)
            }
            target => target,
        }
    }

    /// Whether the call comes from DuckDB.
    pub(crate) fn is_airport(&self) -> bool {
        self.target == CallTarget::Function(Engine::Airport)
    }

    /// Whether the caller requests the model's own rows.
    pub(crate) fn wants_rows(&self) -> bool {
        self.target == CallTarget::Rows
    }

    /// The engine that errors are rendered for; `None` for callers of rows.
    pub(crate) fn engine(&self) -> Option<Engine> {
        match self.target {
            CallTarget::Function(engine) => Some(engine),
            CallTarget::Rows | CallTarget::Undecided => None,
        }
    }
}

/// Whether a request with these columns is a function's call: they have no names, or the names
/// `arg1`, `arg2` … that functions are described with, and are not the model's own columns.
pub(crate) fn is_call(schema: &Schema, signature: &Signature) -> bool {
    let fields = schema.fields();
    let own = |name: &str| signature.input.field_with_name(name).is_ok();
    let named = |(index, name): (usize, &str)| name.is_empty() || name == argument_name(index);
    !fields.is_empty()
        && fields
            .iter()
            .map(|f| f.name().as_str())
            .enumerate()
            .all(named)
        && !fields.iter().all(|field| own(field.name()))
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};
    use tonic::metadata::MetadataValue;

    use super::*;

    fn caller(header: &'static str, value: &'static str) -> Result<UdfCaller, PredictError> {
        let mut headers = MetadataMap::new();
        headers.insert(header, MetadataValue::from_static(value));
        UdfCaller::of(&headers)
    }

    #[test]
    fn headers_and_path_tell_who_calls() {
        let cases = [
            ("volley-call", "rows", "m", CallTarget::Rows),
            (
                "volley-call",
                "function",
                "m",
                CallTarget::Function(Engine::ArrowUdf),
            ),
            (
                "airport-operation",
                "x",
                "m",
                CallTarget::Function(Engine::Airport),
            ),
            (
                "x-databend-tenant",
                "t",
                "m",
                CallTarget::Function(Engine::Databend),
            ),
            ("user-agent", "tonic", "m", CallTarget::Undecided),
            (
                "user-agent",
                "tonic",
                "m?a=1",
                CallTarget::Function(Engine::ArrowUdf),
            ),
            (
                "user-agent",
                "tonic",
                "builtin_echo",
                CallTarget::Function(Engine::ArrowUdf),
            ),
        ];
        for (header, value, name, target) in cases {
            assert_eq!(
                caller(header, value).unwrap().target(name),
                target,
                "{header} {name}"
            );
        }
        assert!(caller("volley-call", "back").is_err());
    }

    #[test]
    fn columns_without_names_of_their_own_are_arguments() {
        let schema = |names: &[&str]| {
            let field = |name: &&str| Field::new(*name, DataType::Utf8, true);
            Schema::new(names.iter().map(field).collect::<Vec<_>>())
        };
        let signature = Signature::rerank();
        for (names, call) in [
            (&["", ""][..], true),
            (&["arg1", "arg2"], true),
            (&["arg1"], true),
            (&["arg2", "arg1"], false),
            (&["query", "text"], false),
            (&["qeury", "text"], false),
            (&[], false),
        ] {
            assert_eq!(is_call(&schema(names), &signature), call, "{names:?}");
        }
    }
}
