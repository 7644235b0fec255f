use std::sync::Arc;

use arrow_array::{Float32Array, Int64Array, UInt16Array};
use proptest::strategy::Strategy;

use super::*;

fn real(row: &[f64]) -> Vec<Score> {
    row.iter().copied().map(Score::Real).collect()
}

#[test]
fn the_greatest_come_first_and_what_is_no_number_last() {
    let row = real(&[0.25, f64::NAN, 0.5, 0.5, -1.0]);
    assert_eq!(
        best(&row, 3, &[]),
        ["0.500000:2", "0.500000:3", "0.250000:0"]
    );
    assert_eq!(best(&row, 9, &[]).last().unwrap(), "nan:1");
    let labels = ["cat".to_owned(), "dog".to_owned(), "a: fox".to_owned()];
    let told = best(&row, 3, &labels);
    assert_eq!(told, ["0.500000:2:a: fox", "0.500000:3", "0.250000:0:cat"]);
    let close = [i64::MAX - 1, i64::MAX].map(|value| Score::Whole(value.into()));
    assert_eq!(best(&close, 1, &[]), [format!("{}:1", i64::MAX)]);
    assert!(best(&[], 2, &[]).is_empty());
}

#[test]
fn infinities_keep_their_places() {
    let row = Float32Array::from(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0]);
    let item = Field::new("item", DataType::Float32, false);
    let mut scores = Vec::new();
    append(&item, &(Arc::new(row) as ArrayRef), &mut scores).unwrap();
    assert_eq!(
        best(&scores, 4, &[]),
        ["inf:1", "1.000000:3", "-inf:2", "nan:0"]
    );
}

#[test]
fn numbers_of_each_type_are_read() {
    let read = |item: Field, values: ArrayRef| {
        let mut scores = Vec::new();
        append(&item, &values, &mut scores).map(|()| scores)
    };
    let item = |data_type| Field::new("item", data_type, false);
    let wholes = read(item(DataType::Int64), Arc::new(Int64Array::from(vec![-7])));
    assert_eq!(wholes, Some(vec![Score::Whole(-7)]));
    let halves = std::collections::HashMap::from([(
        "ARROW:extension:name".to_owned(),
        volley_types::signature::BFLOAT16.to_owned(),
    )]);
    let brain = item(DataType::UInt16).with_metadata(halves);
    let read = read(brain, Arc::new(UInt16Array::from(vec![0x3f80])));
    assert_eq!(read, Some(vec![Score::Real(1.0)]));
}

proptest::proptest! {
    #[test]
    fn any_row_has_an_order(row in proptest::collection::vec(
        proptest::prop_oneof![
            proptest::prelude::any::<f64>().prop_map(Score::Real),
            proptest::prelude::any::<i64>().prop_map(|v| Score::Whole(v.into())),
        ], 0..40), count in 0_usize..50)
    {
        proptest::prop_assert_eq!(best(&row, count, &[]).len(), count.min(row.len()));
    }
}
