use super::*;

fn load(given: Vec<(&str, LoadParameter)>) -> Result<Load, PredictError> {
    let given = given.into_iter();
    Load::read(given.map(|(name, value)| (name.to_owned(), value)))
}

fn text(text: &str) -> LoadParameter {
    LoadParameter::Text(text.to_owned())
}

fn bytes() -> LoadParameter {
    LoadParameter::Bytes(Bytes::from_static(b"x"))
}

#[test]
fn a_configuration_and_files_are_read_and_all_else_is_refused_by_name() {
    let read = load(vec![
        ("config", text(r#"{"max_batch_size":4}"#)),
        ("file:1/model.onnx", bytes()),
        ("file:labels.txt", bytes()),
    ]);
    let read = read.unwrap();
    assert_eq!(read.config.unwrap()["max_batch_size"], 4);
    assert_eq!(read.files[0].0, "1/model.onnx");
    for (given, told) in [
        (vec![("config", text("[]"))], "JSON object"),
        (
            vec![("config", LoadParameter::Other)],
            "'config' must be a text",
        ),
        (
            vec![("config", text(r#"{"max_batch_size":2,"max_batch_size":4}"#))],
            "'max_batch_size' occurs twice",
        ),
        (
            vec![("config", text(r#"{"input":[{"name":"x","name":"y"}]}"#))],
            "'name' occurs twice",
        ),
        (vec![("other", text(""))], "'other'"),
        (vec![("file:1/model.onnx", bytes())], "'config' is missing"),
        (vec![("file:1/model.onnx", text(""))], "file:1/model.onnx"),
        (
            vec![
                ("config", text(r#"{"ensemble_scheduling":{}}"#)),
                ("file:a", bytes()),
            ],
            "an ensemble has no files",
        ),
        (
            vec![
                ("config", text("{}")),
                ("file:a", bytes()),
                ("file:a/b", bytes()),
            ],
            "'file:a' is a file, and also the folder",
        ),
    ] {
        let error = load(given).unwrap_err();
        assert!(error.message.contains(told), "{error}");
    }
    let long = format!("file:{}", "a".repeat(300));
    for bad in [
        "file:",
        "file:/etc/passwd",
        "file:../a",
        "file:a/../../b",
        "file:a//b",
        "file:a\\b",
        "file:./a",
        "file:a\n",
        &long,
    ] {
        let error = load(vec![("config", text("{}")), (bad, bytes())]).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{bad}");
        assert!(error.message.contains("file:"), "{error}");
    }
    assert!(load(vec![]).unwrap().config.is_none());
    assert!(LoadParameter::json("file:a", &Value::from("?")).is_err());
}

#[test]
fn a_model_that_is_not_there_has_no_version() {
    let model = ModelName::new("m").unwrap();
    let registry = RegistryState::default();
    let error = version(&registry, &model, &Map::new(), None).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotFound);
    assert_eq!(
        own_version(&registry, &model).unwrap_err().code,
        ErrorCode::NotFound
    );
    let source = ModelSource::Path("/somewhere".to_owned());
    let new = version(&registry, &model, &Map::new(), Some(source)).unwrap();
    let Version::New(command) = new else {
        panic!("it is new");
    };
    assert!(matches!(*command, RegistryCommand::RegisterModel(..)));
}
