//! Reads answers of servers that embed or rerank. Pure.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_types::Usage;

use crate::fault::json_position;
use crate::rows::google::Google;

/// The values of one call's rows, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct RowValues {
    /// A vector for each row, or a list with its score.
    pub values: Vec<Vec<f32>>,
    /// Tokens of all rows together, if the server reports them.
    total: Option<u32>,
    /// The other fields of the answer, if they are requested.
    pub details: Option<Value>,
}

impl RowValues {
    /// Usage of the call, if the server reports it.
    pub fn usage(&self) -> Option<Usage> {
        let total = self.total.filter(|total| *total != 0);
        total.map(|prompt_tokens| Usage {
            prompt_tokens,
            ..Usage::default()
        })
    }

    /// The tokens of each row, if known. Servers report the sum, which is divided equally.
    pub fn tokens(&self) -> impl Iterator<Item = Option<u32>> + '_ {
        let rows = u32::try_from(self.values.len()).unwrap_or(u32::MAX).max(1);
        (0..rows).take(self.values.len()).map(move |row| {
            let total = self.total?;
            Some(total / rows + u32::from(row < total % rows))
        })
    }
}

/// How an answer is read. Each variant is the format of one or more OpenSearch functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostProcess {
    /// `data`, a list of objects with `embedding` and `index`.
    OpenAi,
    /// `embeddings`, a list of vectors.
    List,
    /// `embeddings.float`.
    Typed,
    /// `embedding`, one vector.
    One,
    /// `embeddingsByType.float`, one vector.
    OneTyped,
    /// The body is a list of vectors.
    Bare,
    /// `results`, a list of objects with `index` and a score.
    Results,
    /// The body is a list like `results`, or a list of scores.
    BareScores,
    /// A format of Google.
    Google(Google),
}

impl PostProcess {
    /// All formats.
    pub const ALL: [Self; 11] = [
        Self::OpenAi,
        Self::List,
        Self::Typed,
        Self::One,
        Self::OneTyped,
        Self::Bare,
        Self::Results,
        Self::BareScores,
        Self::Google(Google::Batch),
        Self::Google(Google::One),
        Self::Google(Google::Predict),
    ];

    /// The format of an OpenSearch function.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name.strip_prefix("connector.post_process.")? {
            "openai.embedding" => Self::OpenAi,
            "cohere.embedding" => Self::List,
            "cohere_v2.embedding.float" => Self::Typed,
            "bedrock.embedding" => Self::One,
            "bedrock_v2.embedding.float" => Self::OneTyped,
            "default.embedding" => Self::Bare,
            "cohere.rerank" | "bedrock.rerank" => Self::Results,
            "default.rerank" => Self::BareScores,
            _ => return None,
        })
    }

    /// Whether the answer has scores instead of vectors.
    pub fn is_rerank(self) -> bool {
        matches!(self, Self::Results | Self::BareScores)
    }

    /// Whether the request must name the number format of the vectors.
    pub fn wants_floats(self) -> bool {
        self == Self::Typed
    }

    /// Reads the answer to `count` rows.
    ///
    /// # Errors
    /// A description of what is malformed, or the wrong number of values.
    pub fn read(self, body: &[u8], count: usize) -> Result<RowValues, String> {
        if matches!(self, Self::Bare | Self::BareScores) {
            let values = self.bare(body, count)?;
            return complete(values, count, None);
        }
        if let Self::Google(google) = self {
            let (values, total) = google.read(body)?;
            return complete(values, count, total);
        }
        let body: Body<'_> = parse(body)?;
        let total = body.tokens();
        let values = match self {
            Self::OpenAi => {
                let data = body.data.ok_or("no 'data'")?;
                let placed = data.into_iter().enumerate();
                let placed = placed.map(|(at, datum)| (datum.index.unwrap_or(at), datum.embedding));
                scattered(placed, count)?
            }
            Self::List => parse(raw(body.embeddings, "embeddings")?)?,
            Self::Typed => {
                let mut kinds: BTreeMap<String, &RawValue> =
                    parse(raw(body.embeddings, "embeddings")?)?;
                let floats = kinds.remove("float").ok_or("no 'embeddings.float'")?;
                parse(floats.get().as_bytes())?
            }
            Self::One => vec![body.embedding.ok_or("no 'embedding'")?],
            Self::OneTyped => {
                let mut kinds: BTreeMap<String, &RawValue> =
                    parse(raw(body.by_type, "embeddingsByType")?)?;
                let floats = kinds.remove("float").ok_or("no 'embeddingsByType.float'")?;
                vec![parse(floats.get().as_bytes())?]
            }
            _ => {
                let results = body.results.ok_or("no 'results'")?;
                scattered(results.into_iter().map(ScoredRow::placed), count)?
            }
        };
        complete(values, count, total)
    }

    /// Reads the fields of an answer besides its values; `None` if the answer is no object. `format`
    /// names the dialect that they belong to.
    pub fn details(format: &str, body: &[u8]) -> Option<Value> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).ok()?;
        let others = fields
            .into_iter()
            .filter(|(name, _)| !OF_VALUES.contains(&name.as_str()));
        let others = others.map(|(name, raw)| Some((name, serde_json::from_str(raw.get()).ok()?)));
        let others: Map<String, Value> = others.collect::<Option<_>>()?;
        Some(json!({ "format": format, "fields": others }))
    }

    fn bare(self, body: &[u8], count: usize) -> Result<Vec<Vec<f32>>, String> {
        if self == Self::Bare {
            return parse(body);
        }
        if let Ok(scores) = serde_json::from_slice::<Vec<f32>>(body) {
            return Ok(scores.into_iter().map(|score| vec![score]).collect());
        }
        let results: Vec<ScoredRow> = parse(body)?;
        scattered(results.into_iter().map(ScoredRow::placed), count)
    }
}

/// Fields with the values of rows, or with the request's texts.
const OF_VALUES: [&str; 7] = [
    "data",
    "embedding",
    "embeddings",
    "embeddingsByType",
    "predictions",
    "results",
    "texts",
];

fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(json).map_err(|error| json_position(&error))
}

fn raw<'a>(raw: Option<&'a RawValue>, name: &str) -> Result<&'a [u8], String> {
    let raw = raw.ok_or_else(|| format!("no '{name}'"))?;
    Ok(raw.get().as_bytes())
}

/// Orders values by their row index. Each row needs a value.
fn scattered(
    placed: impl Iterator<Item = (usize, Vec<f32>)>,
    count: usize,
) -> Result<Vec<Vec<f32>>, String> {
    let mut values = vec![None; count];
    for (at, value) in placed {
        *values.get_mut(at).ok_or("an index is out of range")? = Some(value);
    }
    let whole: Option<Vec<_>> = values.into_iter().collect();
    whole.ok_or_else(|| "not all rows have an answer".to_owned())
}

fn complete(values: Vec<Vec<f32>>, count: usize, total: Option<u32>) -> Result<RowValues, String> {
    if values.len() != count || values.iter().any(Vec::is_empty) {
        return Err(format!("{} answers to {count} rows", values.len()));
    }
    Ok(RowValues {
        values,
        total,
        details: None,
    })
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(default)]
    data: Option<Vec<Datum>>,
    #[serde(borrow, default)]
    embeddings: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "embeddingsByType")]
    by_type: Option<&'a RawValue>,
    #[serde(default)]
    embedding: Option<Vec<f32>>,
    #[serde(default)]
    results: Option<Vec<ScoredRow>>,
    #[serde(default)]
    usage: Option<TokenCounts>,
    #[serde(default)]
    meta: Option<Meta>,
    /// Amazon Titan's token count.
    #[serde(default, rename = "inputTextTokenCount")]
    input_text: Option<u32>,
    /// Ollama's token count.
    #[serde(default)]
    prompt_eval_count: Option<u32>,
}

impl Body<'_> {
    fn tokens(&self) -> Option<u32> {
        let used = self.usage.as_ref();
        let told = used.and_then(|used| used.prompt_tokens.or(used.total_tokens));
        let meta = self.meta.as_ref();
        let counted = || {
            let meta = meta?;
            let counts = [&meta.tokens, &meta.billed_units].into_iter().flatten();
            counts.filter_map(|counts| counts.input_tokens).next()
        };
        // A saturating conversion.
        let told = told.or_else(|| counted().map(|tokens| tokens as u32));
        told.or(self.input_text).or(self.prompt_eval_count)
    }
}

#[derive(Deserialize)]
struct Datum {
    #[serde(default)]
    index: Option<usize>,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct ScoredRow {
    index: usize,
    #[serde(alias = "relevance_score", alias = "relevanceScore")]
    score: f32,
}

impl ScoredRow {
    fn placed(self) -> (usize, Vec<f32>) {
        (self.index, vec![self.score])
    }
}

#[derive(Deserialize)]
struct TokenCounts {
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    total_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    tokens: Option<BilledUnits>,
    #[serde(default)]
    billed_units: Option<BilledUnits>,
}

#[derive(Deserialize)]
struct BilledUnits {
    #[serde(default)]
    input_tokens: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(post: PostProcess, body: &str, count: usize) -> Result<Vec<Vec<f32>>, String> {
        post.read(body.as_bytes(), count).map(|read| read.values)
    }

    #[test]
    fn every_form_is_read_in_the_order_of_the_rows() {
        let two = || Ok(vec![vec![1.0, 2.0], vec![3.0, 4.0]]);
        let openai = r#"{"data":[{"index":1,"embedding":[3,4]},{"index":0,"embedding":[1,2]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        assert_eq!(read(PostProcess::OpenAi, openai, 2), two());
        let tokens: Vec<_> = PostProcess::OpenAi
            .read(openai.as_bytes(), 2)
            .unwrap()
            .tokens()
            .collect();
        assert_eq!(tokens, [Some(3), Some(2)], "in equal parts");
        assert_eq!(
            read(PostProcess::List, r#"{"embeddings":[[1,2],[3,4]]}"#, 2),
            two()
        );
        let typed = r#"{"embeddings":{"float":[[1,2],[3,4]]},"meta":{"billed_units":{"input_tokens":4.0}}}"#;
        assert_eq!(read(PostProcess::Typed, typed, 2), two());
        assert_eq!(
            PostProcess::Typed.read(typed.as_bytes(), 2).unwrap().total,
            Some(4)
        );
        assert_eq!(read(PostProcess::Bare, "[[1,2],[3,4]]", 2), two());
        let one = r#"{"embedding":[1,2],"inputTextTokenCount":3}"#;
        assert_eq!(read(PostProcess::One, one, 1), Ok(vec![vec![1.0, 2.0]]));
        let one = r#"{"embeddingsByType":{"float":[1,2]}}"#;
        assert_eq!(
            read(PostProcess::OneTyped, one, 1),
            Ok(vec![vec![1.0, 2.0]])
        );
        let scores = Ok(vec![vec![0.5], vec![0.25]]);
        for name in ["relevance_score", "relevanceScore", "score"] {
            let results = format!(r#"[{{"index":1,"{name}":0.25}},{{"index":0,"{name}":0.5}}]"#);
            assert_eq!(read(PostProcess::BareScores, &results, 2), scores, "{name}");
            let results = format!(r#"{{"results":{results}}}"#);
            assert_eq!(read(PostProcess::Results, &results, 2), scores, "{name}");
        }
        assert_eq!(read(PostProcess::BareScores, "[0.5,0.25]", 2), scores);
    }

    #[test]
    fn a_count_that_no_server_gave_is_unknown_and_the_rest_of_an_answer_is_kept() {
        let bare = PostProcess::List
            .read(br#"{"embeddings":[[1]]}"#, 1)
            .unwrap();
        assert_eq!(bare.tokens().collect::<Vec<_>>(), [None]);
        assert_eq!(bare.usage(), None);
        let zero = br#"{"embeddings":[[1]],"prompt_eval_count":0}"#;
        let zero = PostProcess::List.read(zero, 1).unwrap();
        assert_eq!(zero.tokens().collect::<Vec<_>>(), [Some(0)]);
        let ranked = r#"{"results":[],"meta":{"billed_units":{"search_units":1}},"newest":[1]}"#;
        let kept = PostProcess::details("cohere", ranked.as_bytes()).unwrap();
        let fields = json!({ "meta": { "billed_units": { "search_units": 1 } }, "newest": [1] });
        assert_eq!(kept, json!({ "format": "cohere", "fields": fields }));
        assert_eq!(PostProcess::details("", b"[[1]]"), None);
    }

    #[test]
    fn an_answer_that_is_not_for_these_rows_is_none() {
        for (post, body) in [
            (
                PostProcess::OpenAi,
                r#"{"data":[{"index":0,"embedding":[1]}]}"#,
            ),
            (
                PostProcess::OpenAi,
                r#"{"data":[{"index":9,"embedding":[1]}]}"#,
            ),
            (PostProcess::OpenAi, r#"{"error":"no"}"#),
            (PostProcess::List, r#"{"embeddings":[[1]]}"#),
            (PostProcess::List, r#"{"embeddings":[[1],[]]}"#),
            (PostProcess::Typed, r#"{"embeddings":{"int8":[[1],[2]]}}"#),
            (
                PostProcess::Results,
                r#"{"results":[{"index":0,"score":1},{"index":0,"score":1}]}"#,
            ),
            (PostProcess::Bare, "{}"),
        ] {
            assert!(read(post, body, 2).is_err(), "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_body_is_survived(body in r#"[\[\]{}":,0-9a-z]{0,40}"#, which in 0..11_usize) {
            let _ = PostProcess::ALL[which].read(body.as_bytes(), 2);
        }
    }
}
