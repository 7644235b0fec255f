use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Value, json};
use volley_types::ErrorCode;
use volley_types::signature::BFLOAT16;

use super::outputs::{RequestedOutputs, outputs};
use super::tensors::{self, TensorRows};

fn extended(field: Field, name: &str, metadata: &Value) -> Field {
    field.with_metadata(HashMap::from([
        ("ARROW:extension:name".to_owned(), name.to_owned()),
        ("ARROW:extension:metadata".to_owned(), metadata.to_string()),
    ]))
}

fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, false))
}

fn bfloat16() -> Arc<Field> {
    Arc::new(extended(
        Field::new("item", DataType::UInt16, false),
        BFLOAT16,
        &Value::Null,
    ))
}

fn fixed(name: &str, item: Arc<Field>, shape: &[usize]) -> Field {
    let size = i32::try_from(shape.iter().product::<usize>()).unwrap();
    let field = Field::new(name, DataType::FixedSizeList(item, size), false);
    extended(
        field,
        "arrow.fixed_shape_tensor",
        &json!({ "shape": shape }),
    )
}

fn variable(name: &str, item: Arc<Field>, shape: &[Option<usize>]) -> Field {
    let dim = Arc::new(Field::new("item", DataType::Int32, false));
    let rank = i32::try_from(shape.len()).unwrap();
    let fields = vec![
        Field::new("data", DataType::List(item), false),
        Field::new("shape", DataType::FixedSizeList(dim, rank), false),
    ];
    let field = Field::new(name, DataType::Struct(fields.into()), false);
    extended(
        field,
        "arrow.variable_shape_tensor",
        &json!({ "uniform_shape": shape }),
    )
}

fn schema(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

fn told(name: &str, datatype: &str, shape: &[usize], size: usize) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": shape,
            "parameters": { "binary_data_size": size } })
}

#[test]
fn binary_tensors_of_every_form_come_back_as_they_went() {
    let schema = schema(vec![
        fixed("f", item(DataType::Float32), &[2]),
        fixed("h", bfloat16(), &[1, 2]),
        variable("v", item(DataType::Int64), &[None, Some(2)]),
        Field::new("s", DataType::Utf8, false),
        Field::new("b", DataType::Boolean, false),
        fixed("none", item(DataType::Float64), &[0, 3]),
    ]);
    let mut bytes: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    bytes.extend([0x80, 0x3f, 0x00, 0x40, 0, 0, 0, 0]);
    bytes.extend((0..8_i64).flat_map(i64::to_le_bytes));
    bytes.extend(b"\x01\0\0\0a\0\0\0\0");
    bytes.extend([1, 0]);
    let inputs = [
        told("f", "FP32", &[2, 2], 16),
        told("h", "BF16", &[2, 1, 2], 8),
        told("v", "INT64", &[2, 2, 2], 64),
        told("s", "BYTES", &[2], 9),
        told("b", "BOOL", &[2], 2),
        told("none", "FP64", &[2, 0, 3], 0),
    ];
    let TensorRows { batch, batched, .. } =
        tensors::rows(&inputs, bytes.clone().into(), &schema).unwrap();
    assert!(batched);
    assert_eq!(batch.num_rows(), 2);
    let answer = outputs(
        std::slice::from_ref(&batch),
        &schema,
        &RequestedOutputs::all_binary(),
        true,
    )
    .unwrap();
    assert_eq!(answer.bytes.as_deref(), Some(bytes.as_slice()));
    assert_eq!(answer.told, inputs);

    let json = outputs(&[batch], &schema, &RequestedOutputs::default(), true).unwrap();
    assert!(json.bytes.is_none());
    assert_eq!(json.told[1]["data"], json!([1.0, 2.0, 0.0, 0.0]));
    let again = tensors::rows(&json.told, Bytes::new(), &schema).unwrap();
    let answer = outputs(
        &[again.batch],
        &schema,
        &RequestedOutputs::all_binary(),
        true,
    )
    .unwrap();
    assert_eq!(
        answer.bytes.as_deref(),
        Some(bytes.as_slice()),
        "JSON says the same"
    );
}

#[test]
fn a_model_without_rows_or_inputs_is_called_as_it_is() {
    let one = schema(vec![Field::new("x", DataType::Float32, false)]);
    let scalar = told("x", "FP32", &[], 4);
    let raw = Bytes::from_static(&[0, 0, 0xc0, 0x3f]);
    let rows = tensors::rows(std::slice::from_ref(&scalar), raw, &one).unwrap();
    assert!(!rows.batched);
    let answer = outputs(&[rows.batch], &one, &RequestedOutputs::all_binary(), false).unwrap();
    assert_eq!(answer.told, [scalar]);
    let none = tensors::rows(&[], Bytes::new(), &schema(vec![])).unwrap();
    assert_eq!((none.batch.num_rows(), none.batched), (1, false));
}

#[test]
fn a_raw_request_is_shaped_as_the_model_declares() {
    let shape_of = |field: Field, bytes: &'static [u8]| {
        let schema = schema(vec![field]);
        tensors::raw_rows(Bytes::from_static(bytes), &schema).map(|rows| {
            let told = outputs(
                &[rows.batch],
                &schema,
                &RequestedOutputs::all_binary(),
                true,
            )
            .unwrap();
            told.told[0]["shape"].clone()
        })
    };
    let bytes = &[0; 24];
    let float = || item(DataType::Float32);
    assert_eq!(
        shape_of(fixed("x", float(), &[3]), bytes).unwrap(),
        json!([2, 3])
    );
    let open = variable("x", float(), &[Some(2), None]);
    assert_eq!(shape_of(open, bytes).unwrap(), json!([1, 2, 3]));
    let text = Field::new("x", DataType::Utf8, false);
    assert_eq!(shape_of(text, b"what").unwrap(), json!([1]));
    for refused in [
        shape_of(variable("x", float(), &[None, None]), bytes),
        shape_of(fixed("x", float(), &[5]), bytes),
        shape_of(fixed("x", item(DataType::Utf8), &[2]), b"what"),
        shape_of(Field::new("x", DataType::Utf8, false), b"\xff"),
    ] {
        assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidInput);
    }
    let two = schema(vec![
        Field::new("x", DataType::Int8, false),
        Field::new("y", DataType::Int8, false),
    ]);
    let refused = tensors::raw_rows(Bytes::from_static(&[1]), &two).unwrap_err();
    assert!(refused.message.contains("one input"), "{}", refused.message);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let schema = schema(vec![fixed("x", item(DataType::Float32), &[2])]);
    let read = |input: Value, bytes: &[u8]| {
        let bytes = Bytes::copy_from_slice(bytes);
        tensors::rows(&[input], bytes, &schema)
            .map(|_| ())
            .unwrap_err()
            .message
    };
    let good = told("x", "FP32", &[1, 2], 8);
    for (input, bytes, sign) in [
        (good.clone(), 7, "7 are left"),
        (good.clone(), 9, "1 bytes after"),
        (told("x", "FP32", &[1, 2], 4), 4, "4 bytes of data"),
        (told("x", "FP32", &[2, 1], 8), 8, "shape [1]"),
        (told("x", "FP32", &[usize::MAX, 2], 8), 8, "too large"),
        (told("x", "BF16", &[1, 2], 8), 8, "BF16"),
        (told("x", "FP16", &[1, 2], 8), 8, "2 values of 2 bytes"),
        (told("y", "FP32", &[1, 2], 8), 8, "'y'"),
        (
            json!({ "name": "x", "datatype": "FP32", "shape": [1, 2] }),
            0,
            "neither",
        ),
    ] {
        let message = read(input, &vec![0; bytes]);
        assert!(message.contains(sign), "{message}");
    }
    let mut both = good;
    both["data"] = json!([1, 2]);
    assert!(read(both, &[0; 8]).contains("give one"));
    let shared = json!({ "name": "x", "datatype": "FP32", "shape": [1, 2],
                         "parameters": { "shared_memory_region": "r" } });
    assert!(read(shared, &[]).contains("shared memory"));
}

#[test]
fn numbers_of_other_types_are_cast_where_nothing_is_lost() {
    let schema = schema(vec![fixed("x", item(DataType::Float32), &[2])]);
    let json = |datatype: &str, data: Value| {
        let input = json!({ "name": "x", "datatype": datatype, "shape": [1, 2], "data": data });
        tensors::rows(&[input], Bytes::new(), &schema)
    };
    let values = |rows: TensorRows| {
        let list = rows.batch.column(0).as_fixed_size_list().values().clone();
        list.as_primitive::<Float32Type>().values().to_vec()
    };
    for datatype in ["INT64", "INT32", "UINT8", "FP64", "FP16"] {
        let rows = json(datatype, json!([1, 2])).unwrap();
        assert_eq!(values(rows), [1.0, 2.0], "{datatype}");
    }
    let bytes: Vec<u8> = [3_i64, 4].iter().flat_map(|it| it.to_le_bytes()).collect();
    let raw = [told("x", "INT64", &[1, 2], 16)];
    let rows = tensors::rows(&raw, bytes.into(), &schema).unwrap();
    assert_eq!(values(rows), [3.0, 4.0]);
    let lossy = json("INT64", json!([1, 16_777_217])).unwrap_err().message;
    assert!(
        lossy.contains("input 'x': 16777217") && lossy.contains("without loss"),
        "{lossy}"
    );
    for (datatype, data) in [("BOOL", json!([true, false])), ("BYTES", json!(["1", "2"]))] {
        let refused = json(datatype, data).unwrap_err().message;
        assert!(refused.contains("the model takes FP32"), "{refused}");
    }
}

#[test]
fn numbers_for_rows_of_one_number_are_as_many_rows() {
    let schema = schema(vec![fixed("x", item(DataType::Float32), &[1])]);
    let read = |shape: &[usize]| {
        let data = vec![1.5; shape.iter().product()];
        let input = json!({ "name": "x", "datatype": "FP32", "shape": shape, "data": data });
        let rows = tensors::rows(&[input], Bytes::new(), &schema).unwrap();
        (rows.batch.num_rows(), rows.batched)
    };
    assert_eq!(read(&[2]), (2, true));
    assert_eq!(read(&[2, 1]), (2, true));
    assert_eq!(read(&[0]), (0, true));
    assert_eq!(read(&[1]), (1, false), "one row without its dimension");
}

#[test]
fn outputs_without_rows_have_the_open_dimensions_of_the_inputs() {
    let open = |name: &str| variable(name, item(DataType::Float32), &[None]);
    let inputs = schema(vec![open("x"), open("z")]);
    let shapes = |x: usize, z: usize| {
        let given = [told("x", "FP32", &[0, x], 0), told("z", "FP32", &[0, z], 0)];
        let rows = tensors::rows(&given, Bytes::new(), &inputs).unwrap();
        let wanted = RequestedOutputs::all_binary().of(rows.empty);
        let fixed = fixed("f", item(DataType::Float32), &[4]);
        let two = variable("t", item(DataType::Float32), &[None, Some(2)]);
        let gives = schema(vec![open("x"), open("y"), fixed, two]);
        let told = outputs(&[], &gives, &wanted, true).unwrap().told;
        told.into_iter()
            .map(|it| it["shape"].clone())
            .collect::<Vec<_>>()
    };
    let told = |x: usize, y: usize| {
        [
            json!([0, x]),
            json!([0, y]),
            json!([0, 4]),
            json!([0, 0, 2]),
        ]
    };
    assert_eq!(
        shapes(3, 3),
        told(3, 3),
        "by name, and as all inputs have it"
    );
    assert_eq!(shapes(3, 5), told(3, 0), "the inputs do not agree");
}

proptest! {
    #[test]
    fn any_tensor_is_read_or_refused(
        shape in proptest::collection::vec(prop_oneof![0_usize..4, any::<usize>()], 0..5),
        size in prop_oneof![0_usize..70, any::<usize>()],
        bytes in proptest::collection::vec(any::<u8>(), 0..70),
        which in 0..4_usize,
    ) {
        let names = [("f", "FP32"), ("h", "BF16"), ("v", "UINT8"), ("s", "BYTES")];
        let fields = [
            fixed("f", item(DataType::Float32), &[2]),
            fixed("h", bfloat16(), &[1]),
            variable("v", item(DataType::UInt8), &[None, None]),
            variable("s", item(DataType::Utf8), &[None]),
        ];
        let schema = schema(vec![fields[which].clone()]);
        let (name, datatype) = names[which];
        let inputs = [told(name, datatype, &shape, size)];
        if let Ok(rows) = tensors::rows(&inputs, bytes.clone().into(), &schema) {
            let answer =
                outputs(&[rows.batch], &schema, &RequestedOutputs::all_binary(), rows.batched).unwrap();
            prop_assert_eq!(answer.bytes, Some(bytes.clone()));
            // Without rows, the size of open dimensions is 0.
            let told = &answer.told[0]["shape"];
            match shape.first() {
                Some(0) => prop_assert_eq!(&told[0], &json!(0)),
                // Of a model that takes rows of one number, each number is a row.
                Some(rows) if which == 1 && shape.len() == 1 && *rows != 1 => {
                    prop_assert_eq!(told, &json!([rows, 1]));
                }
                _ => prop_assert_eq!(told, &json!(shape)),
            }
        }
        if let Ok(rows) = tensors::raw_rows(bytes.into(), &schema) {
            prop_assert!(0 < rows.batch.num_rows());
        }
    }
}

#[test]
fn numbers_are_columns_without_a_copy() {
    let schema = schema(vec![fixed("x", item(DataType::Float32), &[2])]);
    let bytes = Bytes::from(vec![0_u8; 1 << 12]);
    let input = told("x", "FP32", &[512, 2], 1 << 12);
    let start = bytes.as_ptr();
    let rows = tensors::rows(&[input], bytes, &schema).unwrap();
    let values = rows.batch.column(0).as_fixed_size_list().values().clone();
    let values = values
        .as_primitive::<Float32Type>()
        .values()
        .inner()
        .as_ptr();
    assert_eq!(values, start);
}
