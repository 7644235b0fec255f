use super::*;

/// Two branches of one input, which are joined.
fn diamond() -> Value {
    json!({
        "name": "e", "platform": "ensemble", "max_batch_size": 8,
        "input": [{ "name": "x", "data_type": "TYPE_FP32", "dims": ["4"] }],
        "output": [{ "name": "y", "data_type": "TYPE_FP32", "dims": [4] }],
        "ensembleScheduling": { "step": [
            { "modelName": "join", "modelVersion": "-1",
              "inputMap": { "one": "a", "two": "b" }, "outputMap": { "sum": "y" } },
            { "modelName": "twice", "inputMap": { "in": "x" }, "outputMap": { "out.1": "a" } },
            { "modelName": "twice", "inputMap": { "in": "x" }, "outputMap": { "out.1": "b" } },
        ] },
    })
}

fn read(config: &Value) -> Result<PipelineSpec, PredictError> {
    let plan = Plan::read(config.as_object().unwrap())?;
    let models = plan.steps.iter();
    let models = models.map(|step| {
        (
            ModelRef::deployed(step.model.clone()),
            Parameters::default(),
        )
    });
    let models = models.collect();
    plan.pipeline(ModelName::new("e").unwrap(), models)
}

#[test]
fn a_graph_of_models_becomes_the_steps_of_a_pipeline() {
    let spec = read(&diamond()).unwrap();
    assert_eq!(spec.inputs["x"], ColumnType::Tensor);
    let names: Vec<_> = spec.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["join", "twice", "twice-2", "outputs"]);
    let columns = |place: usize| -> Vec<_> {
        let columns = spec.steps[place].columns().into_iter();
        columns.map(ToString::to_string).collect()
    };
    assert_eq!(columns(0), ["twice.out.1", "twice-2.out.1"]);
    assert_eq!(columns(1), ["request.x"]);
    assert_eq!(columns(3), ["join.sum"]);
    let config: Value = serde_json::from_str(&spec.ensemble.unwrap().config).unwrap();
    assert_eq!(config["platform"], "ensemble");
    assert_eq!(config["input"][0]["dims"], json!([4]));
    let step = &config["ensemble_scheduling"]["step"][0];
    assert_eq!(
        (step["model_version"].as_i64(), &step["input_map"]["one"]),
        (Some(-1), &json!("a"))
    );
}

#[test]
fn what_does_not_fit_together_is_named() {
    let changed = |path: &str, value: Value| {
        let mut config = diamond();
        *config.pointer_mut(path).unwrap() = value;
        config
    };
    let step = "/ensembleScheduling/step";
    for (config, told) in [
        (changed("/platform", json!("onnxruntime_onnx")), "platform"),
        (changed("/input", json!([])), "'input' lists no tensors"),
        (changed(step, json!([])), "has no steps"),
        (
            changed(&format!("{step}/0/inputMap/one"), json!("nowhere")),
            "the input 'one' of the model 'join' is the tensor 'nowhere'",
        ),
        (
            changed(&format!("{step}/1/outputMap"), json!({ "out": "b" })),
            "the tensor 'b' is produced twice",
        ),
        (
            changed(&format!("{step}/1/inputMap"), json!({ "in": "y" })),
            "depends on itself",
        ),
        (
            changed("/output/0/name", json!("z")),
            "no step produces the output 'z'",
        ),
        (
            changed("/input", json!([{ "name": "x" }, { "name": "unused" }])),
            "no step uses the input 'unused'",
        ),
        (
            changed(&format!("{step}/0/modelName"), json!("")),
            "step 1 names no model",
        ),
        (
            changed(&format!("{step}/0/outputMap"), json!({})),
            "'output_map' of step 1",
        ),
        (changed("/max_batch_size", json!(0)), ""),
    ] {
        match read(&config) {
            Ok(_) => assert_eq!(told, ""),
            Err(error) => assert!(!told.is_empty() && error.message.contains(told), "{error}"),
        }
    }
    let mut config = diamond();
    config["dynamicBatching"] = json!({});
    assert!(
        read(&config)
            .unwrap_err()
            .message
            .contains("'dynamic_batching'")
    );
}
