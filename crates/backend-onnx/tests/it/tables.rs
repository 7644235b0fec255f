//! Tabular classifiers in the default export of scikit-learn, LightGBM and XGBoost give the same
//! answers as in onnxruntime's Python package (`models/recipes/tables.py`).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int64Type};
use arrow_array::*;
use arrow_schema::DataType;
use futures::StreamExt;
use serde_json::Value;
use volley_backend::Backend;
use volley_types::signature::labels;
use volley_types::{Input, ModelName, ModelRef, PredictError, PredictRequest, Signature};

use crate::setup;

struct Table {
    model: Arc<dyn Backend>,
    signature: Signature,
    expected: Value,
}

impl Table {
    async fn of(name: &str) -> Self {
        let directory = setup::test_model(name);
        let expected = std::fs::read(directory.join("expected.json")).unwrap();
        let model = setup::load(&directory).await.unwrap();
        let signature = model.signature(&reference()).await.unwrap();
        Self {
            model,
            signature,
            expected: serde_json::from_slice(&expected).unwrap(),
        }
    }

    /// The rows of the file, as a list column.
    fn rows(&self) -> RecordBatch {
        let columns = self.expected["inputs"].as_object().unwrap();
        RecordBatch::try_from_iter(columns.iter().map(|(name, rows)| (name, lists(rows)))).unwrap()
    }

    async fn answer(&self, rows: RecordBatch) -> Result<RecordBatch, PredictError> {
        let input = self.signature.conform(Input::Batch(rows))?;
        let request = PredictRequest::new(reference(), input);
        let mut answer = self.model.predict(request).await?;
        answer.next().await.expect("one batch in, one batch out")
    }

    /// Compares an answer with the expected one for the file's rows.
    fn check(&self, answer: &RecordBatch) {
        for (name, rows) in self.expected["outputs"].as_object().unwrap() {
            let rows = rows.as_array().unwrap();
            let column = answer.column_by_name(name).unwrap();
            assert_eq!(column.len(), rows.len(), "{name}");
            let classes = labels(self.signature.output.field_with_name(name).unwrap());
            for (index, row) in rows.iter().enumerate() {
                let wanted: Vec<f64> = match row {
                    Value::Object(map) => {
                        assert_eq!(map.len(), classes.len(), "{name}");
                        classes
                            .iter()
                            .map(|class| map[class].as_f64().unwrap())
                            .collect()
                    }
                    Value::Array(row) => row.iter().map(|it| it.as_f64().unwrap()).collect(),
                    Value::String(text) => {
                        assert_eq!(column.as_string::<i32>().value(index), text);
                        continue;
                    }
                    label => {
                        let found = column.as_primitive::<Int64Type>().value(index);
                        assert_eq!(found, label.as_i64().unwrap());
                        continue;
                    }
                };
                let found = column.as_fixed_size_list().value(index);
                let found = found.as_primitive::<Float32Type>().values();
                assert_eq!(found.len(), wanted.len(), "{name}");
                for (found, wanted) in found.iter().zip(wanted) {
                    assert!((f64::from(*found) - wanted).abs() < 1e-6, "{name} {index}");
                }
            }
        }
    }
}

fn reference() -> ModelRef {
    ModelRef::deployed(ModelName::new("m").unwrap())
}

fn lists(rows: &Value) -> ArrayRef {
    let rows = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row.as_array().unwrap());
    if rows.clone().flatten().all(Value::is_string) {
        let mut lists = builder::ListBuilder::new(builder::StringBuilder::new());
        for row in rows {
            lists.append_value(row.iter().map(Value::as_str));
        }
        return Arc::new(lists.finish());
    }
    let rows = rows.map(|row| Some(row.iter().map(Value::as_f64).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows))
}

#[tokio::test(flavor = "multi_thread")]
async fn classifiers_are_served_as_they_are_exported() {
    for (name, classes) in [
        ("sklearn-columns", Some(("output_probability", "0, 1"))),
        (
            "sklearn-texts",
            Some(("output_probability", "setosa, versicolor, virginica")),
        ),
        ("lightgbm", Some(("probabilities", "0, 1"))),
        ("lightgbm-tensors", None),
        ("xgboost", None),
    ] {
        let table = Table::of(name).await;
        let rows = table.rows();
        table.check(&table.answer(rows.clone()).await.unwrap());
        // A slice of more rows, as in a larger batch.
        let twice = arrow_select::concat::concat_batches(&rows.schema(), [&rows, &rows]).unwrap();
        let second = twice.slice(rows.num_rows(), rows.num_rows());
        table.check(&table.answer(second).await.unwrap());
        if let Some((output, classes)) = classes {
            let field = table.signature.output.field_with_name(output).unwrap();
            assert_eq!(labels(field).join(", "), classes, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_has_one_plain_column_for_each_input_of_one_value() {
    let table = Table::of("sklearn-columns").await;
    let rows = table.rows();
    let plain = rows
        .columns()
        .iter()
        .map(|column| column.as_list::<i32>().values().clone());
    let names = rows.schema();
    let names = names.fields().iter().map(|field| field.name().clone());
    let plain = RecordBatch::try_from_iter(names.zip(plain)).unwrap();
    assert_eq!(
        plain.column_by_name("age").unwrap().data_type(),
        &DataType::Float64
    );
    assert_eq!(
        plain.column_by_name("city").unwrap().data_type(),
        &DataType::Utf8
    );
    table.check(&table.answer(plain).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_one_are_labels_of_each_row() {
    // LightGBM's exporter declares a single label, regardless of the number of rows.
    let table = Table::of("lightgbm").await;
    let label = table.signature.output.field_with_name("label").unwrap();
    assert_eq!(label.data_type(), &DataType::Int64);
    let input = table.signature.input.field_with_name("input").unwrap();
    assert!(matches!(input.data_type(), DataType::FixedSizeList(_, 2)));
}
