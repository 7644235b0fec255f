//! Servers that stream where rows are expected.

use super::*;

#[tokio::test]
async fn a_stream_is_no_answer_to_rows() {
    let head = head("200 OK", "text/event-stream");
    let server = serve_each(vec![vec![Act::Send(
        [head, b"data: {}\n\n".to_vec()].concat(),
    )]])
    .await;
    let spec = spec(
        &server,
        ProviderName::from_static("openai"),
        "/v1/embeddings",
        &[],
    );
    let model = load(spec, config()).await.unwrap();
    let refused = ask(&model, vec![column("text", &["a"])]).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code, ErrorCode::UpstreamFailed);
    let told = "with a stream instead of one JSON answer";
    assert!(refused.message.contains(told), "{refused}");
}
