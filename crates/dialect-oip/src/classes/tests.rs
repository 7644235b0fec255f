use proptest::strategy::Strategy;
use serde_json::json;

use super::*;

#[test]
fn the_greatest_come_first_and_what_is_no_number_last() {
    let row = [
        json!(0.25),
        json!(null),
        json!(0.5),
        json!(0.5),
        json!(-1.0),
    ];
    assert_eq!(
        best(&row, 3, &[]),
        ["0.500000:2", "0.500000:3", "0.250000:0"]
    );
    assert_eq!(best(&row, 9, &[]).last().unwrap(), "nan:1");
    let labels = ["cat".to_owned(), "dog".to_owned(), "a: fox".to_owned()];
    let told = best(&row, 3, &labels);
    assert_eq!(told, ["0.500000:2:a: fox", "0.500000:3", "0.250000:0:cat"]);
    let close = [json!(i64::MAX - 1), json!(i64::MAX)];
    assert_eq!(best(&close, 1, &[]), [format!("{}:1", i64::MAX)]);
    assert!(best(&[], 2, &[]).is_empty());
}

proptest::proptest! {
    #[test]
    fn any_row_has_an_order(row in proptest::collection::vec(
        proptest::prop_oneof![
            proptest::prelude::any::<f64>().prop_map(|v| json!(v)),
            proptest::prelude::any::<u64>().prop_map(|v| json!(v)),
            proptest::prelude::any::<i64>().prop_map(|v| json!(v)),
        ], 0..40), count in 0_usize..50)
    {
        proptest::prop_assert_eq!(best(&row, count, &[]).len(), count.min(row.len()));
    }
}
