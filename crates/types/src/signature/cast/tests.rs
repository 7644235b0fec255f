use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    DictionaryArray, Float32Array, Float64Array, Int64Array, LargeListArray, StringArray,
    StringViewArray, UInt8Array,
};
use futures::executor::block_on;
use proptest::prelude::*;

use super::*;
use crate::error::ErrorCode;
use crate::signature::Task;

fn model(fields: Vec<Field>) -> Signature {
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(fields)),
        output: Arc::new(Schema::empty()),
    }
}

fn list_of(item: DataType, size: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new("item", item, false)), size)
}

/// Casts a column for a model with an input of type `kind`.
fn given(kind: DataType, column: ArrayRef) -> Result<ArrayRef, PredictError> {
    let model = model(vec![Field::new("age", kind, false)]);
    let rows = RecordBatch::try_from_iter([("age", column)]).unwrap();
    match model.conform(Input::Batch(rows))?.into_inner() {
        Input::Batch(batch) => {
            model.check_input(&batch.schema()).unwrap();
            Ok(batch.column(0).clone())
        }
        Input::Stream { .. } => unreachable!("a batch stays one"),
    }
}

fn refused(kind: DataType, column: ArrayRef) -> String {
    let error = given(kind, column).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    error.message.to_string()
}

#[test]
fn numbers_of_other_types_are_cast() {
    let floats = given(
        DataType::Float32,
        Arc::new(Float64Array::from(vec![0.1, 7.25])),
    );
    let expected: ArrayRef = Arc::new(Float32Array::from(vec![0.1, 7.25]));
    assert_eq!(&floats.unwrap(), &expected);
    let whole = given(DataType::Float32, Arc::new(Int64Array::from(vec![22, -3])));
    let expected: ArrayRef = Arc::new(Float32Array::from(vec![22.0, -3.0]));
    assert_eq!(&whole.unwrap(), &expected);
    let small = given(
        DataType::UInt8,
        Arc::new(Float64Array::from(vec![3.0, -0.0])),
    );
    let expected: ArrayRef = Arc::new(UInt8Array::from(vec![3, 0]));
    assert_eq!(&small.unwrap(), &expected);
}

#[test]
fn a_number_that_would_change_is_refused_by_column_row_and_value() {
    let wide = 16_777_217;
    let message = refused(DataType::Float32, Arc::new(Int64Array::from(vec![1, wide])));
    assert_eq!(
        message,
        "input column 'age', row 1: 16777217 of type Int64 cannot be converted without loss to \
         Float32, the model's type"
    );
    for (kind, column) in [
        (
            DataType::Int64,
            Arc::new(Float64Array::from(vec![1.5])) as ArrayRef,
        ),
        (
            DataType::Int64,
            Arc::new(Float64Array::from(vec![f64::NAN])),
        ),
        (DataType::Int8, Arc::new(Int64Array::from(vec![300]))),
        (DataType::UInt8, Arc::new(Int64Array::from(vec![-1]))),
        (DataType::Float32, Arc::new(Float64Array::from(vec![1e300]))),
        (
            DataType::Float32,
            Arc::new(Float64Array::from(vec![1e-300])),
        ),
        (
            DataType::Float64,
            Arc::new(Int64Array::from(vec![i64::MAX])),
        ),
    ] {
        let message = refused(kind, column);
        assert!(
            message.starts_with("input column 'age', row 0: "),
            "{message}"
        );
    }
    let kinds = refused(DataType::Float32, Arc::new(StringArray::from(vec!["22"])));
    assert_eq!(
        kinds,
        "input column 'age' has type Utf8, the model takes Float32"
    );
}

#[test]
fn single_values_stand_for_tensors_of_one_and_the_other_way_round() {
    let ages: ArrayRef = Arc::new(Float64Array::from(vec![Some(22.0), None]));
    let column = given(list_of(DataType::Float32, 1), ages).unwrap();
    assert_eq!(column.len(), 2);
    assert!(column.is_null(1), "the row is null, not what is in it");
    let first = column.as_fixed_size_list().value(0);
    assert_eq!(
        first.as_ref(),
        &Float32Array::from(vec![22.0]) as &dyn Array
    );
    let back = given(DataType::Float64, column.slice(0, 1)).unwrap();
    assert_eq!(back.as_ref(), &Float64Array::from(vec![22.0]) as &dyn Array);
    assert!(refused(DataType::Float64, column).contains("row 1: is null"));
}

#[test]
fn dictionaries_and_views_of_texts_are_texts() {
    let words = ["a", "b", "a"];
    let encoded: DictionaryArray<Int8Type> = words.into_iter().collect();
    let viewed = StringViewArray::from(words.to_vec());
    let expected = StringArray::from(words.to_vec());
    let columns: [ArrayRef; 2] = [Arc::new(encoded), Arc::new(viewed)];
    for column in columns {
        let plain = given(DataType::Utf8, column.clone()).unwrap();
        assert_eq!(plain.as_ref(), &expected as &dyn Array);
        let ones = given(list_of(DataType::Utf8, 1), column).unwrap();
        assert_eq!(
            ones.as_fixed_size_list().values().as_ref(),
            &expected as &dyn Array
        );
    }
    let numbers = DictionaryArray::<Int32Type>::try_new(
        vec![1, 0].into(),
        Arc::new(Int64Array::from(vec![5, 6])),
    );
    let numbers = given(DataType::Float32, Arc::new(numbers.unwrap())).unwrap();
    assert_eq!(
        numbers.as_ref(),
        &Float32Array::from(vec![6.0, 5.0]) as &dyn Array
    );
}

#[test]
fn lists_of_the_right_length_are_tensors() {
    let rows = |last: Vec<Option<f64>>| -> ArrayRef {
        let rows = vec![
            Some(vec![Some(9.0), Some(9.0)]),
            Some(vec![Some(1.0), Some(2.0)]),
            Some(last),
        ];
        Arc::new(LargeListArray::from_iter_primitive::<Float64Type, _, _>(rows).slice(1, 2))
    };
    let pairs = || list_of(DataType::Float32, 2);
    let column = given(pairs(), rows(vec![Some(3.0), Some(4.0)])).unwrap();
    let values = column.as_fixed_size_list().values().clone();
    assert_eq!(
        values.as_ref(),
        &Float32Array::from(vec![1.0, 2.0, 3.0, 4.0]) as &dyn Array
    );
    let short = refused(pairs(), rows(vec![Some(3.0)]));
    assert_eq!(
        short,
        "input column 'age', row 1: has 1 values, the model takes 2"
    );
    let beyond = refused(pairs(), rows(vec![Some(3.0), Some(1e300)]));
    assert!(
        beyond.starts_with("input column 'age', row 1: "),
        "{beyond}"
    );
}

#[test]
fn a_stream_is_cast_batch_by_batch() {
    let model = model(vec![Field::new("age", DataType::Float32, false)]);
    let batch = |age: f64| {
        let ages: ArrayRef = Arc::new(Float64Array::from(vec![age]));
        RecordBatch::try_from_iter([("age", ages)]).unwrap()
    };
    let schema = batch(0.0).schema();
    let batches = futures::stream::iter([Ok(batch(1.0)), Ok(batch(1e300))]);
    let batches = Box::pin(batches);
    let input = model.conform(Input::Stream { schema, batches }).unwrap();
    model.check_input(&input.schema()).unwrap();
    let came: Vec<_> = block_on(input.into_inner().into_stream().collect());
    assert_eq!(came[0].as_ref().unwrap().num_rows(), 1);
    assert_eq!(came[1].as_ref().unwrap_err().code, ErrorCode::InvalidInput);
}

proptest! {
    #[test]
    fn whole_numbers_come_back_or_are_refused(values in proptest::collection::vec(any::<i64>(), 1..20)) {
        let column: ArrayRef = Arc::new(Int64Array::from(values));
        for kind in [DataType::Float32, DataType::Float64, DataType::Int32, DataType::UInt64] {
            if let Ok(made) = given(kind, column.clone()) {
                prop_assert_eq!(&given(DataType::Int64, made).unwrap(), &column);
            }
        }
    }
}
