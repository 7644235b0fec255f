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
    for (name, value) in [
        ("sequence_id", ParamValue::Bool(true)),
        ("sequence_start", ParamValue::Text("x".to_owned())),
        ("logprobs", ParamValue::Bool(true)),
    ] {
        let given = [(name.to_owned(), value)].into_iter().collect();
        let wrong = put(&mut request(), given, call, Task::Generate, false);
        assert!(wrong.unwrap_err().message.contains(name));
    }
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
