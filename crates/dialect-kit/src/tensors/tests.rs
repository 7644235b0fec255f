use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::Array;
use arrow_schema::{DataType, Schema, SchemaRef};
use proptest::prelude::*;
use serde_json::json;
use volley_types::ErrorCode;

use super::*;

fn fixed(name: &str, item: DataType, shape: &[usize]) -> Field {
    let size = i32::try_from(shape.iter().product::<usize>()).unwrap();
    let item = Arc::new(Field::new("item", item, false));
    let metadata = HashMap::from([
        (
            "ARROW:extension:name".to_owned(),
            "arrow.fixed_shape_tensor".to_owned(),
        ),
        (
            "ARROW:extension:metadata".to_owned(),
            json!({ "shape": shape }).to_string(),
        ),
    ]);
    Field::new(name, DataType::FixedSizeList(item, size), false).with_metadata(metadata)
}

fn variable(name: &str, item: DataType, rank: i32) -> Field {
    let data = DataType::List(Arc::new(Field::new("item", item, false)));
    let dim = Arc::new(Field::new("item", DataType::Int32, false));
    let shape = DataType::FixedSizeList(dim, rank);
    let fields = vec![
        Field::new("data", data, false),
        Field::new("shape", shape, false),
    ];
    Field::new(name, DataType::Struct(fields.into()), false)
}

fn schema(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

fn refused(inputs: Value, schema: &SchemaRef) -> String {
    let error = from_json(&inputs, schema).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    let text = from_text(&inputs.to_string(), schema).unwrap_err();
    assert_eq!(text.message, error.message);
    error.message
}

#[test]
fn nested_arrays_become_columns_and_come_back_flat() {
    let schema = schema(vec![
        fixed("pixels", DataType::Float32, &[2, 2]),
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8, false),
        Field::new("on", DataType::Boolean, false),
        variable("words", DataType::UInt8, 1),
    ]);
    let inputs = json!({
        "pixels": [[[1, 2], [3, 4.5]], [5, 6, 7, 8]],
        "id": [-1, 9_007_199_254_740_993_i64],
        "name": ["a", "b"],
        "on": [true, false],
        "words": [[1, 2, 3], []],
    });
    let batch = from_json(&inputs, &schema).unwrap();
    let output = to_json(&[batch.clone(), batch]).unwrap();
    assert_eq!(output[0]["shape"], json!([4, 2, 2]));
    assert_eq!(output[0]["data_type"], "FLOAT32");
    assert_eq!(output[0]["data"].as_array().unwrap().len(), 16);
    assert_eq!(output[0]["data"][3], 4.5);
    assert_eq!(output[1]["data"][1], 9_007_199_254_740_993_i64);
    assert_eq!(
        output[4]["rows"][0],
        json!({ "shape": [3], "data": [1, 2, 3] })
    );
    assert_eq!(output[4]["rows"][1], json!({ "shape": [0], "data": [] }));
}

#[test]
fn rows_may_come_one_by_one() {
    let schema = schema(vec![
        Field::new("a", DataType::Float64, false),
        Field::new("b", DataType::Float64, true),
    ]);
    let batch = from_json(&json!([{ "a": 1 }, { "a": 2.5 }]), &schema).unwrap();
    assert_eq!(
        (batch.num_rows(), batch.num_columns()),
        (2, 1),
        "b may be left out"
    );
    let nulls = json!([{ "a": 1, "b": null }, { "a": 2.5 }]);
    assert_eq!(from_json(&nulls, &schema).unwrap(), batch);
    assert_eq!(from_text(&nulls.to_string(), &schema).unwrap(), batch);
    for (uneven, sign) in [
        (
            json!([{ "a": 1, "b": 1 }, { "a": 2 }]),
            "'b', row 1: must be",
        ),
        (
            json!([{ "a": 1 }, { "a": 2, "b": 1 }]),
            "'b', row 0: must be",
        ),
        (json!([{ "a": 1 }, 7]), "row 1 must be an object"),
        (json!([{ "a": 1 }, { "c": 1 }]), "'c' is not an input"),
    ] {
        let error = refused(uneven, &schema);
        assert!(error.contains(sign), "{error}");
    }
    let twice = from_text(r#"[{"a":1,"a":2}]"#, &schema).unwrap_err();
    assert!(twice.message.contains("row 0 has 'a' twice"), "{twice}");
}

#[test]
fn what_does_not_fit_is_named_with_its_row() {
    let schema = schema(vec![
        fixed("x", DataType::Float32, &[3]),
        variable("v", DataType::Int8, 2),
    ]);
    let v = json!([[[1, 2], [3, 4]]]);
    let with = |x: Value| json!({ "x": x, "v": v });
    assert!(
        refused(with(json!([[1, 2]])), &schema)
            .contains("'x', row 0: has shape [2], the model takes [3]")
    );
    assert!(
        refused(with(json!([[1, "two", 3]])), &schema).contains("'x', row 0: must be a number")
    );
    assert!(refused(with(json!([[[1], 2, 3]])), &schema).contains("ragged"));
    assert!(refused(with(json!(7)), &schema).contains("array of rows"));
    assert!(refused(json!({ "x": [[1, 2, 3]] }), &schema).contains("'v' is missing"));
    assert!(refused(json!({ "x": [[1, 2, 3]], "v": [[1]] }), &schema).contains("1 dimensions"));
    assert!(refused(json!({ "x": [[1, 2, 3]], "v": [[[300]]] }), &schema).contains("Int8"));
    assert!(refused(json!({ "x": [], "v": [] }), &schema).contains("no rows"));
    assert!(refused(json!({ "x": [[1, 2, 3], [1, 2, 3]], "v": v }), &schema).contains("rows"));
    assert!(refused(json!({ "y": [] }), &schema).contains("'y' is not an input"));
    assert!(refused(json!("text"), &schema).contains("must be an object"));
}

#[test]
fn a_value_stands_for_a_row_of_one_and_whole_numbers_may_have_a_point() {
    let schema = schema(vec![
        fixed("age", DataType::Float32, &[1]),
        fixed("city", DataType::Utf8, &[1]),
        Field::new("id", DataType::Int64, false),
    ]);
    let rows = json!({ "age": [22, 7.25], "city": ["Cork", "Ghent"], "id": [1.0, -2] });
    let batch = from_json(&rows, &schema).unwrap();
    let output = to_json(std::slice::from_ref(&batch)).unwrap();
    assert_eq!(output[0]["shape"], json!([2, 1]));
    assert_eq!(output[0]["data"], json!([22.0, 7.25]));
    assert_eq!(output[2]["data"], json!([1, -2]));
    let nested = json!({ "age": [[22], [7.25]], "city": [["Cork"], ["Ghent"]], "id": [1, -2] });
    assert_eq!(from_json(&nested, &schema).unwrap(), batch);
    let with = |age: Value, id: Value| json!({ "age": [age], "city": ["Cork"], "id": [id] });
    assert!(refused(with(json!(1e300), json!(1)), &schema).contains("'age', row 0: 1e300"));
    assert!(refused(with(json!([1, 2]), json!(1)), &schema).contains("shape [2]"));
    assert!(refused(with(json!(1), json!(1.5)), &schema).contains("'id', row 0"));
    assert!(refused(with(json!(1), json!(1e300)), &schema).contains("'id', row 0"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map("[xvab]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused(inputs in any_json()) {
        let schema = schema(vec![
            fixed("x", DataType::Float16, &[2]),
            variable("v", DataType::UInt64, 1),
            Field::new("a", DataType::Int32, true),
        ]);
        let text = from_text(&inputs.to_string(), &schema);
        match from_json(&inputs, &schema) {
            Ok(batch) => {
                prop_assert_eq!(&text.unwrap(), &batch);
                to_json(&[batch]).unwrap();
            }
            Err(error) => prop_assert_eq!(text.unwrap_err().code, error.code),
        }
    }

    #[test]
    fn numbers_survive(rows in proptest::collection::vec(proptest::collection::vec(any::<i32>(), 3), 1..6)) {
        let schema = schema(vec![fixed("x", DataType::Int32, &[3])]);
        let batch = from_json(&json!({ "x": rows }), &schema).unwrap();
        prop_assert_eq!(batch.column(0).len(), rows.len());
        let flat: Vec<i32> = rows.concat();
        prop_assert_eq!(&to_json(&[batch]).unwrap()[0]["data"], &json!(flat));
    }
}

#[test]
fn a_model_without_inputs_is_called_once_for_each_row_or_object() {
    let none = Arc::new(Schema::empty());
    let rows = |inputs: Value| from_json(&inputs, &none).map(|batch| batch.num_rows());
    assert_eq!(rows(json!({})).unwrap(), 1);
    assert_eq!(rows(json!([{}, {}])).unwrap(), 2);
    assert!(rows(json!([])).is_err());
    let error = rows(json!({"x": [1]})).unwrap_err();
    assert!(error.message.ends_with("it takes none"), "{error}");
}
