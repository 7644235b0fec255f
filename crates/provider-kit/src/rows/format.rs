//! Format of requests to servers that embed or rerank. OpenSearch's function names select it, or
//! else the URL. Pure.

use arrow_array::RecordBatch;
use serde_json::{Map, Value, json};
use volley_types::chat::text_at;
use volley_types::registry::ConnectorSpec;
use volley_types::signature::{INPUT_TYPE, QUERY, TEXT};
use volley_types::{ParamValue, PredictError, Task};

use crate::options::RequestOptions;
use crate::provider::Provider;
use crate::reserved::SIGNING;
use crate::rows::google::Google;
use crate::rows::group::RowGroup;
use crate::rows::parameters::{self, RowTable};
use crate::rows::post_process::PostProcess;
use crate::rows::pre_process::PreProcess;
use crate::template;
use crate::wire::placed;

const PRE: &str = "pre_process_function";
const POST: &str = "post_process_function";
/// OpenSearch's parameter for the number of texts in one call.
const STEP: &str = "input_docs_processed_step_size";
const DEFAULT_STEP: usize = 64;
const MAX_STEP: u64 = 2_048;
/// The default of Text Embeddings Inference for the number of texts in one call.
const TEI_STEP: usize = 32;

/// How rows are sent to one server, and how its answers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsFormat {
    pre: PreProcess,
    /// How the answer is read.
    pub post: PostProcess,
    /// Maximum number of rows in one call.
    pub step: usize,
}

impl RowsFormat {
    /// Determines the format of a connector's server; `None` if the server generates text.
    ///
    /// # Errors
    /// `InvalidInput` naming an unknown function, or both functions if they are for different
    /// tasks.
    pub fn of(
        provider: &Provider,
        connector: &ConnectorSpec,
    ) -> Result<Option<Self>, PredictError> {
        let text = |name: &str| match connector.parameters.get(name) {
            Some(ParamValue::Text(text)) => Some(text.trim()).filter(|text| !text.is_empty()),
            _ => None,
        };
        let (pre, post) = (text(PRE), text(POST));
        let told = (provider.rows)(connector).or_else(|| of_url(connector));
        if pre.is_none() && post.is_none() && told.is_none() {
            return Ok(None);
        }
        let beside = |name: &str, from: &str, to: &str| name.replacen(from, to, 1);
        let pre = match (pre, post) {
            (Some(pre), _) => {
                Some(PreProcess::of_name(pre).ok_or_else(|| unknown(PRE, pre, &PRE_NAMES))?)
            }
            (None, Some(post)) => {
                let provider = post.split(".float").next().unwrap_or(post);
                let provider = provider.replace("_v2", "");
                PreProcess::of_name(&beside(&provider, ".post_process.", ".pre_process."))
            }
            (None, None) => None,
        };
        let post = match (post, text(PRE)) {
            (Some(post), _) => {
                Some(PostProcess::of_name(post).ok_or_else(|| unknown(POST, post, &POST_NAMES))?)
            }
            (None, Some(pre)) => {
                PostProcess::of_name(&beside(pre, ".pre_process.", ".post_process."))
            }
            (None, None) => None,
        };
        let pre = pre.or(told.map(|told| told.0));
        let post = post.or(told.map(|told| told.1));
        let (pre, post) = pre
            .zip(post)
            .filter(|(pre, post)| pre.is_rerank() == post.is_rerank())
            .ok_or_else(|| {
                PredictError::invalid(format!(
                    "parameters '{PRE}' and '{POST}' do not match; set both, for the same task"
                ))
            })?;
        let step = connector.parameters.unsigned(STEP)?;
        let step = step.map(|step| usize::try_from(step.clamp(1, MAX_STEP)).unwrap_or(1));
        let step = match pre {
            PreProcess::InputText => 1,
            PreProcess::Google(google) if google.is_single(&connector.model) => 1,
            PreProcess::Inputs => step.unwrap_or(TEI_STEP),
            _ => step.unwrap_or(DEFAULT_STEP),
        };
        Ok(Some(Self { pre, post, step }))
    }

    /// The task of the server.
    pub fn task(&self) -> Task {
        match self.pre.is_rerank() {
            true => Task::Rerank,
            false => Task::Embed,
        }
    }

    /// Reads the fields of an answer besides its values, with the dialect of their format.
    pub fn details(&self, body: &[u8]) -> Option<Value> {
        let format = match (self.pre, self.post) {
            (PreProcess::Texts, _) | (_, PostProcess::Typed | PostProcess::Results) => "cohere",
            (_, PostProcess::OpenAi) => "openai",
            (_, PostProcess::List) => "ollama",
            _ => "",
        };
        PostProcess::details(format, body)
    }

    /// Builds the body of a request. With a template, the fields are its parameters.
    ///
    /// # Errors
    /// Those of [`template::fill`]; `InvalidInput` naming a parameter, or a kind of text, or token
    /// ids that the server does not support.
    pub fn body(
        &self,
        provider: &Provider,
        connector: &ConnectorSpec,
        group: &RowGroup,
        options: &RequestOptions,
    ) -> Result<Value, PredictError> {
        let (template, table) = (connector.request_body.as_deref(), self.table(provider));
        self.accepts(table, template, group)?;
        let mut fields = match template {
            Some(template) => {
                placed(template, options)?;
                options.fields.clone()
            }
            None => table.fields(options)?,
        };
        fields.remove("stream");
        // The route of a signed request names the model.
        if provider.signing_service.is_some() {
            fields.retain(|name, _| !SIGNING.contains(&name.as_str()));
        } else {
            fields.insert("model".to_owned(), connector.model.as_str().into());
        }
        if let (PreProcess::Google(google), None) = (self.pre, template) {
            return Ok(google.body(&connector.model, group, &fields));
        }
        self.fill(&mut fields, group, template.is_some())?;
        if self.post.wants_floats() && template.is_none() {
            fields
                .entry("embedding_types")
                .or_insert_with(|| json!(["float"]));
        }
        match template {
            Some(template) => template::fill(template, |name| fields.get(name).cloned()),
            None => Ok(Value::Object(fields)),
        }
    }

    /// The parameters that the server supports.
    fn table(&self, provider: &Provider) -> &'static RowTable {
        match (self.pre, self.post) {
            (PreProcess::Input, PostProcess::List) => &parameters::OLLAMA,
            (PreProcess::Input, _) if provider.name.as_str() == "mistral" => &parameters::MISTRAL,
            (PreProcess::Input, _) => &parameters::OPENAI,
            (PreProcess::Inputs, _) => &parameters::TEI,
            (PreProcess::Texts, PostProcess::List) if provider.signing_service.is_none() => {
                &parameters::COHERE_FIRST
            }
            (PreProcess::Texts, _) => &parameters::COHERE,
            (PreProcess::InputText, _) => &parameters::TITAN,
            (PreProcess::Documents, _) => &parameters::RERANK,
            (PreProcess::QueryTexts, _) => &parameters::TEI_RERANK,
            (PreProcess::Sources, _) => &parameters::BEDROCK_RERANK,
            (PreProcess::Google(Google::Predict), _) => &parameters::VERTEX,
            (PreProcess::Google(_), _) => &parameters::GEMINI,
        }
    }

    /// Checks that the server accepts the rows' token ids and kinds.
    fn accepts(
        &self,
        table: &RowTable,
        template: Option<&str>,
        group: &RowGroup,
    ) -> Result<(), PredictError> {
        // A list of vectors without objects is Ollama's answer.
        let takes_tokens = match self.pre {
            PreProcess::Input => self.post != PostProcess::List,
            pre => pre == PreProcess::Inputs,
        };
        if group.is_tokens && !takes_tokens {
            return Err(PredictError::invalid(format!(
                "field 'input' or 'inputs' has token ids, and {} accepts texts only: send texts \
                 (parameter 'token_inputs' must be false)",
                table.server
            )));
        }
        let takes_kinds = match template {
            Some(template) => template::has_place(template, INPUT_TYPE),
            None => table.takes_kinds,
        };
        if group.kind.is_some() && !takes_kinds {
            return Err(PredictError::invalid(format!(
                "field 'input_type' or 'prompt_name' is not supported by {}, which does not \
                 distinguish kinds of texts: leave it out",
                table.server
            )));
        }
        Ok(())
    }

    fn fill(
        &self,
        fields: &mut Map<String, Value>,
        group: &RowGroup,
        for_template: bool,
    ) -> Result<(), PredictError> {
        let query = group.query.clone().unwrap_or_default();
        let mut set = |name: &str, value: Value| _ = fields.insert(name.to_owned(), value);
        match self.pre {
            PreProcess::Input => {
                set("input", group.inputs()?);
                if let Some(kind) = &group.kind {
                    set(INPUT_TYPE, kind.as_str().into());
                }
            }
            PreProcess::Inputs => {
                set("inputs", group.inputs()?);
                if let Some(kind) = &group.kind {
                    set("prompt_name", kind.as_str().into());
                }
            }
            PreProcess::InputText => set("inputText", json!(group.texts.concat())),
            PreProcess::Google(_) => {
                set("texts", json!(group.texts));
                if let Some(kind) = &group.kind {
                    set(INPUT_TYPE, kind.as_str().into());
                }
            }
            PreProcess::Texts => {
                set("texts", json!(group.texts));
                let kind = group.kind.as_deref().map(kind_of_cohere);
                match kind {
                    Some(kind) => set("input_type", kind.into()),
                    None => {
                        fields
                            .entry("input_type")
                            .or_insert_with(|| "search_document".into());
                    }
                }
            }
            PreProcess::Documents => {
                set("query", query.into());
                set("documents", json!(group.texts));
                set("top_n", group.texts.len().into());
            }
            PreProcess::QueryTexts => {
                if for_template {
                    set("query_text", query.as_str().into());
                    set("documents", json!(group.texts));
                }
                set("query", query.into());
                set("texts", json!(group.texts));
            }
            PreProcess::Sources => {
                set(
                    "queries",
                    json!([{ "type": "TEXT", "textQuery": { "text": query } }]),
                );
                let sources = group.texts.iter().map(|text| {
                    let document = json!({ "type": "TEXT", "textDocument": { "text": text } });
                    json!({ "type": "INLINE", "inlineDocumentSource": document })
                });
                set("sources", sources.collect());
            }
        }
        Ok(())
    }
}

const PRE_NAMES: [&str; 6] = [
    "openai.embedding",
    "cohere.embedding",
    "bedrock.embedding",
    "default.embedding",
    "cohere.rerank",
    "default.rerank",
];
const POST_NAMES: [&str; 8] = [
    "openai.embedding",
    "cohere.embedding",
    "cohere_v2.embedding.float",
    "bedrock.embedding",
    "bedrock_v2.embedding.float",
    "default.embedding",
    "cohere.rerank",
    "default.rerank",
];

fn unknown(parameter: &str, name: &str, known: &[&str]) -> PredictError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let prefix = parameter.trim_end_matches("_function");
    PredictError::invalid(format!(
        "'{name}' is not a '{parameter}'; after 'connector.{prefix}.', the supported names are {}",
        known.join(", ")
    ))
}

/// The format of routes that several providers share.
fn of_url(connector: &ConnectorSpec) -> Option<(PreProcess, PostProcess)> {
    let url = connector.url.split(['?', '#']).next().unwrap_or_default();
    Some(if url.ends_with("/embeddings") {
        (PreProcess::Input, PostProcess::OpenAi)
    } else if url.ends_with("/api/embed") {
        (PreProcess::Input, PostProcess::List)
    } else if url.ends_with("/v2/embed") {
        (PreProcess::Texts, PostProcess::Typed)
    } else if url.ends_with("/v1/embed") {
        (PreProcess::Texts, PostProcess::List)
    } else if url.ends_with("/rerank") {
        (PreProcess::Documents, PostProcess::Results)
    } else {
        return None;
    })
}

fn kind_of_cohere(kind: &str) -> &str {
    match kind {
        "query" => "search_query",
        "passage" | "document" => "search_document",
        other => other,
    }
}

/// Splits a batch into groups of at most `step` rows with the same query and kind, in order.
///
/// # Errors
/// `InvalidInput` naming a row without text.
pub fn groups(rows: &RecordBatch, task: Task, step: usize) -> Result<Vec<RowGroup>, PredictError> {
    let at = |name: &str, row: usize| text_at(rows.column_by_name(name)?, row);
    let demanded = |name: &str, row: usize| {
        at(name, row)
            .ok_or_else(|| PredictError::invalid(format!("row {row}: column '{name}' has no text")))
    };
    let mut groups: Vec<RowGroup> = Vec::new();
    for row in 0..rows.num_rows() {
        let text = demanded(TEXT, row)?;
        let query = match task {
            Task::Rerank => Some(demanded(QUERY, row)?),
            _ => None,
        };
        let kind = at(INPUT_TYPE, row);
        match groups.last_mut() {
            Some(last) if last.query == query && last.kind == kind && last.texts.len() < step => {
                last.texts.push(text);
            }
            _ => groups.push(RowGroup {
                query,
                kind,
                texts: vec![text],
                ..RowGroup::default()
            }),
        }
    }
    Ok(groups)
}
