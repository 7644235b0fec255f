use volley_types::Intake;

use super::*;

fn read(text: &str) -> Prediction {
    let mut share = Intake::default().share();
    Prediction::read(&Bytes::from(text.to_owned()), &mut share).unwrap()
}

#[test]
fn what_is_large_stays_text_and_the_rest_becomes_values() {
    let rows = format!("[{}1]", "1,".repeat(LARGE));
    let body = read(&format!(
        r#"{{"inputs":{{"x":{rows}}},"parameters":{{"a":1}},"text_docs":{rows}}}"#
    ));
    assert!(
        matches!(body.inputs().unwrap(), Some(Json::Text(text)) if text.starts_with("{\"x\":[1,"))
    );
    assert!(matches!(body.documents(), Some(Json::Text(text)) if text == rows));
    assert_eq!(body.fields["parameters"]["a"], 1);
    assert!(body.fields.contains_key("inputs") && body.fields.contains_key("text_docs"));

    let body = read(&format!(
        r#"{{"parameters":{{"inputs":{rows},"b":"c","prompt":"{}"}}}}"#,
        "x".repeat(LARGE)
    ));
    assert!(matches!(body.inputs().unwrap(), Some(Json::Text(text)) if text == rows));
    assert_eq!(body.fields["parameters"]["b"], "c");
    assert_eq!(
        body.fields["parameters"]["prompt"].as_str().unwrap().len(),
        LARGE
    );

    let many: Vec<_> = (0..5_000).map(|n| format!("\"{n}\":1")).collect();
    let many = many.join(",");
    for text in [
        format!("{{{many}}}"),
        format!("{{\"parameters\":{{{many}}}}}"),
    ] {
        let mut share = Intake::default().share();
        Prediction::read(&Bytes::from(text), &mut share).unwrap();
        assert!(5_000 * 100 < share.bytes(), "members are counted");
    }

    let small = read(r#"{"inputs":{"x":[1]},"parameters":{"inputs":1}}"#);
    assert!(small.inputs().is_err());
    assert!(read(" ").inputs().unwrap().is_none());
}
