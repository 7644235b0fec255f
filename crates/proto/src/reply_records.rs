//! Conversions of replies to commands: wire ⇄ [`volley_types::registry`].

use volley_types::registry::RegistryReply;
use volley_types::{ErrorCode, ModelVersion, PredictError, Revision};

use crate::registry::v1 as wire;
use crate::registry::v1::reply::Result as ReplyResult;

/// Converts the reply of an applied command to the wire. A rejection keeps its code and message.
#[must_use]
pub fn reply_to_wire(reply: &Result<RegistryReply, PredictError>) -> wire::Reply {
    let result = match reply {
        Ok(reply) => ReplyResult::Applied(wire::Applied {
            revision: reply.revision.0,
            version: reply.version.map_or(0, |version| version.0),
        }),
        Err(error) => ReplyResult::Refused(wire::Refused {
            code: error.code.as_str().to_owned(),
            message: error.message.clone(),
        }),
    };
    wire::Reply {
        result: Some(result),
    }
}

/// Converts the reply of an applied command from the wire.
///
/// # Errors
/// The rejection, or `Internal` when the reply is malformed.
pub fn reply_from_wire(reply: wire::Reply) -> Result<RegistryReply, PredictError> {
    match reply.result {
        Some(ReplyResult::Applied(applied)) => Ok(RegistryReply {
            revision: Revision(applied.revision),
            version: Some(ModelVersion(applied.version)).filter(|version| version.0 != 0),
        }),
        Some(ReplyResult::Refused(refused)) => Err(PredictError::new(
            ErrorCode::from_name(&refused.code).unwrap_or(ErrorCode::Internal),
            refused.message,
        )),
        None => Err(PredictError::internal(
            "the write's answer was malformed",
            "a reply without a result",
        )),
    }
}
