use std::sync::Arc;

use arrow_array::{Int32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::*;

fn text(column: &str) -> Input {
    let schema = Schema::new(vec![Field::new(column, DataType::Utf8, false)]);
    let column = Arc::new(StringArray::from(vec!["a"]));
    Input::Batch(RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap())
}

#[test]
fn a_second_check_against_the_same_signature_compares_nothing() {
    let signature = Signature::embed(3);
    let mut input = Checked::from(text("text"));
    signature.check(&mut input).unwrap();
    assert!(input.is_against(&signature.clone().input));
    let copy = input.try_clone().unwrap();
    assert!(copy.is_against(&signature.input));
    let conformed = signature.conform(copy).unwrap();
    assert!(conformed.is_against(&signature.input));
}

#[test]
fn a_check_against_another_signature_is_made_again() {
    let mut input = signature_checked();
    let other = Signature::rerank();
    assert!(!input.is_against(&other.input));
    let error = other.check(&mut input).unwrap_err();
    assert!(error.message.contains("'query'"), "{}", error.message);
}

fn signature_checked() -> Checked<Input> {
    Signature::embed(3).conform(text("text")).unwrap()
}

#[test]
fn rows_that_do_not_fit_are_never_recorded_as_checked() {
    let signature = Signature::embed(3);
    let mut input = Checked::from(text("txt"));
    signature.check(&mut input).unwrap_err();
    assert!(!input.is_against(&signature.input));
    let schema = Schema::new(vec![Field::new("text", DataType::Int32, false)]);
    let column = Arc::new(Int32Array::from(vec![1]));
    let batch = RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap();
    signature.conform(Input::Batch(batch)).unwrap_err();
}
