use proptest::prelude::*;
use volley_http_edge::axum::body::Body;
use volley_types::Intake;

use super::*;

async fn lines(pieces: Vec<Vec<u8>>, limit: usize) -> Result<Vec<Value>, PredictError> {
    lines_of(pieces, limit, &Intake::default()).await
}

async fn lines_of(
    pieces: Vec<Vec<u8>>,
    limit: usize,
    intake: &Intake,
) -> Result<Vec<Value>, PredictError> {
    let pieces = pieces.into_iter().map(Ok::<_, std::io::Error>);
    let body = Body::from_stream(stream::iter(pieces));
    let mut lines = Lines::new(Pieces::new(body, intake.share()), limit, false);
    let mut all = Vec::new();
    while let Some((_, rows)) = lines.next().await? {
        all.extend(rows.into_iter().map(|row| match row {
            Line::Tree(row) => row,
            Line::Text(row) => serde_json::from_slice(&row).unwrap(),
        }));
    }
    Ok(all)
}

proptest! {
    #[test]
    fn lines_are_the_same_wherever_a_body_is_cut(
        values in proptest::collection::vec("[a-z\u{e9}]{0,12}", 0..20),
        cut in 1..9_usize,
        ends in any::<bool>(),
    ) {
        let mut text: String = values.iter().map(|value| format!("{{\"a\":\"{value}\"}}\r\n\n")).collect();
        if !ends {
            text.truncate(text.trim_end().len());
        }
        let pieces = text.as_bytes().chunks(cut).map(<[u8]>::to_vec).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = runtime.block_on(lines(pieces, 64)).unwrap();
        let expected: Vec<_> = values.iter().map(|value| serde_json::json!({ "a": value })).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn any_bytes_are_rows_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        if let Err(error) = runtime.block_on(lines(vec![bytes], 64)) {
            prop_assert!(error.code.http_status() < 500);
        }
    }
}

#[tokio::test]
async fn a_line_without_an_end_is_refused() {
    let endless = vec![vec![b'1'; 40]; 4];
    let refused = lines(endless, 64).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
}

#[tokio::test]
async fn lines_are_counted_while_they_are_held() {
    let line = || b"{\"a\":\"0123456789012345678901234567890123456789\"}\n".to_vec();
    let intake = Intake::new(2_000);
    let many = std::iter::repeat_with(line).take(100).collect();
    assert_eq!(lines_of(many, 4_096, &intake).await.unwrap().len(), 100);
    let together = vec![line().repeat(100)];
    let refused = lines_of(together, 8_192, &intake).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::TooLarge);
    let mut other = intake.share();
    other.grow(1_990).unwrap();
    let refused = lines_of(vec![line()], 4_096, &intake).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Overloaded);
}

#[test]
fn prompts_and_conversations_may_be_mixed() {
    let signature = Signature::generation();
    let rows = [
        serde_json::json!({ "prompt": "a" }),
        serde_json::json!({ "messages": [{ "role": "user", "content": "b" }] }),
    ];
    let batch = batch_of(&rows, &signature).unwrap();
    assert_eq!(batch.num_rows(), 2);
    assert_eq!(batch.schema(), signature.input);
    for bad in [
        serde_json::json!({}),
        serde_json::json!("a"),
        serde_json::json!({ "prompt": 1 }),
        serde_json::json!({ "prompt": "a", "temperature": 1 }),
        serde_json::json!({ "messages": [] }),
    ] {
        assert!(batch_of(&[bad], &signature).is_err());
    }
}
