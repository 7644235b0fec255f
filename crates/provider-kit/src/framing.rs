//! How bodies of answers are cut into events, and how good ones end.

/// How a stream is cut into events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    #[default]
    Sse,
    /// Each line that is not blank is one.
    Lines,
    /// Amazon's binary frames.
    Frames,
}

/// How a body is cut into events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// It is one answer.
    Whole,
    /// It is a stream.
    Stream(Framing),
}

impl BodyFraming {
    /// The one of that name in a connector.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Whole,
            "sse" => Self::Stream(Framing::Sse),
            "ndjson" => Self::Stream(Framing::Lines),
            _ => return None,
        })
    }

    /// The one of a body of that media type.
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

/// How a good answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// With an event that says so.
    Event,
    /// With its body, once it has told why it ends.
    BodyAfterReason,
    /// With its body, where HTTP tells a whole one from one that was cut.
    WholeBody,
}
