//! A provider's wire format.

use serde_json::Value;
use volley_backend::items::Item;
use volley_types::PredictError;

use crate::calls::Calls;
use crate::framing::{Ending, Framing};
use crate::step::Step;
use crate::takes::{Asked, Takes};

/// A provider's wire format.
pub struct Format {
    /// How streams are cut into events.
    pub framing: Framing,
    /// The media type of its streams.
    pub media: &'static str,
    /// What stands before the key in its header.
    pub key_prefix: &'static str,
    /// Headers that the server demands; a connector may have others in their place.
    pub headers: &'static [(&'static str, &'static str)],
    /// Whether `stream` is a field of the body, always true. Where it is none, something else asks
    /// for a stream; where neither is said, the connector's template does.
    pub stream_field: Option<bool>,
    /// How a good answer ends.
    pub ending: Ending,
    /// What its server takes of a request's parameters.
    pub takes: &'static Takes,
    /// The body of a request for that model.
    pub body: MakeBody,
    /// Reads the data of an event.
    pub read: fn(&str, &mut Calls) -> Result<Step, String>,
    /// Reads a whole answer.
    pub read_whole: fn(&[u8], &mut Calls) -> Result<Step, String>,
}

type MakeBody = fn(&str, &Item, Asked<'_>) -> Result<Value, PredictError>;

/// The tool whose input is the answer, for models that are told the form of one in no other way.
pub const ANSWER_TOOL: &str = "answer_in_json";
