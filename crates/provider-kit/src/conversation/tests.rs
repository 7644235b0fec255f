use super::*;

#[test]
fn numbers_in_arguments_keep_their_text() {
    let call = |text: &str| json!({ "function": { "name": "f", "arguments": text } });
    let exact_text = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let body = json!({ "input": arguments(&call(exact_text)).unwrap() });
    assert_eq!(exact::write(&body), format!("{{\"input\":{exact_text}}}"));
    assert_eq!(arguments(&call(" ")).unwrap(), json!({}));
    for wrong in ["{bad", "[1]", "1e2"] {
        assert!(arguments(&call(wrong)).is_err(), "{wrong}");
    }
}

#[test]
fn an_image_in_a_system_message_is_refused_by_its_role() {
    let part = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,eA==" } });
    let shown = |role: &str| ChatMessage {
        details: Some(json!({ "parts": [part] }).to_string()),
        ..ChatMessage::new(role, "")
    };
    for role in ["system", "developer"] {
        let error = check_system(&[shown(role)], "Gemini").unwrap_err();
        assert!(error.message.contains(&format!("'{role}'")), "{error}");
    }
    assert!(check_system(&[shown("user")], "Gemini").is_ok());
}

#[test]
fn media_types_of_images_are_read_without_parameters() {
    let part = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    for (url, media) in [
        ("data:image/jpg;base64,eA==", "image/jpeg"),
        ("data:image/png;charset=utf-8;base64,eA==", "image/png"),
        ("DATA:IMAGE/PNG;BASE64,eA==", "image/png"),
        ("data:;base64,eA==", ""),
    ] {
        let Some(Image::Data(read, data)) = image(&part(url)) else {
            panic!("{url}")
        };
        assert_eq!((read.as_str(), data.as_str()), (media, "eA=="), "{url}");
    }
    let address = image(&part("https://a.test/b.png"));
    assert!(matches!(address, Some(Image::Address(_))));
    let check = |url: &str, provider: &str| {
        let message = ChatMessage {
            details: Some(json!({ "parts": [part(url)] }).to_string()),
            ..ChatMessage::new("user", "")
        };
        check_fields(&Item::Chat(vec![message]), provider)
    };
    let file = "data:application/pdf;base64,eA==";
    let error = check(file, "bedrock").unwrap_err();
    assert!(error.message.contains("'application/pdf'"), "{error}");
    assert!(check(file, "gemini").is_ok());
    assert!(check("data:;base64,eA==", "gemini").is_err());
    assert!(check("data:image/jpg;base64,eA==", "bedrock").is_ok());
}

#[test]
fn a_refusal_is_split_from_its_text() {
    let refused = |content: &str| ChatMessage {
        details: Some(json!({ "refusal": "No." }).to_string()),
        ..ChatMessage::new("assistant", content)
    };
    let split = |text: &str| Some((text.to_owned(), "No.".to_owned()));
    assert_eq!(refusal(&refused("No.")), split(""));
    assert_eq!(refusal(&refused("Hm. No.")), split("Hm. "));
    assert_eq!(refusal(&ChatMessage::new("assistant", "No.")), None);
}

#[test]
fn text_and_calls_keep_their_order() {
    let order = |details: Option<Value>| {
        let message = ChatMessage {
            tool_calls: Some(json!([{ "id": "a" }, { "id": "b" }]).to_string()),
            details: details.map(|details| details.to_string()),
            ..ChatMessage::new("assistant", "äbc")
        };
        let told = said(&message).into_iter().map(|said| match said {
            Stretch::Text(text) => text,
            Stretch::Call(call) => call["id"].as_str().unwrap().to_owned(),
            Stretch::Mark(_) => "|".to_owned(),
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(order(None), ["äbc", "a", "b"]);
    assert_eq!(
        order(Some(json!({ "calls_at": [1, 2] }))),
        ["ä", "a", "b", "b", "c"]
    );
    assert_eq!(
        order(Some(json!({ "calls_at": [0, 0] }))),
        ["a", "b", "äbc"]
    );
    let mark = |at: usize, calls: usize| json!({ "at": at, "calls": calls, "control": {} });
    let marked = json!({ "cache": [mark(1, 0), mark(3, 1), mark(3, 2)] });
    assert_eq!(order(Some(marked)), ["ä", "|", "bc", "a", "|", "b", "|"]);
}

#[test]
fn a_field_of_one_dialect_is_refused_by_name() {
    let named = ChatMessage {
        details: Some(json!({ "beside": "name" }).to_string()),
        ..ChatMessage::new("user", "hi")
    };
    let item = Item::Chat(vec![ChatMessage::new("user", "hi"), named]);
    let error = check_fields(&item, "a test").unwrap_err();
    assert!(error.message.contains("'name' at index 1"), "{error}");
    let item = Item::Chat(vec![ChatMessage::new("user", "hi")]);
    assert!(check_fields(&item, "a test").is_ok());
}
