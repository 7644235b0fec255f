use proptest::prelude::*;

use super::*;

#[test]
fn texts_come_flat_nested_or_as_a_chat_and_the_rest_are_parameters() {
    let text = |name: &str, shape: Value, data: Value| json!({ "name": name, "datatype": "BYTES", "shape": shape, "data": data });
    let chat = r#"[{"role":"user","content":"hi"}]"#;
    for (given, rows) in [
        (text("text_input", json!([2]), json!(["a", "b"])), 2),
        (text("prompt", json!([2, 1]), json!([["a"], ["b"]])), 2),
        (text("messages", json!([1]), json!([chat])), 1),
    ] {
        let mut parameters = Map::new();
        let few = text("max_tokens", json!([1]), json!([3]));
        let stream = text("stream", json!([1]), json!([true]));
        let texts = Texts::read(&[given, few, stream], &mut parameters, true).unwrap();
        assert_eq!(texts.rows.num_rows(), rows);
        assert_eq!(Value::Object(parameters), json!({ "max_tokens": 3 }));
    }
    for bad in [
        json!([]),
        json!([{}]),
        json!([text("other", json!([1]), json!(["a"]))]),
        json!([text("text_input", json!([2]), json!(["a"]))]),
        json!([text("text_input", json!([3]), json!([["a", "b"], ["c"]]))]),
        json!([
            text("text_input", json!([1]), json!(["a"])),
            text("stream", json!([1]), json!([true]))
        ]),
        json!([
            text("text_input", json!([1]), json!(["a"])),
            text("max_tokens", json!([1]), json!([2])),
            text("max_tokens", json!([1]), json!([3]))
        ]),
        json!([text("text_input", json!([1]), json!([1]))]),
        json!([text("text_input", json!([0]), json!([]))]),
        json!([text("text_input", json!([1, 1, 1]), json!([[["a"]]]))]),
        json!([text("messages", json!([1]), json!(["[]"]))]),
        json!([
            text("text_input", json!([1]), json!(["a"])),
            text("messages", json!([1]), json!([chat]))
        ]),
    ] {
        let inputs = bad.as_array().unwrap();
        assert!(
            Texts::read(inputs, &mut Map::new(), false).is_err(),
            "{bad}"
        );
    }
}

proptest! {
    #[test]
    fn any_json_is_a_tensor_or_refused(
        shape in proptest::collection::vec(0..4_u64, 0..4),
        depth in 0..4_usize,
        count in 0..4_usize,
    ) {
        let mut data = json!("x");
        for _ in 0..depth {
            data = Value::Array(vec![data; count]);
        }
        let input = json!({ "name": "text_input", "shape": shape, "data": data });
        if let Err(error) = Texts::read(&[input], &mut Map::new(), false) {
            prop_assert_eq!(error.code.http_status(), 400);
        }
    }
}
