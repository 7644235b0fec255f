//! Request parameters that the protocol reserves. Pure.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use volley_types::{
    Deadline, Dialect, ParamValue, Parameters, PredictError, PredictRequest, Priority, Task,
};

use super::text_parameters;
use volley_dialect_kit::parameters;

/// Parameter with the sequence of a request.
const SEQUENCE: &str = "sequence_id";
/// All reserved parameters.
const RESERVED: [&str; 5] = [
    "priority",
    "timeout",
    SEQUENCE,
    "sequence_start",
    "sequence_end",
];

/// Sets the priority, deadline and session of `request` from the reserved parameters, and adds the
/// other parameters. `call` is the deadline of the call. With `waits`, the model has its own queues
/// and also receives the priority and the timeout. A generation model receives no reserved
/// parameters, because it would read them as its own options.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub(super) fn put(
    request: &mut PredictRequest,
    mut parameters: Parameters,
    call: Deadline,
    task: Task,
    waits: bool,
) -> Result<(), PredictError> {
    request.priority = priority(&parameters)?;
    request.deadline = Some(deadline(&parameters, call)?);
    parameters.boolean("sequence_start")?;
    parameters.boolean("sequence_end")?;
    if task == Task::Generate {
        text_parameters::check(&parameters)?;
    }
    if let Some(sequence) = sequence(&parameters)? {
        // All requests of a sequence go to the replica that holds its state.
        request.session = Some(format!("sequence {sequence}"));
    }
    let taken = match (task, waits) {
        (Task::Tensors | Task::Events, true) => &[],
        (Task::Tensors | Task::Events, false) => &RESERVED[..2],
        _ => &RESERVED[..],
    };
    for name in taken {
        parameters.remove(name);
    }
    request.parameters = parameters;
    if matches!(task, Task::Tensors | Task::Events) {
        request.dialect = Dialect::OpenInference;
    }
    Ok(())
}

/// Converts parameters in JSON.
///
/// # Errors
/// `InvalidInput` if there are too many.
pub(super) fn from_json(mut given: Map<String, Value>) -> Result<Parameters, PredictError> {
    // Sequence ids may use all 64 bits.
    if let Some(id) = given.get_mut(SEQUENCE)
        && let (None, Some(large)) = (id.as_i64(), id.as_u64())
    {
        *id = large.to_string().into();
    }
    parameters::from_json(&given)
}

/// Triton's priority levels: 1 is the highest; 0 and an absent value are the default. A model with
/// levels of its own also reads the parameter.
fn priority(parameters: &Parameters) -> Result<Priority, PredictError> {
    Ok(match parameters.unsigned("priority")? {
        None | Some(0) => Priority::Normal,
        Some(1) => Priority::High,
        Some(_) => Priority::Low,
    })
}

/// The deadline from Triton's timeout in microseconds. For 0 and an absent value it is that of the
/// call.
fn deadline(parameters: &Parameters, call: Deadline) -> Result<Deadline, PredictError> {
    Ok(match parameters.unsigned("timeout")? {
        None | Some(0) => call,
        Some(us) => call.earlier(Deadline::after(Instant::now(), Duration::from_micros(us))),
    })
}

/// The sequence as text; `None` for 0, an empty text and an absent value.
fn sequence(parameters: &Parameters) -> Result<Option<String>, PredictError> {
    Ok(match parameters.get(SEQUENCE) {
        None | Some(ParamValue::Int(0)) => None,
        Some(ParamValue::Int(id)) => Some(id.to_string()),
        Some(ParamValue::Text(id)) => (!id.is_empty()).then(|| id.clone()),
        Some(ParamValue::Bool(_) | ParamValue::Float(_) | ParamValue::Json(_)) => {
            return Err(PredictError::invalid(format!(
                "parameter '{SEQUENCE}' must be a whole number or a text"
            )));
        }
    })
}

#[cfg(test)]
mod tests;
