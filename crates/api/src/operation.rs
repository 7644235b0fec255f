//! What a route does, takes and gives, for the OpenAPI document.

/// One method of one route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    /// The schema of its body; empty where it takes none.
    pub(crate) takes: &'static str,
    pub(crate) needs_body: bool,
    /// The schema of its answer, or the media type of one that is no JSON; empty for no body.
    pub(crate) gives: &'static str,
    /// Whether the answer may be a stream of events.
    pub(crate) streams: bool,
    /// Whether the answer may be lines of JSON.
    pub(crate) lines: bool,
    /// The status of a success.
    pub(crate) status: u16,
    /// Names and types of what may stand in the query.
    pub(crate) query: &'static [(&'static str, &'static str)],
}

/// A `GET`, with the schema of its answer.
pub(crate) const fn get(
    path: &'static str,
    summary: &'static str,
    gives: &'static str,
) -> Operation {
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
pub(crate) const fn post(
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
pub(crate) const fn delete(
    path: &'static str,
    summary: &'static str,
    gives: &'static str,
) -> Operation {
    Operation {
        method: "DELETE",
        ..get(path, summary, gives)
    }
}

/// A `PUT`, with the schemas of its body and of its answer.
pub(crate) const fn put(
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
    pub(crate) const fn streamed(self) -> Self {
        Self {
            streams: true,
            ..self
        }
    }

    /// The same, whose answer may be lines of JSON.
    pub(crate) const fn lines(self) -> Self {
        Self {
            lines: true,
            ..self
        }
    }

    /// The same, whose body may be absent.
    pub(crate) const fn body_if_any(self) -> Self {
        Self {
            needs_body: false,
            ..self
        }
    }

    /// The same, with these names and types in the query.
    pub(crate) const fn query(self, query: &'static [(&'static str, &'static str)]) -> Self {
        Self { query, ..self }
    }

    /// The same, with this status of a success.
    pub(crate) const fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// A route that nobody has described yet.
    pub(crate) const UNKNOWN: Self = get("", "", "Anything");
}

/// The query of a write that is made for one state of the registry.
pub(crate) const REVISION: &[(&str, &str)] = &[("revision", "integer")];
