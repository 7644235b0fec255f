use proptest::prelude::*;

use super::*;

#[test]
fn values_spread_over_the_declared_shape() {
    for (declared, count, shape) in [
        (&[-1][..], 1, Some(vec![1])),
        (&[-1], 3, Some(vec![3])),
        (&[-1, 3], 3, Some(vec![1, 3])),
        (&[-1, 3], 6, Some(vec![2, 3])),
        (&[-1, 3], 4, None),
        (&[-1, -1], 5, Some(vec![1, 5])),
        (&[-1, -1, 2], 6, Some(vec![1, 3, 2])),
        (&[2], 4, None),
        (&[], 1, Some(vec![])),
        (&[-1, 2, 2], 0, Some(vec![0, 2, 2])),
    ] {
        assert_eq!(spread(declared, count), shape, "{declared:?} {count}");
    }
}

proptest! {
    #[test]
    fn a_shape_has_as_many_values_as_there_are(
        declared in proptest::collection::vec(-1_i64..5, 0..5),
        count in 0_usize..50,
    ) {
        if let Some(shape) = spread(&declared, count) {
            prop_assert_eq!(shape.iter().product::<usize>(), count);
            prop_assert_eq!(shape.len(), declared.len());
        }
    }
}
