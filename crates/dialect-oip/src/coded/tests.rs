use serde_json::json;
use volley_types::signature::with_octets;

use super::*;

fn read(field: &Field, input: &Value) -> Result<Option<ArrayRef>, String> {
    let texts: Vec<&Value> = input["data"].as_array().unwrap().iter().collect();
    bytes_of_texts(input, field, field, &texts)
}

#[test]
fn base64_is_any_bytes_where_the_model_takes_them() {
    let text = Field::new("x", DataType::Utf8, false);
    let any = with_octets(text.clone());
    let coded = |data: Value| json!({ "parameters": { "content_type": "base64" }, "data": data });
    let told = coded(json!(["/wA=", "aGk="]));
    let values = read(&any, &told).unwrap().unwrap();
    let (back, is_coded) = json_of_texts(&[values], false).unwrap();
    assert_eq!((json!(back), is_coded), (told["data"].clone(), true));
    assert!(
        read(&text, &told)
            .unwrap_err()
            .contains("element 0 is not UTF-8")
    );
    assert!(
        read(&any, &coded(json!(["?"])))
            .unwrap_err()
            .contains("not base64")
    );
    assert!(
        read(&any, &coded(json!([1])))
            .unwrap_err()
            .contains("string")
    );
    let plain = read(&text, &coded(json!(["aGk="]))).unwrap().unwrap();
    assert!(json_of_texts(std::slice::from_ref(&plain), false).is_none());
    assert_eq!(
        json_of_texts(&[plain], true).unwrap(),
        (vec![json!("aGk=")], true)
    );
    // A text that starts with the mark is encoded like other bytes.
    let marked = json!({ "data": ["\u{10FFFE}a"] });
    let values = read(&any, &marked).unwrap().unwrap();
    let (back, is_coded) = json_of_texts(&[values], false).unwrap();
    assert_eq!((json!(back), is_coded), (marked["data"].clone(), false));
    assert!(read(&any, &json!({ "data": ["hi"] })).unwrap().is_none());
}
