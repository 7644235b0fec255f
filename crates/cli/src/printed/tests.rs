use arrow_array::{ArrayRef, Int64Array, StringArray};

use super::*;

#[test]
fn a_row_is_one_short_line() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let long = format!("two\nlines {}", "x".repeat(100));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(long.as_str()), None]));
    let batch = RecordBatch::try_from_iter([("a", numbers), ("b", texts)]).unwrap();
    let line = row(&batch);
    assert!(line.starts_with("a=1 b=two lines xxx"), "{line}");
    assert!(line.ends_with("… (2 rows)"), "{line}");
    assert!(line.chars().count() < 100 && !line.contains('\n'), "{line}");
}
