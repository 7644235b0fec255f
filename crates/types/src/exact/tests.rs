use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn numbers_keep_their_text() {
    let text = r#"{"a":12345678901234567890123,"e":1e2,"s":"1e2 \" 3","n":[-0.10,{"b":1}]}"#;
    let spaced = text.replace(',', " ,\n ");
    for given in [text, spaced.as_str()] {
        let held = object(given).unwrap();
        assert!(held.is_string());
        let body = json!({ "input": held, "list": [held], "other": "1e2" });
        let expected = format!(r#"{{"input":{text},"list":[{text}],"other":"1e2"}}"#);
        assert_eq!(write(&body), expected);
    }
    assert_eq!(write(&object(text).unwrap()), text);
}

#[test]
fn inputs_in_messages_keep_their_numbers() {
    let input = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let call = format!(r#"{{"id":"c","input":{input},"name":"f","type":"tool_use"}}"#);
    let text = format!(
        r#"{{"messages":[{{"content":"Hi","role":"user"}},{{"content":[{{"text":"a","type":"text"}},{call}],"role":"assistant"}}],"top":1}}"#
    );
    let mut body = serde_json::from_str(&text).unwrap();
    keep_inputs(&mut body, &text);
    assert_eq!(write(&Value::Object(body)), text);
}

#[test]
fn arguments_in_messages_keep_their_numbers() {
    let arguments = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let text = format!(
        r#"{{"messages":[{{"content":"","role":"assistant","tool_calls":[{{"function":{{"arguments":{arguments},"name":"f"}}}},{{"function":{{"arguments":"{{}}","name":"g"}}}}]}}]}}"#
    );
    let mut body = serde_json::from_str(&text).unwrap();
    keep_inputs(&mut body, &text);
    let call = &body["messages"][0]["tool_calls"][0]["function"];
    assert_eq!(call["arguments"].as_str().and_then(held), Some(arguments));
    assert_eq!(held("{}"), None);
    assert_eq!(write(&Value::Object(body)), text);
}

#[test]
fn exact_objects_are_values_and_other_texts_are_none() {
    let exact = r#"{ "a": 1, "f": 0.5, "t": true, "e": [] }"#;
    assert_eq!(
        object(exact),
        Some(json!({ "a": 1, "f": 0.5, "t": true, "e": [] }))
    );
    for other in ["[1e2]", "1e2", "", "{", "\"a\""] {
        assert_eq!(object(other), None, "{other}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_the_object(number in "-?[1-9][0-9]{0,30}(\\.[0-9]{1,4})?", text in "\\PC{0,12}") {
        let given = format!("{{\"n\":{number},\"t\":{}}}", Value::from(text));
        prop_assert_eq!(write(&object(&given).unwrap()), given);
    }
}
