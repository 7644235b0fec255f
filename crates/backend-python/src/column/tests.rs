use arrow_array::{ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Int64Array};
use proptest::prelude::*;

use super::*;

/// Encodes a batch and decodes it again with the same schema.
fn there_and_back(batch: &RecordBatch) -> Result<RecordBatch, PredictError> {
    let mut body = Body::default();
    let columns = encode(batch, &batch.schema(), &mut body)?;
    let buffer = joined(&body);
    decode(&columns, batch.num_rows(), &buffer, &batch.schema())
}

fn joined(body: &Body) -> Buffer {
    let mut bytes = Vec::new();
    for (buffer, gap) in body.parts() {
        bytes.extend_from_slice(buffer);
        bytes.resize(bytes.len() + gap, 0);
    }
    assert_eq!(bytes.len(), body.len());
    Buffer::from(bytes.as_slice())
}

fn declared(json: serde_json::Value) -> SchemaRef {
    let declared: Vec<Declared> = serde_json::from_value(json).unwrap();
    schema(&declared)
}

#[test]
fn columns_of_every_kind_come_back() {
    let schema = declared(serde_json::json!([
        { "name": "age", "type": "int64" },
        { "name": "is_member", "type": "bool", "nullable": true },
        { "name": "pixels", "type": "fp32", "shape": [2, 2] },
        { "name": "name", "type": "utf8", "nullable": true },
        { "name": "raw", "type": "bytes" },
    ]));
    let DataType::FixedSizeList(item, _) = schema.field(2).data_type() else {
        panic!("a tensor is a list of a fixed size");
    };
    let pixels: ArrayRef = Arc::new(Float32Array::from_iter_values((0..12).map(|n| n as f32)));
    let pixels = FixedSizeListArray::try_new(item.clone(), 4, pixels, None).unwrap();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, -2, 3])),
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        Arc::new(pixels),
        Arc::new(StringArray::from(vec![Some("é"), Some(""), None])),
        Arc::new(StringArray::from(vec![
            octets::to_text(b"\xff\0").into_owned(),
            "plain".to_owned(),
            String::new(),
        ])),
    ];
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    assert_eq!(there_and_back(&batch).unwrap(), batch);
    // Parts of a larger batch have offsets of their own.
    let part = batch.slice(1, 2);
    assert_eq!(there_and_back(&part).unwrap(), part);
    let empty = batch.slice(3, 0);
    assert_eq!(there_and_back(&empty).unwrap(), empty);
}

/// A column of tensors of variable shape from its values, and the shape of each row.
fn tensors(field: &Field, values: ArrayRef, shapes: &[&[i64]]) -> ArrayRef {
    let lengths: Vec<usize> = shapes
        .iter()
        .map(|shape| usize::try_from(shape.iter().product::<i64>()).unwrap())
        .collect();
    variable::column(field, values, &lengths, &shapes.concat(), None).unwrap()
}

#[test]
fn tensors_of_texts_and_of_any_shape_come_back() {
    let schema = declared(serde_json::json!([
        { "name": "words", "type": "bytes", "shape": [2] },
        { "name": "open", "type": "fp32", "shape": [-1, 2] },
        { "name": "open_words", "type": "bytes", "shape": [-1] },
    ]));
    let DataType::FixedSizeList(item, _) = schema.field(0).data_type() else {
        panic!("a tensor is a list of a fixed size");
    };
    let texts = |texts: &[&[u8]]| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(
            texts.iter().map(|text| octets::to_text(text)),
        ))
    };
    let words = texts(&[b"a", b"", b"\xff\0", b"b", b"c", b"d"]);
    let words = FixedSizeListArray::try_new(item.clone(), 2, words, None).unwrap();
    let open: ArrayRef = Arc::new(Float32Array::from_iter_values((0..8).map(|n| n as f32)));
    let open = tensors(schema.field(1), open, &[&[1, 2], &[0, 2], &[3, 2]]);
    let open_words = texts(&[b"x", b"\xfe", b"y"]);
    let open_words = tensors(schema.field(2), open_words, &[&[0], &[1], &[2]]);
    let columns: Vec<ArrayRef> = vec![Arc::new(words), open, open_words];
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    assert_eq!(there_and_back(&batch).unwrap(), batch);
    let part = batch.slice(1, 2);
    assert_eq!(there_and_back(&part).unwrap(), part);

    let wide: ArrayRef = Arc::new(Float32Array::from(vec![0.0; 3]));
    let any = variable::field(
        "open",
        &Arc::new(Field::new("item", DataType::Float32, false)),
        &[-1, -1],
        false,
    );
    let wide = tensors(&any, wide, &[&[1, 3]]);
    let declared = batch.schema();
    let error = encode_column(declared.field(1), &wide, &mut Body::default()).unwrap_err();
    assert_eq!(error.code, volley_types::ErrorCode::InvalidInput);
    assert!(
        error.message.contains("'open' has a row whose shape"),
        "{error}"
    );
}

#[test]
fn a_row_of_another_shape_than_declared_is_named() {
    let schema = declared(serde_json::json!([{ "name": "y", "type": "fp32", "shape": [-1, 2] }]));
    let mut body = Body::default();
    let values = body.add(Buffer::from_vec(vec![0_f32; 6]));
    let dims = body.add(Buffer::from_vec(vec![2_i64, 3]));
    for (shape, dims, expected) in [
        (
            vec![-1, 2],
            dims,
            "has a row of another shape than it declares",
        ),
        (vec![-1], dims, "has 1 dimensions and declares 2"),
        (vec![-1, 2], values, "has a malformed buffer"),
    ] {
        let column = Column {
            name: "y".to_owned(),
            value: ValueType::Fp32,
            shape,
            nulls: false,
            at: vec![values, dims],
        };
        let error = decode(&[column], 1, &joined(&body), &schema).unwrap_err();
        assert!(error.message.contains(expected), "{}", error.message);
    }
}

#[test]
fn an_answer_that_differs_from_its_declaration_is_named() {
    let schema = declared(serde_json::json!([{ "name": "y", "type": "fp32", "shape": [2] }]));
    let column = |json: serde_json::Value| serde_json::from_value::<Column>(json).unwrap();
    let body = Buffer::from(vec![0_u8; 64].as_slice());
    for (columns, expected) in [
        (vec![], "'y' of the model is missing"),
        (
            vec![column(serde_json::json!({
                "name": "y", "type": "fp64", "shape": [2], "at": [[0, 16]],
            }))],
            "has the type Float64 and declares Float32",
        ),
        (
            vec![column(serde_json::json!({
                "name": "y", "type": "fp32", "shape": [3], "at": [[0, 12]],
            }))],
            "has the shape [3] and declares [2]",
        ),
        (
            vec![column(serde_json::json!({
                "name": "z", "type": "fp32", "shape": [2], "at": [[0, 8]],
            }))],
            "'z' of the model is not one of the declared outputs",
        ),
    ] {
        let error = decode(&columns, 1, &body, &schema).unwrap_err();
        assert!(error.message.contains(expected), "{}", error.message);
    }
}

proptest! {
    #[test]
    fn malformed_places_are_errors(
        at in proptest::collection::vec((any::<usize>(), any::<usize>()), 0..4),
        near in proptest::collection::vec((0_usize..200, 0_usize..200), 0..4),
        kind in 0_usize..4, rank in 0_usize..3, rows in 0_usize..40, nulls in any::<bool>(),
    ) {
        let types = ["utf8", "fp32", "bool", "bytes"];
        let shape: Vec<i64> = vec![-1; rank];
        let schema = declared(serde_json::json!([
            { "name": "x", "type": types[kind], "shape": shape, "nullable": true },
        ]));
        let body = Buffer::from(vec![7_u8; 128].as_slice());
        for at in [at, near] {
            let column = Column {
                name: "x".to_owned(),
                value: serde_json::from_value(types[kind].into()).unwrap(),
                shape: vec![-1; rank],
                nulls,
                at,
            };
            let _ = decode(&[column], rows, &body, &schema);
        }
    }

    #[test]
    fn texts_come_back(texts in proptest::collection::vec(any::<Option<String>>(), 0..20)) {
        let schema = declared(serde_json::json!([
            { "name": "x", "type": "utf8", "nullable": true },
        ]));
        let column: ArrayRef = Arc::new(StringArray::from(texts));
        let batch = RecordBatch::try_new(schema, vec![column]).unwrap();
        prop_assert_eq!(there_and_back(&batch).unwrap(), batch);
    }
}
