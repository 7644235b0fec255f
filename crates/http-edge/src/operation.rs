//! Descriptions of routes for the OpenAPI document.

/// One method of one route.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The HTTP method.
    pub method: &'static str,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// Summary, one sentence.
    pub summary: &'static str,
    /// The schema of the request body; empty for no body.
    pub takes: &'static str,
    /// Whether a request must have a body.
    pub needs_body: bool,
    /// The schema of the response, or its media type if it is not JSON; empty for no body.
    pub gives: &'static str,
    /// Whether the response may be a stream of events.
    pub streams: bool,
    /// Whether the response may be JSON lines.
    pub lines: bool,
    /// The status of a success.
    pub status: u16,
    /// Names and types of query parameters.
    pub query: &'static [(&'static str, &'static str)],
}

/// A `GET`, with the schema of its answer.
pub const fn get(path: &'static str, summary: &'static str, gives: &'static str) -> Operation {
    Operation {
        method: "GET",
        path,
        summary,
        takes: "",
        needs_body: false,
        gives,
        streams: false,
        lines: false,
        status: 200,
        query: &[],
    }
}

/// A `POST`, with the schemas of its body and of its answer.
pub const fn post(
    path: &'static str,
    summary: &'static str,
    takes: &'static str,
    gives: &'static str,
) -> Operation {
    Operation {
        method: "POST",
        takes,
        needs_body: true,
        ..get(path, summary, gives)
    }
}

/// A `DELETE`, with the schema of its answer.
pub const fn delete(path: &'static str, summary: &'static str, gives: &'static str) -> Operation {
    Operation {
        method: "DELETE",
        ..get(path, summary, gives)
    }
}

/// A `PUT`, with the schemas of its body and of its answer.
pub const fn put(
    path: &'static str,
    summary: &'static str,
    takes: &'static str,
    gives: &'static str,
) -> Operation {
    Operation {
        method: "PUT",
        ..post(path, summary, takes, gives)
    }
}

impl Operation {
    /// The same, whose answer may be a stream of events.
    pub const fn streamed(self) -> Self {
        Self {
            streams: true,
            ..self
        }
    }

    /// The same, whose answer may be lines of JSON.
    pub const fn lines(self) -> Self {
        Self {
            lines: true,
            ..self
        }
    }

    /// The same, whose body may be absent.
    pub const fn body_if_any(self) -> Self {
        Self {
            needs_body: false,
            ..self
        }
    }

    /// The same, with these names and types in the query.
    pub const fn query(self, query: &'static [(&'static str, &'static str)]) -> Self {
        Self { query, ..self }
    }

    /// The same, with this status of a success.
    pub const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// A route without a description.
    pub const UNKNOWN: Self = get("", "", "Anything");
}

/// The query of a conditional write at a registry revision.
pub const REVISION: &[(&str, &str)] = &[("revision", "integer")];
