//! Parameters of a request that the protocol itself has a meaning for. Pure.

use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use volley_types::{
    Deadline, Dialect, ParamValue, Parameters, PredictError, PredictRequest, Priority, Task,
};

use volley_dialect_kit::parameters;

/// The parameter that says which sequence a request is of.
const SEQUENCE: &str = "sequence_id";
/// All of them.
const RESERVED: [&str; 5] = [
    "priority",
    "timeout",
    SEQUENCE,
    "sequence_start",
    "sequence_end",
];

/// Gives `request` its parameters, of which it takes what they say of urgency, of time and of
/// sequences. `call` is when the call itself ends, `waits` whether the model has queues of its own
/// that look at the first two. To a model that generates all would be options of its own.
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
    if let Some(sequence) = sequence(&parameters) {
        // All requests of a sequence go to the replica that holds its state.
        request.session = Some(format!("sequence {sequence}"));
    }
    let taken = match (task, waits) {
        (Task::Tensors, true) => &[],
        (Task::Tensors, false) => &RESERVED[..2],
        _ => &RESERVED[..],
    };
    for name in taken {
        parameters.remove(name);
    }
    request.parameters = parameters;
    if task == Task::Tensors {
        request.dialect = Dialect::OpenInference;
    }
    Ok(())
}

/// Parameters in JSON.
///
/// # Errors
/// `InvalidInput` when there are too many.
pub(super) fn from_json(mut given: Map<String, Value>) -> Result<Parameters, PredictError> {
    // Ids of sequences have all 64 bits.
    if let Some(id) = given.get_mut(SEQUENCE)
        && let (None, Some(large)) = (id.as_i64(), id.as_u64())
    {
        *id = large.to_string().into();
    }
    parameters::from_json(&given)
}

/// Triton's levels: 1 is the most urgent, 0 or none the default. A model with levels of its own
/// reads the parameter too.
fn priority(parameters: &Parameters) -> Result<Priority, PredictError> {
    Ok(match parameters.unsigned("priority")? {
        None | Some(0) => Priority::Normal,
        Some(1) => Priority::High,
        Some(_) => Priority::Low,
    })
}

/// Triton's timeout in microseconds; 0 or none means the call's own deadline.
fn deadline(parameters: &Parameters, call: Deadline) -> Result<Deadline, PredictError> {
    Ok(match parameters.unsigned("timeout")? {
        None | Some(0) => call,
        Some(us) => call.earlier(Deadline::after(Instant::now(), Duration::from_micros(us))),
    })
}

/// The sequence, as a text; `None` for 0 and for nothing, which mean none.
fn sequence(parameters: &Parameters) -> Option<String> {
    match parameters.get(SEQUENCE)? {
        ParamValue::Int(0) => None,
        ParamValue::Int(id) => Some(id.to_string()),
        ParamValue::Text(id) if id.is_empty() => None,
        ParamValue::Text(id) => Some(id.clone()),
        ParamValue::Bool(_) | ParamValue::Float(_) | ParamValue::Json(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::RecordBatch;
    use arrow_schema::Schema;
    use volley_types::{Input, ModelName, ModelRef};

    use super::*;

    fn request() -> PredictRequest {
        let model = ModelRef::deployed(ModelName::new("m").unwrap());
        let rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
        PredictRequest::new(model, Input::Batch(rows))
    }

    #[test]
    fn urgency_time_and_sequences_are_taken_and_the_rest_stays() {
        let call = Deadline::after(Instant::now(), Duration::from_secs(60));
        let given = [
            ("priority", ParamValue::Int(1)),
            ("timeout", ParamValue::Int(1_000)),
            ("sequence_id", ParamValue::Int(7)),
            ("own", ParamValue::Bool(true)),
        ];
        let given = given.map(|(name, value)| (name.to_owned(), value));
        let mut asked = request();
        put(
            &mut asked,
            given.clone().into_iter().collect(),
            call,
            Task::Tensors,
            true,
        )
        .unwrap();
        assert_eq!(asked.priority, Priority::High);
        assert!(asked.deadline.unwrap().instant() < call.instant());
        assert_eq!(asked.session.as_deref(), Some("sequence 7"));
        assert_eq!(asked.parameters.len(), 4);
        put(
            &mut asked,
            given.clone().into_iter().collect(),
            call,
            Task::Tensors,
            false,
        )
        .unwrap();
        assert_eq!(asked.parameters.len(), 2);
        put(
            &mut asked,
            given.into_iter().collect(),
            call,
            Task::Generate,
            false,
        )
        .unwrap();
        assert_eq!(asked.parameters.len(), 1);
        let wrong = [("timeout".to_owned(), ParamValue::Text("x".to_owned()))];
        let wrong = put(
            &mut request(),
            wrong.into_iter().collect(),
            call,
            Task::Tensors,
            true,
        );
        assert!(wrong.unwrap_err().message.contains("timeout"));
    }
}
