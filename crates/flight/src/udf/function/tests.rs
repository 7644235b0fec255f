//! Arguments in, rows of the model; its rows, values out.

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Float32Array, Int64Array};
use arrow_schema::Field;
use proptest::prelude::*;
use volley_types::{GenerationChunk, GenerationChunks};

use super::super::gather::Gather;
use super::*;

fn function(signature: &Signature, name: &str) -> (Function, Parameters) {
    let (model, mut options) = parse_name(name).unwrap();
    let function = Function::of_model(&model, signature, &mut options).unwrap();
    (function, options)
}

fn texts(columns: &[&[Option<&str>]]) -> RecordBatch {
    let columns = columns.iter().enumerate().map(|(index, values)| {
        let column: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
        (argument_name(index), column)
    });
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .unwrap()
}

#[test]
fn every_task_has_arguments_and_a_result() {
    let floats = DataType::new_list(DataType::Float32, true);
    for (signature, args, result) in [
        (Signature::generation(), 1, DataType::Utf8),
        (Signature::embed(3), 1, floats),
        (Signature::rerank(), 2, DataType::Float32),
        (Signature::classify(), 1, DataType::Utf8),
        (Signature::classify_tokens(), 1, DataType::Utf8),
        (Signature::encode_sparse(), 1, DataType::Utf8),
    ] {
        let (function, _) = function(&signature, "m");
        assert_eq!(function.args.fields().len(), args, "{:?}", signature.task);
        assert_eq!(*function.result_type(), result);
        assert_eq!(function.result.field(0).name(), "m");
        assert!(function.check(&function.args).is_ok());
        assert!(function.check(&Schema::empty()).is_err());
    }
}

#[test]
fn rows_with_a_null_are_null_and_the_model_does_not_see_them() {
    let (function, _) = function(&Signature::rerank(), "m");
    let args = texts(&[
        &[Some("q"), None, Some("q"), Some("q")],
        &[Some("a"), Some("b"), None, Some("d")],
    ]);
    let asked = function.ask(&args).unwrap();
    let input = asked.input.as_ref().unwrap();
    assert!(Signature::rerank().check_input(&input.schema()).is_ok());
    assert_eq!(
        input.column_by_name("text").unwrap().as_string::<i32>(),
        &StringArray::from(vec!["a", "d"])
    );
    let scores: ArrayRef = Arc::new(Float32Array::from(vec![0.5, 0.25]));
    let result = function.result(&scores, &asked).unwrap();
    let result = result.column(0).as_primitive::<Float32Type>();
    assert_eq!(
        result.iter().collect::<Vec<_>>(),
        [Some(0.5), None, None, Some(0.25)]
    );

    let asked = function.ask(&texts(&[&[None], &[None]])).unwrap();
    assert!(asked.input.is_none());
    let none: ArrayRef = Arc::new(Float32Array::from(Vec::<f32>::new()));
    assert_eq!(
        function
            .result(&none, &asked)
            .unwrap()
            .column(0)
            .null_count(),
        1
    );
}

#[test]
fn options_are_columns_of_the_model_or_parameters() {
    let (function, left) = function(&Signature::embed(3), "m?input_type=query&dimensions=2");
    let asked = function.ask(&texts(&[&[Some("a"), Some("b")]])).unwrap();
    let input = asked.input.unwrap();
    let kinds = input
        .column_by_name("input_type")
        .unwrap()
        .as_string::<i32>();
    assert_eq!(kinds, &StringArray::from(vec!["query", "query"]));
    assert_eq!(left.unsigned("dimensions").unwrap(), Some(2));
    assert_eq!(left.len(), 1);
    assert!(parse_name("m?max_tokens").is_err());
    assert!(parse_name("?a=1").is_err());
}

#[test]
fn tensors_take_and_give_the_types_that_engines_have() {
    let vector = DataType::new_fixed_size_list(DataType::Float32, 2, false);
    let schema = |name: &str| Schema::new(vec![Field::new(name, vector.clone(), false)]);
    let signature = Signature {
        task: Task::Tensors,
        input: Arc::new(schema("x")),
        output: Arc::new(schema("y")),
    };
    let (function, _) = function(&signature, "m");
    let mut rows = ListBuilder::new(Float32Builder::new());
    rows.append_value([Some(1.0), Some(2.0)]);
    rows.append_null();
    let args = RecordBatch::try_from_iter([("", Arc::new(rows.finish()) as ArrayRef)]).unwrap();
    assert!(function.check(&args.schema()).is_ok());
    let asked = function.ask(&args).unwrap();
    let input = asked.input.clone().unwrap();
    assert_eq!(*input.schema().field(0), *signature.input.field(0));

    let answer = RecordBatch::try_new(signature.output.clone(), input.columns().to_vec()).unwrap();
    let mut gather = Gather::new(function.answer().unwrap(), 1);
    gather.add(answer).unwrap();
    let values = gather.finish(function.result_type()).unwrap();
    let result = function.result(&values, &asked).unwrap();
    assert_eq!((result.num_rows(), result.column(0).null_count()), (2, 1));

    let mut short = ListBuilder::new(Float32Builder::new());
    short.append_value([Some(1.0)]);
    let args = RecordBatch::try_from_iter([("", Arc::new(short.finish()) as ArrayRef)]).unwrap();
    assert_eq!(
        function.ask(&args).unwrap_err().code,
        ErrorCode::InvalidInput
    );
    let wrong = RecordBatch::try_from_iter([("", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    let error = function.check(&wrong.unwrap().schema()).unwrap_err();
    assert!(error.message.contains("'x'"), "{}", error.message);
}

#[test]
fn a_generations_chunks_are_one_text_for_each_row() {
    let (function, _) = function(&Signature::generation(), "m");
    let mut chunks = GenerationChunks::default();
    for (item, text, last) in [(1, "b", false), (0, "a", false), (1, "c", true)] {
        chunks.push(&GenerationChunk {
            item,
            text: Some(text.to_owned()),
            last,
            ..GenerationChunk::default()
        });
    }
    let mut gather = Gather::new(function.answer().unwrap(), 2);
    gather.add(chunks.finish()).unwrap();
    let values = gather.finish(&DataType::Utf8).unwrap();
    assert_eq!(
        values.as_string::<i32>(),
        &StringArray::from(vec!["a", "bc"])
    );
    let cut = Gather::new(function.answer().unwrap(), 1).finish(&DataType::Utf8);
    assert_eq!(cut.unwrap_err().code, ErrorCode::UpstreamIncomplete);
}

proptest! {
    #[test]
    fn names_are_read_or_refused(name in "\\PC{0,40}") {
        let _ = parse_name(&name);
    }
}

/// A table's model: a column for each input of one value, and a label with its probabilities.
fn table() -> Signature {
    let one = |name: &str, kind| {
        let list = DataType::new_fixed_size_list(kind, 1, false);
        Field::new(name, list, false)
    };
    let input = vec![
        one("age", DataType::Float32),
        one("fare", DataType::Float32),
        one("city", DataType::Utf8),
    ];
    let probability = DataType::new_fixed_size_list(DataType::Float32, 2, false);
    let classes = ["no".to_owned(), "1".to_owned()];
    let output = vec![
        Field::new("label", DataType::Int64, false),
        volley_types::signature::with_labels(Field::new("p", probability, false), &classes),
    ];
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(input)),
        output: Arc::new(Schema::new(output)),
    }
}

fn columns(columns: &[ArrayRef]) -> RecordBatch {
    let columns = columns.iter().enumerate();
    let columns = columns.map(|(index, column)| (argument_name(index), column.clone(), true));
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[test]
fn a_function_over_the_columns_of_a_table_takes_their_values() {
    let (function, _) = function(&table(), "survive");
    let kinds: Vec<_> = function
        .args
        .fields()
        .iter()
        .map(|it| it.data_type().clone())
        .collect();
    assert_eq!(
        kinds,
        [DataType::Float32, DataType::Float32, DataType::Utf8]
    );
    let ages: ArrayRef = Arc::new(Int64Array::from(vec![Some(22), None, Some(38)]));
    let fares: ArrayRef = Arc::new(arrow_array::Float64Array::from(vec![7.25, 1.0, 71.2833]));
    let cities: ArrayRef = Arc::new(StringArray::from(vec!["Cork", "Cork", "Ghent"]));
    let args = columns(&[ages, fares.clone(), cities.clone()]);
    function.check(&args.schema()).unwrap();
    let asked = function.ask(&args).unwrap();
    let input = asked.input.as_ref().unwrap();
    table().check_input(&input.schema()).unwrap();
    assert_eq!(input.num_rows(), 2);
    let ages = input.column_by_name("age").unwrap().as_fixed_size_list();
    let ages = ages.values().as_primitive::<Float32Type>();
    assert_eq!(ages.values(), &[22.0, 38.0]);
    let large: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 16_777_217]));
    let error = function.ask(&columns(&[large, fares, cities])).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("'age', row 2"), "{}", error.message);
}

#[test]
fn one_output_or_one_class_of_it_can_be_chosen() {
    let values = Arc::new(Float32Array::from(vec![0.25, 0.75, 0.5, 0.5]));
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let lists = arrow_array::FixedSizeListArray::new(item, 2, values, None);
    let label: ArrayRef = Arc::new(Int64Array::from(vec![1, 0]));
    let answer = RecordBatch::try_from_iter([("label", label), ("p", Arc::new(lists) as ArrayRef)]);
    let answer = answer.unwrap();
    let given = |name: &str| {
        let (function, options) = function(&table(), name);
        assert!(options.is_empty(), "{name}");
        let mut gather = Gather::new(function.answer().unwrap(), 2);
        gather.add(answer.clone()).unwrap();
        gather.finish(function.result_type()).unwrap()
    };
    assert!(matches!(given("m").data_type(), DataType::Struct(_)));
    assert_eq!(
        given("m?output=label")
            .as_primitive::<arrow_array::types::Int64Type>()
            .values(),
        &[1, 0]
    );
    assert_eq!(given("m?output=p").as_list::<i32>().value(0).len(), 2);
    let ones = given("m?output=p&class=1");
    assert_eq!(ones.as_primitive::<Float32Type>().values(), &[0.75, 0.5]);
    for (name, text) in [
        ("m?output=q", "'label', 'p'"),
        ("m?output=p&class=yes", "no, 1"),
        ("m?output=label&class=1", "no classes"),
        ("m?class=1", "'output'"),
    ] {
        let (model, mut options) = parse_name(name).unwrap();
        let error = Function::of_model(&model, &table(), &mut options).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{name}");
        assert!(error.message.contains(text), "{name}: {}", error.message);
    }
}
