//! Embedding requests and answers of the Gemini API and Vertex AI. Pure.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fault::json_position;
use crate::rows::group::RowGroup;

/// An embedding method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Google {
    /// `:batchEmbedContents`: a list of requests.
    Batch,
    /// `:embedContent`: one text.
    One,
    /// `:predict`: instances of a Vertex AI model.
    Predict,
}

impl Google {
    /// The method at the end of a URL.
    pub fn of_url(url: &str) -> Option<Self> {
        [
            (":batchEmbedContents", Self::Batch),
            (":embedContent", Self::One),
            (":predict", Self::Predict),
        ]
        .into_iter()
        .find_map(|(method, google)| url.ends_with(method).then_some(google))
    }

    /// Whether a call takes one text.
    pub fn is_single(self, model: &str) -> bool {
        // Gemini models at `:predict` accept one instance.
        self == Self::One || self == Self::Predict && model.starts_with("gemini-embedding")
    }

    /// Builds the body of a request from the fields under Google's names. A connector's fields
    /// that only other providers define are removed.
    pub fn body(self, model: &str, group: &RowGroup, fields: &Map<String, Value>) -> Value {
        let mut fields = fields.clone();
        for name in ["model", "user", "encoding_format", "input_type", "stream"] {
            fields.remove(name);
        }
        let task = fields.remove("taskType");
        let task = group
            .kind
            .as_deref()
            .map(|kind| task_of(kind).into())
            .or(task);
        match self {
            Self::Batch => {
                let name = model.trim_start_matches("models/");
                let requests = group.texts.iter().map(|text| {
                    let mut request = content(text, task.as_ref(), &fields);
                    request["model"] = format!("models/{name}").into();
                    request
                });
                json!({ "requests": requests.collect::<Vec<_>>() })
            }
            Self::One => content(&group.texts.concat(), task.as_ref(), &fields),
            Self::Predict => {
                let title = fields.remove("title");
                let instances = group.texts.iter().map(|text| {
                    let mut instance = json!({ "content": text });
                    for (name, value) in [("task_type", &task), ("title", &title)] {
                        if let Some(value) = value {
                            instance[name] = value.clone();
                        }
                    }
                    instance
                });
                let mut body = json!({ "instances": instances.collect::<Vec<_>>() });
                if !fields.is_empty() {
                    body["parameters"] = fields.into();
                }
                body
            }
        }
    }

    /// Reads the vectors of an answer and its token count, if it has one.
    ///
    /// # Errors
    /// A description of what is malformed.
    pub fn read(self, body: &[u8]) -> Result<(Vec<Vec<f32>>, Option<u32>), String> {
        let body: Body = serde_json::from_slice(body).map_err(|error| json_position(&error))?;
        let told = body.usage.and_then(|usage| usage.prompt_token_count);
        let found = match self {
            Self::Batch => body.embeddings.ok_or("no 'embeddings'")?,
            Self::One => vec![body.embedding.ok_or("no 'embedding'")?],
            Self::Predict => {
                let found = body.predictions.ok_or("no 'predictions'")?;
                found.into_iter().map(|found| found.embeddings).collect()
            }
        };
        let counted = found
            .iter()
            .filter_map(|vector| vector.statistics.as_ref()?.token_count);
        // A saturating conversion.
        let counted = counted.map(|tokens| tokens as u32);
        let counted = counted.reduce(u32::saturating_add);
        let vectors = found.into_iter().map(|vector| vector.values).collect();
        Ok((vectors, told.or(counted)))
    }
}

fn content(text: &str, task: Option<&Value>, fields: &Map<String, Value>) -> Value {
    let mut request = fields.clone();
    request.insert("content".to_owned(), json!({ "parts": [{ "text": text }] }));
    if let Some(task) = task {
        request.insert("taskType".to_owned(), task.clone());
    }
    Value::Object(request)
}

/// Maps the kinds of other providers to Google's task types. Other kinds are sent in upper case.
fn task_of(kind: &str) -> String {
    match kind {
        "query" | "search_query" => "RETRIEVAL_QUERY".to_owned(),
        "passage" | "document" | "search_document" => "RETRIEVAL_DOCUMENT".to_owned(),
        other => other.to_ascii_uppercase(),
    }
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    embeddings: Option<Vec<Vector>>,
    #[serde(default)]
    embedding: Option<Vector>,
    #[serde(default)]
    predictions: Option<Vec<Prediction>>,
    #[serde(default, rename = "usageMetadata")]
    usage: Option<TokenCounts>,
}

#[derive(Deserialize)]
struct Prediction {
    embeddings: Vector,
}

#[derive(Deserialize)]
struct Vector {
    values: Vec<f32>,
    #[serde(default)]
    statistics: Option<Statistics>,
}

#[derive(Deserialize)]
struct Statistics {
    #[serde(default)]
    token_count: Option<f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenCounts {
    #[serde(default)]
    prompt_token_count: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(texts: &[&str], kind: Option<&str>) -> RowGroup {
        RowGroup {
            query: None,
            kind: kind.map(str::to_owned),
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
            ..RowGroup::default()
        }
    }

    #[test]
    fn every_method_has_its_body() {
        let fields = json!({ "outputDimensionality": 2, "encoding_format": "float" });
        let fields = fields.as_object().unwrap();
        let body = |google: Google, texts: &[&str]| {
            google.body("models/e", &group(texts, Some("query")), fields)
        };
        let one = |text: &str| {
            json!({ "content": { "parts": [{ "text": text }] }, "taskType": "RETRIEVAL_QUERY",
                "outputDimensionality": 2 })
        };
        assert_eq!(body(Google::One, &["a"]), one("a"));
        let (mut a, mut b) = (one("a"), one("b"));
        (a["model"], b["model"]) = ("models/e".into(), "models/e".into());
        assert_eq!(
            body(Google::Batch, &["a", "b"]),
            json!({ "requests": [a, b] })
        );
        let expected = json!({
            "instances": [{ "content": "a", "task_type": "RETRIEVAL_QUERY" },
                { "content": "b", "task_type": "RETRIEVAL_QUERY" }],
            "parameters": { "outputDimensionality": 2 },
        });
        assert_eq!(body(Google::Predict, &["a", "b"]), expected);
        let plain = Google::Predict.body("e", &group(&["a"], None), &Map::new());
        assert_eq!(plain, json!({ "instances": [{ "content": "a" }] }));
        let given = json!({ "taskType": "CLUSTERING" });
        let given = Google::One.body("e", &group(&["a"], None), given.as_object().unwrap());
        assert_eq!(given["taskType"], "CLUSTERING");
    }

    #[test]
    fn every_method_has_its_answer() {
        let read = |google: Google, body: &str| google.read(body.as_bytes());
        let batch = r#"{"embeddings":[{"values":[1,2]},{"values":[3,4]}],"usageMetadata":{"promptTokenCount":5}}"#;
        let two = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        assert_eq!(read(Google::Batch, batch), Ok((two.clone(), Some(5))));
        let one = r#"{"embedding":{"values":[1,2]}}"#;
        assert_eq!(read(Google::One, one), Ok((vec![vec![1.0, 2.0]], None)));
        let predicted = r#"{"predictions":[{"embeddings":{"values":[1,2],"statistics":{"truncated":false,"token_count":3.0}}},{"embeddings":{"values":[3,4],"statistics":{"token_count":4}}}]}"#;
        assert_eq!(read(Google::Predict, predicted), Ok((two, Some(7))));
        for google in [Google::Batch, Google::One, Google::Predict] {
            assert!(read(google, r#"{"error":"no"}"#).is_err());
        }
    }
}
