use proptest::prelude::*;

use super::*;

fn input(name: &str, datatype: &str, size: usize) -> Value {
    json!({
        "name": name, "datatype": datatype, "shape": [1],
        "parameters": { "binary_data_size": size },
    })
}

fn body(inputs: &[Value]) -> Map<String, Value> {
    Map::from_iter([("inputs".to_owned(), json!(inputs))])
}

#[test]
fn texts_and_parameters_come_in_binary() {
    let inputs = [
        input("text_input", "BYTES", 7),
        input("max_tokens", "INT32", 4),
    ];
    let raw = b"\x03\0\0\0f\xc3\xbc\x0c\0\0\0";
    let told = told(body(&inputs), Bytes::from_static(raw)).unwrap();
    assert_eq!(told["inputs"][0]["data"], json!(["f\u{fc}"]));
    assert_eq!(told["inputs"][1]["data"], json!([12]));
    let whole = text("f\u{fc}".as_bytes()).unwrap();
    assert_eq!(whole["inputs"][0]["data"], json!(["f\u{fc}"]));
}

#[test]
fn what_is_cut_longer_or_twice_is_refused() {
    let text = |size| body(&[input("text_input", "BYTES", size)]);
    for (given, raw) in [
        (text(5), &b"\x03\0\0\0f"[..]),
        (text(5), b"\x01\0\0\0"),
        (text(5), b"\x01\0\0\0ff"),
        (text(5), b"\x01\0\0\0\xff"),
        (body(&[input("x", "FP32", 5)]), b"12345"),
        (body(&[input("x", "BF16", 2)]), b"12"),
        (body(&[]), b"1"),
    ] {
        assert!(told(given, Bytes::from_static(raw)).is_err(), "{raw:?}");
    }
    let mut both = input("text_input", "BYTES", 5);
    both["data"] = json!(["f"]);
    let raw = Bytes::from_static(b"\x01\0\0\0f");
    assert!(told(body(&[both]), raw).is_err());
    assert!(super::text(b"\xff").is_err());
    let many = vec![0; 4 * (MAX_TEXTS + 1)];
    let error = told(
        body(&[input("text_input", "BYTES", many.len())]),
        many.into(),
    );
    assert!(error.unwrap_err().message.contains("send fewer at once"));
}

proptest! {
    #[test]
    fn any_bytes_are_told_or_refused(
        raw in proptest::collection::vec(any::<u8>(), 0..40),
        size in 0..40_usize,
        datatype in "BYTES|BOOL|INT64|FP64|BF16|",
    ) {
        let _ = told(body(&[input("x", &datatype, size)]), raw.into());
    }
}
