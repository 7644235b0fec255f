use volley_types::{ErrorCode, Intake};

use super::*;

/// As [`super::read`], with any amount of memory.
fn read(text: &Bytes, raw: &Bytes) -> Result<Option<Compact>, PredictError> {
    super::read(text, raw, &mut Intake::default().share())
}

/// The data of `count` rows of two values, as text.
fn data(count: usize, value: impl Fn(usize) -> String) -> String {
    let rows = (0..count).map(|row| format!("[{},{}]", value(2 * row), value(2 * row + 1)));
    format!("[{}]", rows.collect::<Vec<_>>().join(","))
}

fn body(datatype: &str, rows: usize, data: &str) -> Bytes {
    let input =
        format!(r#"{{"name":"x","datatype":"{datatype}","shape":[{rows},2],"data":{data}}}"#);
    let small = r#"{"name":"k","datatype":"INT8","shape":[1],"data":[1]}"#;
    format!(r#"{{"id":"7","inputs":[{input},{small}],"outputs":[]}}"#).into()
}

#[test]
fn a_large_tensor_becomes_its_bytes_and_the_rest_stays() {
    let rows = 20_000;
    let text = body("FP32", rows, &data(rows, |n| format!("{n}.5")));
    let (body, raw) = read(&text, &Bytes::new()).unwrap().unwrap();
    assert_eq!(raw.len(), rows * 2 * 4);
    let at = |n: usize| f32::from_le_bytes(raw[4 * n..4 * n + 4].try_into().unwrap());
    assert!((0..2 * rows).all(|n| at(n) == n as f32 + 0.5));
    assert_eq!(body["id"], "7");
    let inputs = &body["inputs"];
    assert_eq!(inputs[0]["parameters"]["binary_data_size"], raw.len());
    assert!(inputs[0].get("data").is_none());
    assert_eq!(inputs[1]["data"], json!([1]));
}

#[test]
fn every_type_is_read_as_its_tree_is() {
    let rows = 30_000;
    for (datatype, width) in [
        ("BOOL", 1),
        ("INT8", 1),
        ("UINT8", 1),
        ("INT16", 2),
        ("UINT16", 2),
        ("FP16", 2),
        ("BF16", 2),
        ("INT32", 4),
        ("UINT32", 4),
        ("INT64", 8),
        ("UINT64", 8),
        ("FP64", 8),
    ] {
        let value = |n: usize| match datatype {
            "BOOL" => n.is_multiple_of(2).to_string(),
            _ => (n % 100).to_string(),
        };
        let (_, raw) = read(&body(datatype, rows, &data(rows, value)), &Bytes::new())
            .unwrap()
            .unwrap();
        assert_eq!(raw.len(), 2 * rows * width, "{datatype}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_row() {
    let rows = 30_000;
    for (datatype, value, sign) in [
        ("FP32", "null", "input 'x', row 3: must be a number"),
        ("FP32", "true", "must be a number"),
        ("FP32", "{}", "must be a number"),
        ("INT8", "128", "must be a whole number of type Int8"),
        ("INT64", "1.5", "must be a whole number of type Int64"),
        ("UINT64", "-1", "must be a whole number of type UInt64"),
        ("BOOL", "1", "must be true or false"),
    ] {
        let good = if datatype == "BOOL" { "true" } else { "1" };
        let value = |n: usize| if n == 6 { value } else { good }.to_owned();
        let text = body(datatype, rows, &data(rows, value));
        let error = read(&text, &Bytes::new()).unwrap_err().message;
        assert!(error.contains(sign), "{error}");
    }
    let text = body("INT8", rows + 1, &data(rows, |_| "1".to_owned()));
    let error = read(&text, &Bytes::new()).unwrap_err().message;
    assert!(error.contains("has 60000 values"), "{error}");
}

#[test]
fn bytes_that_came_stay_in_the_order_of_their_inputs() {
    let rows = 30_000;
    let large = data(rows, |_| "1".to_owned());
    let binary = |name: &str, size: usize| {
        format!(
            r#"{{"name":"{name}","datatype":"INT8","shape":[{size}],
                "parameters":{{"binary_data_size":{size}}}}}"#
        )
    };
    let text = format!(
        r#"{{"inputs":[{},{{"name":"x","datatype":"INT8","shape":[{rows},2],
            "parameters":{{"content_type":"np"}},"data":{large}}},{}]}}"#,
        binary("a", 2),
        binary("b", 3)
    );
    let raw = Bytes::from_static(&[7, 7, 9, 9, 9]);
    let (body, raw) = read(&text.clone().into(), &raw).unwrap().unwrap();
    assert_eq!(raw.len(), 2 * rows + 5);
    assert_eq!(
        (&raw[..3], &raw[raw.len() - 4..]),
        (&[7, 7, 1][..], &[1, 9, 9, 9][..])
    );
    assert_eq!(body["inputs"][1]["parameters"]["content_type"], "np");
    // The tree parser returns the error for too few values.
    assert!(
        read(&text.into(), &Bytes::from_static(&[7]))
            .unwrap()
            .is_none()
    );
}

#[test]
fn what_is_small_base64_or_malformed_is_left_to_trees() {
    let texts = format!("[{}\"a\"]", "\"a\",".repeat(30_000));
    let coded = body("BYTES", 1, &texts).to_vec();
    let coded = String::from_utf8(coded).unwrap();
    let coded = coded.replace(
        "\"data\":[\"",
        "\"parameters\":{\"content_type\":\"base64\"},\"data\":[\"",
    );
    let long = " ".repeat(LARGE);
    for text in [
        "{}".into(),
        coded.into(),
        body("FP32", 1, &texts),
        body("FP99", 1, &data(30_000, |n| n.to_string())),
        format!("{long}[]").into(),
        format!("{long}{{\"inputs\":3}}").into(),
        format!("{long}{{\"inputs\":[3]}}").into(),
        format!("{long}{{\"inputs\":[").into(),
    ] {
        assert!(read(&text, &Bytes::new()).unwrap().is_none());
    }
}

#[test]
fn a_large_tensor_of_texts_becomes_lengths_and_bytes() {
    let rows = 10_000;
    let texts = data(rows, |n| format!("\"\\u00e9{}\"", n % 10));
    let (text, mut share) = (body("BYTES", rows, &texts), Intake::default().share());
    let (body, raw) = super::read(&text, &Bytes::new(), &mut share)
        .unwrap()
        .unwrap();
    assert_eq!(
        body["inputs"][0]["parameters"]["binary_data_size"],
        raw.len()
    );
    assert!(body["inputs"][0].get("data").is_none());
    assert_eq!(raw.len(), 2 * rows * 7);
    assert_eq!(&raw[7..14], b"\x03\0\0\0\xc3\xa91");
    // Only the small parts are trees.
    assert!(share.bytes() < 16 << 10, "{}", share.bytes());
    let wrong = data(rows, |n| if n == 6 { "1" } else { "\"\"" }.to_owned());
    let error = read(&self::body("BYTES", rows, &wrong), &Bytes::new());
    let error = error.unwrap_err().message;
    assert!(error.contains("row 3: must be a string"), "{error}");
}

#[test]
fn the_memory_of_trees_is_limited_beside_large_tensors() {
    let large = data(4_000, |_| "1".to_owned());
    let numbers = format!(r#"{{"name":"x","datatype":"INT8","shape":[4000,2],"data":{large}}}"#);
    for (datatype, element) in [("BYTES", "{\"a\":1},"), ("FP32", "\"\","), ("ODD", "1,")] {
        let dense = format!("[{}1]", element.repeat(3 << 20));
        let dense = format!(r#"{{"name":"y","datatype":"{datatype}","shape":[1],"data":{dense}}}"#);
        let text: Bytes = format!(r#"{{"inputs":[{numbers},{dense}]}}"#).into();
        let error = read(&text, &Bytes::new()).unwrap_err();
        let expected = match datatype {
            "BYTES" => ErrorCode::InvalidInput,
            _ => ErrorCode::TooLarge,
        };
        assert_eq!(error.code, expected, "{datatype}: {error}");
    }
}
