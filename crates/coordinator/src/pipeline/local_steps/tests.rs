use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, ListArray};

use super::*;

fn scores(values: &[f32]) -> ArrayRef {
    Arc::new(Float32Array::from(values.to_vec()))
}

#[test]
fn a_list_becomes_rows_of_its_row() {
    let json = ParamValue::Json(r#"["a", { "text": "b", "id": 1 }]"#.to_owned());
    let (places, elements) = explode_parameter("documents", Some(&json), 2).unwrap();
    assert_eq!(places, [0, 0, 1, 1]);
    assert_eq!(texts(&elements), ["a", "b", "a", "b"]);
    for wrong in [
        None,
        Some(ParamValue::Text("a".to_owned())),
        Some(ParamValue::Json("[1]".to_owned())),
        Some(ParamValue::Json("{}".to_owned())),
    ] {
        let refused = explode_parameter("documents", wrong.as_ref(), 1).unwrap_err();
        assert!(refused.message.contains("'documents'"), "{refused}");
    }
    let many = serde_json::json!(vec!["x"; MAX_FAN_OUT + 1]).to_string();
    let many = explode_parameter("d", Some(&ParamValue::Json(many)), 1).unwrap_err();
    assert_eq!(many.code, ErrorCode::TooLarge);
    let full = ParamValue::Json(serde_json::json!(vec!["x"; MAX_FAN_OUT]).to_string());
    let full = explode_parameter("d", Some(&full), 17).unwrap_err();
    assert_eq!(full.code, ErrorCode::TooLarge);

    let lists = [
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![]),
        Some(vec![Some(3)]),
    ];
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let (places, elements) = explode_column(&lists.slice(1, 3)).unwrap();
    assert_eq!(places, [2]);
    assert_eq!(elements.as_primitive::<Int64Type>().values(), &[3]);
    let (places, _) = explode_column(&lists).unwrap();
    assert_eq!(places, [0, 0, 3]);
}

#[test]
fn the_best_rows_of_each_request_row_are_kept_in_order() {
    let root = DomainRows::root(3);
    let rows = DomainRows::below(1, &root, vec![0, 0, 0, 2, 2]);
    let best = top_k(&rows, &scores(&[0.1, 0.9, 0.5, f32::NAN, -1.0]), 2).unwrap();
    assert_eq!(best, [1, 2, 4, 3]);
    let same = top_k(&rows, &scores(&[1.0; 5]), 9).unwrap();
    assert_eq!(same, [0, 1, 2, 3, 4]);
}

#[test]
fn vectors_are_compared_by_their_angle() {
    let vectors = |values: [[f32; 2]; 3]| -> ArrayRef {
        let lists = values.map(|vector| Some(vector.map(Some)));
        Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(lists))
    };
    let left = vectors([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]);
    let right = vectors([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0]]);
    let cosines = cosines(&left, &right).unwrap();
    let cosines = cosines.as_primitive::<Float32Type>().values().to_vec();
    assert!(cosines[0].abs() < 1e-6 && (cosines[1] - 1.0).abs() < 1e-6);
    assert_eq!(cosines[2], 0.0);
    let longer = Some([Some(1.0_f32); 3]);
    let longer: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>([
        longer,
    ]));
    let refused = super::cosines(&longer, &left).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
}

#[test]
fn branches_are_told_apart_and_put_together_again() {
    let root = DomainRows::root(4);
    let column = |values: &[i64]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
    let branch = |domain, places: &[u32], values: &[i64]| {
        let rows = DomainRows::below(domain, &root, places.to_vec());
        Table::of(rows, [("v".to_owned(), column(values))])
    };
    let (one, two) = (branch(1, &[2, 0], &[20, 0]), branch(2, &[3], &[30]));
    assert_eq!(rest(&root, &[&one, &two]), [1]);
    let short = owners(&root, &[&one.rows, &two.rows]).unwrap_err();
    assert!(short.message.contains("leave out a row"), "{short}");
    let three = branch(3, &[0, 1], &[100, 101]);
    let rows = [&*one.rows, &two.rows, &three.rows];
    let owners = owners(&root, &rows).unwrap();
    let columns = [&one.columns["v"], &two.columns["v"], &three.columns["v"]];
    let merged = merge(&columns, &owners).unwrap();
    assert_eq!(
        merged.as_primitive::<Int64Type>().values(),
        &[0, 101, 20, 30]
    );
}
