//! Any column passes through the real runtime unchanged, or is rejected with its name.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use futures::StreamExt;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use volley_backend::Backend;
use volley_types::{ErrorCode, Input, ModelName, ModelRef, PredictError, PredictRequest};

use crate::setup;

/// A model, and a runtime for blocking calls.
struct Caller {
    tokio: tokio::runtime::Runtime,
    model: Arc<dyn Backend>,
}

impl Caller {
    fn of(name: &str) -> Self {
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let model = tokio
            .block_on(setup::load(&setup::test_model(name)))
            .unwrap();
        Self { tokio, model }
    }

    fn run(&self, x: ArrayRef) -> Result<RecordBatch, PredictError> {
        let batch = RecordBatch::try_from_iter([("x", x)]).unwrap();
        let model = ModelRef::deployed(ModelName::new("m").unwrap());
        let request = PredictRequest::new(model, Input::Batch(batch));
        self.tokio.block_on(async {
            let mut answer = self.model.predict(request).await?;
            answer.next().await.expect("one batch in, one batch out")
        })
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    })
}

/// Pairs of values in a slice of a longer column come back bit by bit.
fn pairs_come_back<S>(name: &str, value: S, array: impl Fn(Vec<S::Value>) -> ArrayRef)
where
    S: Strategy,
    S::Value: Clone,
{
    let caller = Caller::of(&format!("identity-{name}"));
    let check = |((rows, before), values): ((usize, usize), Vec<S::Value>)| {
        let values = array(values);
        let item = Arc::new(Field::new("item", values.data_type().clone(), false));
        let column = FixedSizeListArray::new(item, 2, values, None).slice(before, rows);
        let answer = caller.run(Arc::new(column.clone())).unwrap();
        let came = answer.column(0).as_fixed_size_list();
        prop_assert_eq!(came.len(), rows);
        for row in 0..rows {
            prop_assert_eq!(&came.value(row), &column.value(row));
        }
        Ok(())
    };
    let value = Arc::new(value);
    let strategy = (1_usize..20, 0_usize..4, 0_usize..4).prop_flat_map(|(rows, before, after)| {
        let values = vec(value.clone(), (before + rows + after) * 2);
        (Just((rows, before)), values)
    });
    runner(64).run(&strategy, check).unwrap();
}

fn primitive<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(values))
}

#[test]
fn numbers_of_every_type_come_back_bit_by_bit() {
    pairs_come_back("float64", any::<u64>(), |bits| {
        primitive::<Float64Type>(bits.into_iter().map(f64::from_bits).collect())
    });
    pairs_come_back("float32", any::<u32>(), |bits| {
        primitive::<Float32Type>(bits.into_iter().map(f32::from_bits).collect())
    });
    pairs_come_back("float16", any::<u16>(), |bits| {
        primitive::<Float16Type>(bits.into_iter().map(half::f16::from_bits).collect())
    });
    pairs_come_back("int8", any::<i8>(), primitive::<Int8Type>);
    pairs_come_back("int16", any::<i16>(), primitive::<Int16Type>);
    pairs_come_back("int32", any::<i32>(), primitive::<Int32Type>);
    pairs_come_back("int64", any::<i64>(), primitive::<Int64Type>);
    pairs_come_back("uint8", any::<u8>(), primitive::<UInt8Type>);
    pairs_come_back("uint16", any::<u16>(), primitive::<UInt16Type>);
    pairs_come_back("uint32", any::<u32>(), primitive::<UInt32Type>);
    pairs_come_back("uint64", any::<u64>(), primitive::<UInt64Type>);
}

#[test]
fn truths_and_texts_come_back() {
    pairs_come_back("bool", any::<bool>(), |values| {
        Arc::new(BooleanArray::from(values))
    });
    let text = "\\PC{0,12}";
    pairs_come_back("string", text, |values| Arc::new(StringArray::from(values)));
    // Clients in other languages often send `LargeUtf8`; the answer has the declared type.
    let caller = Caller::of("identity-string");
    let values = Arc::new(LargeStringArray::from(vec!["grüße", ""])) as ArrayRef;
    let item = Arc::new(Field::new("item", DataType::LargeUtf8, false));
    let answer = caller.run(Arc::new(FixedSizeListArray::new(item, 2, values, None)));
    let came = answer.unwrap().column(0).as_fixed_size_list().value(0);
    let came: Vec<_> = came.as_string::<i32>().iter().flatten().collect();
    assert_eq!(came, ["grüße", ""]);
}

/// A row of a ragged column, valid or not.
#[derive(Clone, Debug)]
struct Row {
    values: Vec<f32>,
    shape: [i32; 2],
    null: bool,
}

impl Row {
    fn is_good(&self) -> bool {
        let [a, b] = self.shape;
        let size = i64::from(a) * i64::from(b);
        !self.null && 0 <= a && 0 <= b && usize::try_from(size) == Ok(self.values.len())
    }
}

fn good_row() -> impl Strategy<Value = Row> {
    (0_i32..4, 0_i32..4).prop_flat_map(|(a, b)| {
        vec(-100_i16..100, (a * b) as usize).prop_map(move |values| Row {
            values: values.into_iter().map(f32::from).collect(),
            shape: [a, b],
            null: false,
        })
    })
}

fn any_row() -> impl Strategy<Value = Row> {
    let odd_shape = prop_oneof![Just(i32::MAX), Just(i32::MIN), -2_i32..5];
    let odd = (
        vec(Just(1.0_f32), 0..6),
        [odd_shape.clone(), odd_shape],
        proptest::bool::weighted(0.2),
    );
    let odd = odd.prop_map(|(values, shape, null)| Row {
        values,
        shape,
        null,
    });
    prop_oneof![6 => good_row(), 1 => odd]
}

/// `null_at` selects the null: the whole row, its data, or its shape.
fn ragged(rows: &[Row], null_at: usize) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let dim = Arc::new(Field::new("item", DataType::Int32, true));
    let nulls = |place| {
        let valid = rows.iter().map(|row| !row.null).collect::<Vec<_>>();
        (place == null_at && valid.contains(&false)).then(|| NullBuffer::from(valid))
    };
    let lengths = rows.iter().map(|row| row.values.len());
    let values: Vec<f32> = rows.iter().flat_map(|row| row.values.clone()).collect();
    let values = Arc::new(Float32Array::from(values));
    let data = ListArray::new(
        item.clone(),
        OffsetBuffer::from_lengths(lengths),
        values,
        nulls(0),
    );
    let dims: Vec<i32> = rows.iter().flat_map(|row| row.shape).collect();
    let dims = Arc::new(Int32Array::from(dims));
    let shape = FixedSizeListArray::new(dim.clone(), 2, dims, nulls(1));
    let fields = Fields::from(vec![
        Field::new("data", DataType::List(item), true),
        Field::new("shape", DataType::FixedSizeList(dim, 2), true),
    ]);
    let columns: Vec<ArrayRef> = vec![Arc::new(data), Arc::new(shape)];
    Arc::new(StructArray::new(fields, columns, nulls(2)))
}

#[test]
fn ragged_rows_are_computed_as_if_alone_or_refused() {
    let caller = Caller::of("ragged");
    let cases = (vec(any_row(), 1..12), 0_usize..3, 0_usize..3);
    let check = |(rows, null_at, skip): (Vec<Row>, usize, usize)| {
        let skip = skip.min(rows.len() - 1);
        let column = ragged(&rows, null_at).slice(skip, rows.len() - skip);
        let rows = &rows[skip..];
        let answer = match caller.run(column) {
            Ok(answer) => answer,
            Err(error) => {
                prop_assert!(rows.iter().any(|row| !row.is_good()), "{}", error.chain());
                prop_assert_eq!(error.code, ErrorCode::InvalidInput);
                prop_assert!(error.message.contains("'x'"), "{}", error.message);
                return Ok(());
            }
        };
        prop_assert!(rows.iter().all(Row::is_good));
        let sums = answer.column_by_name("sum").unwrap();
        let turned = answer.column_by_name("turned").unwrap().as_struct();
        let data = turned.column_by_name("data").unwrap().as_list::<i32>();
        let shapes = turned.column_by_name("shape").unwrap();
        for (index, row) in rows.iter().enumerate() {
            let [a, b] = row.shape;
            let shape = shapes.as_fixed_size_list().value(index);
            prop_assert_eq!(shape.as_primitive::<Int32Type>().values(), &[b, a]);
            let sum: f32 = row.values.iter().sum();
            prop_assert_eq!(sums.as_primitive::<Float32Type>().value(index), sum);
            let expected: Vec<f32> = (0..a * b)
                .map(|place| row.values[(place % a * b + place / a) as usize])
                .collect();
            let came = data.value(index);
            prop_assert_eq!(came.as_primitive::<Float32Type>().values(), &expected[..]);
        }
        Ok(())
    };
    runner(400).run(&cases, check).unwrap();
}
