//! The events of `_predict/stream`, byte for byte as the plugin writes them.

use arrow_array::RecordBatch;
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};
use volley_types::{Citation, GenerationRow, PredictError};

use crate::answer::failure;
use crate::sse::{Events, json_string};
use crate::{citations, error};

const HEAD: &[u8] =
    br#"data: {"inference_results":[{"output":[{"name":"response","dataAsMap":{"content":"#;
const MORE: &[u8] = b",\"is_last\":false}}]}]}\n\n";
const LAST: &[u8] = b"data: {\"inference_results\":[{\"output\":[{\"name\":\"response\",\"dataAsMap\":{\"content\":\"\",\"is_last\":true}}]}]}\n\n";

/// Writes one event for each row with text or tool calls, and one for the end.
#[derive(Debug, Default)]
pub(crate) struct OpenSearchEvents {
    finished: bool,
}

impl Events for OpenSearchEvents {
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError> {
        for row in GenerationRow::rows(batch)? {
            failure(&row)?;
            // The dialect has no field for tool calls: it carries them as text.
            for content in [row.text(), row.tool_calls()].into_iter().flatten() {
                if !content.is_empty() {
                    content_event(content, out);
                }
            }
            let cited = citations::of(&row);
            if !cited.is_empty() {
                let told: Vec<_> = cited.iter().map(Citation::value).collect();
                let told = format!("\"\",\"citations\":{}", Value::from(told));
                out.put_slice(HEAD);
                out.put_slice(told.as_bytes());
                out.put_slice(MORE);
            }
            if row.last() {
                out.put_slice(LAST);
                self.finished = true;
                break;
            }
        }
        Ok(())
    }

    fn finished(&self) -> bool {
        self.finished
    }

    fn error(&mut self, error: &PredictError, out: &mut BytesMut) {
        let body = json!({
            "error": error.message,
            "type": error::kind(error.code),
            "code": error.code.as_str(),
            "status": error.code.http_status(),
        });
        out.put_slice(b"data: ");
        out.put_slice(body.to_string().as_bytes());
        out.put_slice(b"\n\n");
    }
}

fn content_event(content: &str, out: &mut BytesMut) {
    out.reserve(HEAD.len() + content.len() + 2 + MORE.len());
    out.put_slice(HEAD);
    json_string(content, out);
    out.put_slice(MORE);
}

#[cfg(test)]
mod tests {
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
}
