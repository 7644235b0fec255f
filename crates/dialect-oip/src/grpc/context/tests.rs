use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Option<Duration> {
    let value = HeaderValue::from_str(text).ok()?;
    call_timeout(&HeaderMap::from_iter([(TIMEOUT, value)])).ok()?
}

#[test]
fn a_timeout_is_digits_and_a_unit() {
    assert_eq!(read("5S"), Some(Duration::from_secs(5)));
    assert_eq!(read("250m"), Some(Duration::from_millis(250)));
    assert_eq!(
        read("99999999H"),
        Some(Duration::from_secs(99_999_999 * 3_600))
    );
    for bad in ["", "S", "5", "5s", "-5S", "123456789S", "5 S", "+5S"] {
        assert_eq!(read(bad), None, "{bad}");
    }
    for bad in ["abc", "-1S", "99999999999S", ""] {
        let headers = HeaderMap::from_iter([(TIMEOUT, HeaderValue::from_static(bad))]);
        let error = call_timeout(&headers).unwrap_err();
        assert!(error.message.contains("'grpc-timeout'"), "{error}");
    }
    assert_eq!(call_timeout(&HeaderMap::new()).unwrap(), None);
}

#[test]
fn only_grpc_is_grpc() {
    let given = |value: &'static str| {
        let value = HeaderValue::from_static(value);
        is_grpc(&HeaderMap::from_iter([(header::CONTENT_TYPE, value)]))
    };
    assert!(given("application/grpc") && given("application/grpc+proto"));
    assert!(!given("application/grpc-web") && !given("text/plain"));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_does_not_arrive_is_given_up() {
    let endless = futures::stream::pending::<Result<bytes::Bytes, volley_http_edge::axum::Error>>();
    let mut late = in_time(Body::from_stream(endless), Duration::from_secs(1)).into_data_stream();
    assert!(late.next().await.unwrap().is_err());
    let mut whole = in_time(Body::from("x"), Duration::from_secs(1)).into_data_stream();
    assert_eq!(whole.next().await.unwrap().unwrap(), "x");
    assert!(whole.next().await.is_none());
}

proptest! {
    #[test]
    fn any_timeout_is_read_or_refused(text in "\\PC{0,12}|[0-9]{0,9}[HMSmun]?") {
        let _ = read(&text);
    }
}
