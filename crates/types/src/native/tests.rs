use crate::params::{ROW_DETAILS, ROW_PARAMETERS};

use super::*;

#[test]
fn a_request_travels_as_a_parameter_and_nothing_else_is_taken_for_one() {
    let native = Native {
        format: "anthropic".to_owned(),
        headers: [("anthropic-beta".to_owned(), "x".to_owned())].into(),
        body: json!({ "thinking": { "type": "adaptive" } })
            .as_object()
            .cloned()
            .unwrap(),
        lost: Some("an image".to_owned()),
        in_parts: false,
    };
    let mut parameters = Parameters::default();
    native.clone().put(&mut parameters).unwrap();
    assert_eq!(Native::take(&mut parameters).unwrap(), Some(native));
    assert!(parameters.is_empty());
    assert_eq!(Native::take(&mut parameters).unwrap(), None);
    for wrong in [
        ParamValue::Bool(true),
        ParamValue::Json("[]".to_owned()),
        ParamValue::Json("{}".to_owned()),
    ] {
        parameters.set(NATIVE, wrong).unwrap();
        assert!(Native::take(&mut parameters).is_err());
    }
}

#[test]
fn numbers_in_the_inputs_of_calls_keep_their_text() {
    let messages = r#"[{"content":[{"id":"c","input":{"a":12345678901234567890123},"name":"f","type":"tool_use"}],"role":"assistant"}]"#;
    let text = format!("{{\"messages\":{messages}}}");
    let mut body = serde_json::from_str(&text).unwrap();
    exact::keep_inputs(&mut body, &text);
    let native = Native {
        format: "anthropic".to_owned(),
        body,
        ..Native::default()
    };
    let mut parameters = Parameters::default();
    native.put(&mut parameters).unwrap();
    let Some(ParamValue::Json(sent)) = parameters.get(NATIVE) else {
        panic!()
    };
    assert!(sent.contains(messages), "{sent}");
    let taken = Native::take(&mut parameters).unwrap().unwrap();
    assert_eq!(exact::write(&taken.body["messages"]), messages);
}

#[test]
fn a_signature_says_which_forms_it_takes_and_stands_for_one_that_does_not() {
    let plain = Signature::generation();
    let native = Signature::generation().taking_native(&["openai", "anthropic"]);
    assert!(native.takes_native("anthropic") && !native.takes_native("cohere"));
    assert!(!plain.takes_native("openai"));
    assert!(plain.stands_for(&native) && native.stands_for(&plain));
    assert_eq!(Signature::generation().taking_native(&[]), plain);
}

#[test]
fn details_of_rows_are_added_where_they_are_asked_for_and_supported() {
    let asked: Parameters = [(ROW_DETAILS.to_owned(), ParamValue::Bool(true))]
        .into_iter()
        .collect();
    let plain = Signature::rerank();
    assert_eq!(plain.answer(&asked), plain.output);
    let remote = Signature::rerank().taking_native(&[ROW_PARAMETERS]);
    assert_eq!(remote.answer(&Parameters::default()), plain.output);
    let answer = remote.answer(&asked);
    let columns = answer.fields().iter();
    let columns: Vec<_> = columns
        .map(|it| (it.name().as_str(), it.is_nullable()))
        .collect();
    assert_eq!(
        columns,
        [("score", false), ("tokens", true), ("upstream", true)]
    );
    assert!(remote.stands_for(&plain) && plain.stands_for(&remote));
}

#[test]
fn a_generation_of_the_version_before_has_fewer_columns_and_is_the_same() {
    let mut before = Signature::generation();
    let columns = before.output.fields().iter().take(18).cloned();
    before.output = arrow_schema::Schema::new(columns.collect::<Vec<_>>()).into();
    assert!(Signature::generation().stands_for(&before));
}
