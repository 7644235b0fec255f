//! Conversions of `PredictCommand` and `ErrorDetail` ⇄ [`volley_types`].

use std::time::{Duration, Instant};

use prost::Message;
use volley_types::registry::choice_hash;
use volley_types::{
    Checked, Continuation, Deadline, Dialect, ErrorCode, ErrorOrigin, ErrorReason, Input,
    ModelName, ModelRef, ModelVersion, Parameters, PredictError, PredictRequest, Priority,
    RequestId, TenantId, TraceContext,
};

use crate::predict::v1 as wire;
use crate::{continuation, params};

/// Prefix of a `PredictCommand` in a Flight descriptor. It prevents other bytes from being parsed
/// as a command.
pub const PREFIX: &[u8; 4] = b"VLY1";

/// Maximum length of a session name, in bytes.
pub const MAX_SESSION: usize = 128;

/// The content of a command: a [`PredictRequest`] without its rows.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictHead {
    /// The model, optionally with a version.
    pub model: ModelRef,
    /// The id of the request in logs, errors and every hop.
    pub request_id: RequestId,
    /// The deadline of the complete stream.
    pub deadline: Option<Deadline>,
    /// The trace that the request belongs to.
    pub trace: TraceContext,
    /// The tenant that is charged.
    pub tenant: TenantId,
    /// The scheduling priority.
    pub priority: Priority,
    /// Requests of one session go to the same replica if possible.
    pub session: Option<String>,
    /// Sampling and other options.
    pub parameters: Parameters,
    /// The dialect of the request.
    pub dialect: Dialect,
    /// The caller reads the complete response at once and does not stream it.
    pub whole: bool,
    /// Whether the client marks the end of its input. If it does, a half-close without the mark
    /// means that the client failed.
    pub end_marker: bool,
    /// The hash of the sticky value for aliases.
    pub affinity: Option<u64>,
    /// Sampling seed and continuation of a generation.
    pub continuation: Continuation,
    /// Whether the client accepts messages without their empty columns.
    pub columns_left_out: bool,
    /// Whether input columns that the model does not use are returned with the output.
    pub pass_columns: bool,
}

impl PredictHead {
    /// A head with new ids and defaults, for callers that only name a model.
    #[must_use]
    pub fn plain(model: ModelRef) -> Self {
        Self {
            model,
            request_id: RequestId::random(),
            deadline: None,
            trace: TraceContext::random(),
            tenant: TenantId::default(),
            priority: Priority::default(),
            session: None,
            parameters: Parameters::default(),
            dialect: Dialect::default(),
            whole: false,
            end_marker: false,
            affinity: None,
            continuation: Continuation::default(),
            columns_left_out: false,
            pass_columns: false,
        }
    }

    /// The request with this head and `input`.
    #[must_use]
    pub fn with_input(self, input: impl Into<Checked<Input>>) -> PredictRequest {
        PredictRequest {
            model: self.model,
            request_id: self.request_id,
            deadline: self.deadline,
            caller_keeps_deadline: false,
            trace: self.trace,
            tenant: self.tenant,
            priority: self.priority,
            session: self.session,
            parameters: self.parameters,
            dialect: self.dialect,
            whole: self.whole,
            affinity: self.affinity,
            continuation: self.continuation,
            resolved: None,
            input: input.into(),
        }
    }
}

/// Converts `request` to a command that is sent at `now`. The caller must send an end marker and
/// accept responses without empty columns.
#[must_use]
pub fn to_wire(request: &PredictRequest, now: Instant) -> wire::PredictCommand {
    wire::PredictCommand {
        model: request.model.name.to_string(),
        version: request.model.version.map_or(0, |version| version.0),
        request_id: request.request_id.to_string(),
        timeout_ms: request
            .deadline
            .map_or(0, |deadline| timeout_ms(deadline, now)),
        traceparent: request.trace.to_string(),
        tenant: request.tenant.to_string(),
        priority: match request.priority {
            Priority::Low => wire::Priority::Low,
            Priority::Normal => wire::Priority::Normal,
            Priority::High => wire::Priority::High,
        }
        .into(),
        parameters: params::to_wire(&request.parameters),
        end_marker: true,
        session: request.session.clone().unwrap_or_default(),
        // The sender has already resolved the alias.
        affinity: String::new(),
        continuation: continuation::to_wire(&request.continuation),
        columns_left_out: true,
        dialect: request.dialect.as_str().to_owned(),
        whole: request.whole,
        pass_columns: false,
    }
}

/// The remaining time in milliseconds. At least 1, because 0 means no deadline.
fn timeout_ms(deadline: Deadline, now: Instant) -> u64 {
    u64::try_from(deadline.remaining(now).as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

/// Converts a command that arrived at `now`.
///
/// # Errors
/// `InvalidInput` with the name of the malformed field.
pub fn from_wire(command: wire::PredictCommand, now: Instant) -> Result<PredictHead, PredictError> {
    let request_id = if command.request_id.is_empty() {
        RequestId::random()
    } else {
        RequestId::new(command.request_id)?
    };
    let tenant = if command.tenant.is_empty() {
        TenantId::default()
    } else {
        TenantId::new(command.tenant)?
    };
    let priority = match wire::Priority::try_from(command.priority) {
        Ok(wire::Priority::Low) => Priority::Low,
        Ok(wire::Priority::Unspecified | wire::Priority::Normal) => Priority::Normal,
        Ok(wire::Priority::High) => Priority::High,
        Err(_) => {
            return Err(PredictError::invalid(
                "the command's priority must be 0 (unspecified), 1 (low), 2 (normal) or 3 (high)",
            ));
        }
    };
    Ok(PredictHead {
        model: ModelRef {
            name: ModelName::new(command.model)?,
            version: (command.version != 0).then_some(ModelVersion(command.version)),
        },
        request_id,
        deadline: (command.timeout_ms != 0)
            .then(|| Deadline::after(now, Duration::from_millis(command.timeout_ms))),
        trace: TraceContext::parse(&command.traceparent).unwrap_or_else(TraceContext::random),
        tenant,
        priority,
        session: session(command.session)?,
        parameters: params::from_wire(command.parameters)?,
        end_marker: command.end_marker,
        affinity: Some(command.affinity)
            .filter(|text| !text.is_empty())
            .map(|text| choice_hash(text.as_bytes())),
        continuation: continuation::from_wire(command.continuation)?,
        columns_left_out: command.columns_left_out,
        dialect: Dialect::from_name(&command.dialect),
        whole: command.whole,
        pass_columns: command.pass_columns,
    })
}

/// Validates the name of a session; an empty name means no session.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_SESSION`] bytes.
pub fn session(name: String) -> Result<Option<String>, PredictError> {
    if MAX_SESSION < name.len() {
        return Err(PredictError::invalid(format!(
            "a session's name may have at most {MAX_SESSION} bytes"
        )));
    }
    Ok(Some(name).filter(|name| !name.is_empty()))
}

/// Encodes the CMD bytes of a Flight descriptor: [`PREFIX`], then the command.
#[must_use]
pub fn encode(command: &wire::PredictCommand) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX.len() + command.encoded_len());
    bytes.extend_from_slice(PREFIX);
    bytes.extend(command.encode_to_vec());
    bytes
}

/// Decodes the CMD bytes of a Flight descriptor.
///
/// # Errors
/// `InvalidInput` when the prefix is missing or the rest is not a `PredictCommand`.
pub fn decode(bytes: &[u8]) -> Result<wire::PredictCommand, PredictError> {
    let command = bytes.strip_prefix(PREFIX).ok_or_else(|| {
        PredictError::invalid(
            "the descriptor's command must begin with the four bytes 'VLY1'; \
             use a path descriptor with the model's name for a plain call",
        )
    })?;
    wire::PredictCommand::decode(command).map_err(|error| {
        PredictError::invalid("the descriptor's command is not a PredictCommand message")
            .with_source(error)
    })
}

/// Converts an error to the details of a gRPC status. The message is sent in the status itself.
#[must_use]
pub fn error_to_wire(error: &PredictError, request_id: Option<&RequestId>) -> wire::ErrorDetail {
    wire::ErrorDetail {
        code: error.code.as_str().to_owned(),
        retry_after_ms: error.retry_after.map_or(0, |after| {
            u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1)
        }),
        origin: match error.origin {
            ErrorOrigin::Coordinator => wire::Origin::Coordinator,
            ErrorOrigin::Worker => wire::Origin::Worker,
            ErrorOrigin::Model => wire::Origin::Model,
        }
        .into(),
        request_id: request_id.map_or_else(String::new, ToString::to_string),
        reason: error
            .reason
            .map_or_else(String::new, |reason| reason.as_str().to_owned()),
    }
}

/// Converts the details of a gRPC status to an error. `None` for a code of a newer version.
#[must_use]
pub fn error_from_wire(
    detail: &wire::ErrorDetail,
    message: impl Into<String>,
) -> Option<PredictError> {
    let origin = match detail.origin() {
        wire::Origin::Unspecified | wire::Origin::Coordinator => ErrorOrigin::Coordinator,
        wire::Origin::Worker => ErrorOrigin::Worker,
        wire::Origin::Model => ErrorOrigin::Model,
    };
    let mut error =
        PredictError::new(ErrorCode::from_name(&detail.code)?, message).with_origin(origin);
    error.reason = ErrorReason::from_name(&detail.reason);
    Some(match detail.retry_after_ms {
        0 => error,
        after => error.with_retry_after(Duration::from_millis(after)),
    })
}

#[cfg(test)]
mod tests {
    use volley_types::{GenerationChunk, GenerationChunks, ParamValue};

    use super::*;

    fn request(now: Instant) -> PredictRequest {
        let mut parameters = Parameters::default();
        parameters
            .set("temperature", ParamValue::Float(0.5))
            .unwrap();
        parameters
            .set("stop", ParamValue::Json("[\"x\"]".into()))
            .unwrap();
        let mut head = PredictHead::plain("storyteller:3".parse().unwrap());
        head.deadline = Some(Deadline::after(now, Duration::from_millis(2500)));
        head.priority = Priority::High;
        head.parameters = parameters;
        head.continuation = Continuation::beginning(7);
        head.dialect = Dialect::Anthropic;
        head.whole = true;
        head.with_input(Input::Batch(GenerationChunks::single(
            &GenerationChunk::default(),
        )))
    }

    #[test]
    fn a_request_travels_and_its_deadline_with_it() {
        let now = Instant::now();
        let request = request(now);
        let sent = now + Duration::from_millis(500);
        let bytes = encode(&to_wire(&request, sent));
        assert!(bytes.starts_with(PREFIX));
        let head = from_wire(decode(&bytes).unwrap(), sent).unwrap();
        assert!(head.end_marker);
        assert_eq!(head.model, request.model);
        assert_eq!(head.request_id, request.request_id);
        assert_eq!(head.deadline, request.deadline);
        assert_eq!(head.trace, request.trace);
        assert_eq!(head.priority, request.priority);
        assert_eq!(head.parameters, request.parameters);
        assert_eq!(head.continuation, request.continuation);
        assert_eq!((head.dialect, head.whole), (Dialect::Anthropic, true));
        let late = to_wire(&request, now + Duration::from_secs(60));
        assert_eq!(late.timeout_ms, 1, "a passed deadline stays a deadline");
    }

    #[test]
    fn malformed_commands_are_invalid_input() {
        let now = Instant::now();
        for bytes in [
            &b""[..],
            b"VLY",
            b"VLY2",
            b"VLY1\xff\xff\xff",
            b"\x0a\x03abc",
        ] {
            assert_eq!(decode(bytes).unwrap_err().code, ErrorCode::InvalidInput);
        }
        let good = wire::PredictCommand {
            model: "m".into(),
            ..Default::default()
        };
        assert!(from_wire(good.clone(), now).is_ok());
        for bad in [
            wire::PredictCommand {
                model: "no such/name".into(),
                ..good.clone()
            },
            wire::PredictCommand {
                tenant: " ".into(),
                ..good.clone()
            },
            wire::PredictCommand {
                priority: 9,
                ..good.clone()
            },
            wire::PredictCommand {
                request_id: "\n".into(),
                ..good
            },
        ] {
            assert_eq!(
                from_wire(bad, now).unwrap_err().code,
                ErrorCode::InvalidInput
            );
        }
    }

    #[test]
    fn errors_keep_what_a_caller_can_act_on() {
        for code in ErrorCode::ALL {
            let error = PredictError::new(code, "why")
                .with_reason(ErrorReason::ContextLength)
                .with_origin(ErrorOrigin::Model)
                .with_retry_after(Duration::from_millis(1500));
            let id = RequestId::random();
            let detail = error_to_wire(&error, Some(&id));
            assert_eq!(detail.request_id, id.as_str());
            let back = error_from_wire(&detail, "why").unwrap();
            assert_eq!(
                (back.code, back.message, back.origin, back.retry_after),
                (error.code, error.message, error.origin, error.retry_after)
            );
            assert_eq!(
                (back.reason, ErrorReason::from_name("newer")),
                (error.reason, None)
            );
        }
        let unknown = wire::ErrorDetail {
            code: "newer".into(),
            ..Default::default()
        };
        assert!(error_from_wire(&unknown, "").is_none());
    }
}
