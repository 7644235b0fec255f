use proptest::prelude::*;
use volley_types::{GenerationChunk, GenerationChunks};

use super::*;

fn written(chunks: &[GenerationChunk]) -> String {
    let mut rows = GenerationChunks::default();
    for chunk in chunks {
        rows.push(chunk);
    }
    let mut out = BytesMut::new();
    OpenSearchEvents::default()
        .batch(&rows.finish(), &mut out)
        .unwrap();
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn the_bytes_are_the_plugins() {
    let sure = GenerationChunk {
        text: Some("Sure".to_owned()),
        ..GenerationChunk::default()
    };
    let end = GenerationChunk {
        last: true,
        ..GenerationChunk::default()
    };
    assert_eq!(
        written(&[sure, end]),
        "data: {\"inference_results\":[{\"output\":[{\"name\":\"response\",\"dataAsMap\":{\"content\":\"Sure\",\"is_last\":false}}]}]}\n\n\
         data: {\"inference_results\":[{\"output\":[{\"name\":\"response\",\"dataAsMap\":{\"content\":\"\",\"is_last\":true}}]}]}\n\n"
    );
}

#[test]
fn an_error_event_is_valid_json_whatever_the_message() {
    let mut out = BytesMut::new();
    OpenSearchEvents::default().error(
        &PredictError::invalid("a \"quoted\" \\ back\nslash"),
        &mut out,
    );
    let text = String::from_utf8(out.to_vec()).unwrap();
    let body = text
        .strip_prefix("data: ")
        .unwrap()
        .strip_suffix("\n\n")
        .unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["error"], "a \"quoted\" \\ back\nslash");
    assert_eq!(body["status"], 400);
}

proptest! {
    #[test]
    fn any_text_survives_its_event(text in ".{1,60}") {
        let chunk = GenerationChunk { text: Some(text.clone()), ..GenerationChunk::default() };
        let event = written(&[chunk]);
        prop_assert_eq!(event.matches('\n').count(), 2, "one event, two line ends");
        let body: serde_json::Value = serde_json::from_str(event.trim_start_matches("data: ")).unwrap();
        prop_assert_eq!(&body["inference_results"][0]["output"][0]["dataAsMap"]["content"], &text);
    }
}
