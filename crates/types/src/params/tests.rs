use super::*;

fn one(value: ParamValue) -> Parameters {
    [("p".to_owned(), value)].into_iter().collect()
}

#[test]
fn numbers_read_the_same_however_they_were_sent() {
    for value in [
        ParamValue::Float(2.0),
        ParamValue::Int(2),
        ParamValue::Text("2".into()),
    ] {
        assert_eq!(one(value.clone()).float("p").unwrap(), Some(2.0));
        assert_eq!(one(value).unsigned("p").unwrap(), Some(2));
    }
    assert_eq!(Parameters::default().float("p").unwrap(), None);
    for value in [
        ParamValue::Bool(true),
        ParamValue::Int(1),
        ParamValue::Text(" true ".into()),
    ] {
        assert_eq!(one(value).boolean("p").unwrap(), Some(true));
    }
    let largest = ParamValue::Text(u64::MAX.to_string());
    assert_eq!(one(largest).unsigned("p").unwrap(), Some(u64::MAX));
}

#[test]
fn what_is_no_such_value_is_refused_by_name() {
    for value in [
        ParamValue::Text("hot".into()),
        ParamValue::Json("[1]".into()),
    ] {
        assert!(
            one(value.clone())
                .float("p")
                .unwrap_err()
                .message
                .contains("'p'")
        );
        assert!(one(value).unsigned("p").is_err());
    }
    assert!(one(ParamValue::Int(-1)).unsigned("p").is_err());
    assert!(one(ParamValue::Float(0.5)).unsigned("p").is_err());
    assert!(one(ParamValue::Text("NaN".into())).float("p").is_err());
    assert!(one(ParamValue::Text(String::new())).float("p").is_err());
    assert!(one(ParamValue::Float(1e300)).unsigned("p").is_err());
    assert!(
        one(ParamValue::Text("perhaps".into()))
            .boolean("p")
            .is_err()
    );
}

#[test]
fn strings_come_as_one_or_as_an_array() {
    assert_eq!(
        one(ParamValue::Text("a".into())).strings("p").unwrap(),
        ["a"]
    );
    assert_eq!(
        one(ParamValue::Json(r#"["a","b"]"#.into()))
            .strings("p")
            .unwrap(),
        ["a", "b"]
    );
    assert_eq!(
        one(ParamValue::Text(r#"["a","b"]"#.into()))
            .strings("p")
            .unwrap(),
        ["a", "b"]
    );
    assert!(one(ParamValue::Json("[1]".into())).strings("p").is_err());
}
