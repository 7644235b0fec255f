use super::*;

fn schema(names: &[&str]) -> SchemaRef {
    let fields = names
        .iter()
        .map(|name| Field::new(*name, DataType::Utf8, false));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

#[test]
fn a_node_of_an_earlier_version_reads_a_model_of_tensors() {
    let events = Signature::events(schema(&["prompt"]), &schema(&["token"])).unwrap();
    assert_eq!(Task::from_name(events.wire_task()), Some(Task::Tensors));
    let (input, output) = (events.input.clone(), events.output.clone());
    assert_eq!(
        Signature::from_wire(Task::Tensors, input, output),
        events.clone()
    );
    assert_eq!(
        events.declared_output().fields(),
        schema(&["token"]).fields()
    );

    let tensors = Signature::from_wire(Task::Tensors, schema(&["x"]), schema(&["y"]));
    assert_eq!(tensors.task, Task::Tensors);
}

#[test]
fn an_output_cannot_have_the_name_of_a_mark() {
    for name in [EVENT, EVENT_END] {
        let error = Signature::events(schema(&["prompt"]), &schema(&[name])).unwrap_err();
        assert!(error.message.contains(name), "{}", error.message);
    }
}

#[test]
fn the_last_row_of_an_event_is_marked() {
    let events = Signature::events(schema(&[]), &schema(&[])).unwrap();
    let batch = RecordBatch::try_new(events.output, marks(7, &[3]).to_vec()).unwrap();
    assert_eq!(ends_event(&batch), Some(true));
    assert_eq!(ends_event(&batch.slice(0, 2)), Some(false));
    assert_eq!(ends_event(&batch.slice(0, 0)), None);
}
