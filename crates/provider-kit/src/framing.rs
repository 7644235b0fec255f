//! How bodies of answers are split into events, and how complete answers end.

/// How a stream is split into events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    #[default]
    Sse,
    /// Each line that is not blank is an event.
    Lines,
    /// AWS event-stream frames (`application/vnd.amazon.eventstream`).
    Frames,
}

/// How a body is split into events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// The body is one answer.
    Whole,
    /// The body is a stream.
    Stream(Framing),
}

impl BodyFraming {
    /// Returns the framing with that name in a connector: `json`, `sse` or `ndjson`.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Whole,
            "sse" => Self::Stream(Framing::Sse),
            "ndjson" => Self::Stream(Framing::Lines),
            _ => return None,
        })
    }

    /// Returns the framing of a media type. `None` if it cannot be an answer.
    #[must_use]
    pub fn of_media(media: &str) -> Option<Self> {
        Some(match media {
            "application/json" => Self::Whole,
            "text/event-stream" => Self::Stream(Framing::Sse),
            "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/x-jsonlines"
            | "application/jsonlines"
            | "application/stream+json" => Self::Stream(Framing::Lines),
            _ => return None,
        })
    }
}

/// How a complete answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// With a final event.
    Event,
    /// With the end of the body, after a finish reason.
    BodyAfterReason,
    /// With the end of the body, if HTTP distinguishes a complete body from an aborted one.
    WholeBody,
}
