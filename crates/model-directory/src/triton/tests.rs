use proptest::prelude::*;
use volley_onnx_runtime::ort::value::TensorElementType;

use super::*;

const SAMPLE: &str = r#"
    name: "classifier"
    platform: "onnxruntime_onnx"
    max_batch_size: 8
    input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]
    output [ { name: "y" data_type: TYPE_INT64 dims: [ 1 ] label_filename: "labels.txt" } ]
    dynamic_batching {
        preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 priority_levels: 2
        default_priority_level: 2
    }
    parameters { key: "intra_op_thread_count" value: { string_value: "3" } }
    parameters { key: "execution_mode" value: { string_value: "0" } }
    model_warmup [ {
        name: "one" batch_size: 4 count: 2
        inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 3, 5 ] zero_data: true } }
    } ]
    instance_group [ { count: 2 kind: KIND_CPU } ]
    version_policy { specific { versions: [ 1, 3 ] } }
    optimization { graph { level: 1 } }
"#;

#[test]
fn a_configuration_is_understood() {
    let declared = TritonConfig::parse(SAMPLE).unwrap();
    assert_eq!(declared.max_batch_size, 8);
    assert_eq!(declared.inputs[0].dims, [3, -1]);
    assert_eq!(declared.outputs[0].kind, TensorElementType::Int64);
    assert_eq!(declared.preferred, [4, 8]);
    let config = declared.apply(OnnxConfig::default());
    assert_eq!(config.device, Device::Cpu);
    assert_eq!((config.instances, config.threads), (2, 3));
    let there = ["1", "2", "3", "4"].map(str::to_owned);
    assert_eq!(declared.versions(&there).unwrap(), ["1", "3"]);
    assert!(declared.versions(&there[1..2]).is_err());
    let sample = Sample {
        name: "one".to_owned(),
        rows: 4,
        runs: 2,
        inputs: vec![("x".to_owned(), vec![3, 5])],
    };
    assert_eq!(declared.warm_up, [sample]);
}

#[test]
fn what_has_no_effect_is_told() {
    let declared = TritonConfig::parse(SAMPLE).unwrap();
    let told = |graph| -> Vec<_> { declared.details(graph) };
    let names: Vec<_> = told(true).iter().map(|(name, _)| *name).collect();
    let all = [
        "dynamic batching",
        "rows of a run",
        "warm-up",
        "instances",
        "without effect",
    ];
    assert_eq!(names, all);
    let (_, batching) = &told(true)[0];
    assert_eq!(
        batching,
        "rows of requests that wait run together, 4 or 8 where they can be; an idle model waits \
         100 µs for more; 2 levels of priority"
    );
    let (_, idle) = told(true).pop().unwrap();
    assert_eq!(idle, "optimization, parameters.execution_mode");
    let (_, idle) = told(false).pop().unwrap();
    assert!(idle.ends_with("max_batch_size, input, output, dynamic_batching, model_warmup"));
}

#[test]
fn what_is_not_offered_is_refused_by_its_name() {
    for (text, told) in [
        ("platform: 'tensorflow_savedmodel'", "tensorflow_savedmodel"),
        ("backend: 'python'", "'python'"),
        ("ensemble_scheduling { }", "ensemble_scheduling"),
        (
            "model_operations { op_library_filename: 'a.so' }",
            "model_operations",
        ),
        ("input { name: 'x' data_type: TYPE_FP8 }", "TYPE_FP8"),
        ("input { data_type: TYPE_FP32 }", "no name"),
        (
            "input { name: 'x' data_type: TYPE_FP32 dims: -1 reshape { shape: [] } }",
            "dynamic dimension",
        ),
        (
            "input { name: 'x' data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 3 ] } }",
            "as many values",
        ),
        (
            "input { name: 'x' data_type: TYPE_FP32 allow_ragged_batch: true }",
            "allow_ragged_batch",
        ),
        ("instance_group { count: 65 }", "65 instances"),
        (
            "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]",
            "two kinds",
        ),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 8 }",
            "preferred_batch_size",
        ),
        (
            "dynamic_batching { preferred_batch_size: 0 }",
            "preferred_batch_size",
        ),
        ("model_warmup { count: 1001 }", "model_warmup"),
        (
            "parameters { key: 'intra_op_thread_count' value { string_value: 'x' } }",
            "intra_op_thread_count",
        ),
        ("instance_group { kind: KIND_MODEL }", "KIND_MODEL"),
        ("max_batch_size: many", "max_batch_size"),
        ("max_batch_size: -1", "max_batch_size"),
        ("input: 3", "'input' is not a message"),
        ("max_batch_size: 4 max_batch_size: 8", "'max_batch_size'"),
        (
            "instance_group { kind: KIND_CPU kind: KIND_CPU }",
            "'kind' is set twice",
        ),
        (
            "dynamic_batching { } sequence_batching { direct { } }",
            "'dynamic_batching' and 'sequence_batching'",
        ),
        (
            "input { name: 'x' data_type: TYPE_FP32 } input { name: 'x' data_type: TYPE_FP32 }",
            "'x' is listed twice",
        ),
        ("input { name: 'x' data_type: TYPE_FP32 dims: -2 }", "-2"),
    ] {
        let error = TritonConfig::parse(text).unwrap_err();
        assert!(error.contains(told), "{text}: {error}");
    }
}

#[test]
fn lists_may_be_written_in_parts_and_a_window_has_a_limit() {
    let declared = TritonConfig::parse(
        "input { name: 'x' data_type: TYPE_FP32 dims: 1 dims: 2 }
         optimization { execution_accelerators {
           gpu_execution_accelerator { name: 'a' } gpu_execution_accelerator { name: 'b' } } }
         dynamic_batching { max_queue_delay_microseconds: 99999999 }",
    );
    let declared = declared.unwrap();
    assert_eq!(declared.inputs[0].dims, [1, 2]);
    assert_eq!(declared.merges, Some(LONGEST_WINDOW));
    let (_, told) = &declared.details(true)[0];
    assert!(told.contains("waits 1000000 µs"), "{told}");
}

#[test]
fn types_and_shapes_are_those_of_the_graph() {
    let tensor = |dims: &[i64]| Tensor {
        name: "x".to_owned(),
        kind: TensorElementType::Float32,
        dims: dims.to_vec(),
        inner: None,
        labels: None,
    };
    let check = |dims: &[i64], shape: &[i64], batched| {
        tensor(dims).fits(TensorElementType::Float32, shape, batched)
    };
    assert!(check(&[3, -1], &[-1, 3, 5], true).is_ok());
    assert!(check(&[1], &[-1], true).is_ok());
    assert!(check(&[2, 3], &[2, -1], false).is_ok());
    assert!(
        check(&[3], &[4, 3], true)
            .unwrap_err()
            .contains("max_batch_size")
    );
    assert!(check(&[4], &[-1, 3], true).unwrap_err().contains("[4]"));
    let other = tensor(&[1]).fits(TensorElementType::Int8, &[1], false);
    assert!(other.unwrap_err().contains("declared as"));
}

proptest! {
    #[test]
    fn any_text_is_understood_or_refused(
        fields in proptest::collection::vec(
            ("(platform|input|dims|version_policy|instance_group|name|max_batch_size|specific)",
             "(: 1|: 'x'| \\{|\\}|: \\[1\\]|: TYPE_FP32)"), 0..12),
    ) {
        let text: String = fields.iter().map(|(name, rest)| format!("{name}{rest} ")).collect();
        let _ = TritonConfig::parse(&text);
    }
}
