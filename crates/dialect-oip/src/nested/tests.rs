use serde_json::json;

use super::*;

#[test]
fn nested_lists_have_the_lengths_of_the_shape() {
    for (data, shape) in [
        (json!([1, 2, 3, 4]), &[2, 2][..]),
        (json!([[1, 2], [3, 4]]), &[2, 2]),
        (json!([[1, 2], [3, 4]]), &[2, 1, 2]),
        (json!([[[1, 2]], [[3, 4]]]), &[2, 2]),
        (json!([[1], [2]]), &[2]),
        (json!([[1, 2]]), &[2]),
        (json!([[1, 2, 3, 4], [5, 6, 7, 8]]), &[2, 2, 2]),
        (json!(1), &[1]),
        (json!([1]), &[]),
        (json!([]), &[0, 4]),
        (json!([[], []]), &[2, 0]),
    ] {
        assert!(elements(&data, shape).is_ok(), "{data} {shape:?}");
    }
    for (data, shape) in [
        (json!([[1, 2, 3, 4, 5], [6, 7, 8]]), &[2, 4][..]),
        (json!([[1, 2], [3, 4], [5, 6]]), &[2, 3]),
        (json!([[1, 2], 3]), &[3]),
        (json!([[1, 2], [3]]), &[3]),
        (json!([1, 2, 3]), &[2]),
        (json!([1, 2, 3]), &[usize::MAX, 2]),
    ] {
        assert!(elements(&data, shape).is_err(), "{data} {shape:?}");
    }
}
