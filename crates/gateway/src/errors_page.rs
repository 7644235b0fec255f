//! Generates `docs/reference/errors.md` from the errors that each dialect renders.

use std::collections::BTreeMap;

use serde_json::Value;
use volley_http_edge::axum::response::IntoResponse;
use volley_types::{ErrorCode, ErrorReason, PredictError};

use self::page::assert_current;
use volley_dialect_anthropic::error::AnthropicErrors;
use volley_dialect_cohere::error::CohereErrors;
use volley_dialect_huggingface::error::HuggingFaceErrors;
use volley_dialect_kit::openai_error::OpenAiErrors;
use volley_dialect_oip::error::OipErrors;
use volley_dialect_ollama::error::OllamaErrors;
use volley_http_edge::error::own::OwnErrors;
use volley_http_edge::error::{ApiError, ErrorFormat, render};

#[path = "../../../tests/reference/page.rs"]
mod page;

const FORMATS: [&dyn ErrorFormat; 7] = [
    &OwnErrors,
    &OpenAiErrors,
    &AnthropicErrors,
    &CohereErrors,
    &OllamaErrors,
    &OipErrors,
    &HuggingFaceErrors,
];

#[tokio::test]
async fn the_page_of_errors_is_generated_from_what_dialects_render() {
    let template = include_str!("../../../tests/reference/errors.txt");
    for code in ErrorCode::ALL {
        let advice = format!("| `{code}` | ");
        assert!(template.contains(&advice), "say what to do about {code}");
    }
    let mut parts = BTreeMap::new();
    let mut codes = "| code | HTTP status | gRPC code | tried on another replica |\n\
                     |---|---|---|---|\n"
        .to_owned();
    for code in ErrorCode::ALL {
        let again = match code.may_retry_elsewhere() {
            true => "yes",
            false => "no",
        };
        let (status, grpc) = (code.http_status(), volley_proto::status::grpc_code(code));
        codes += &format!("| `{code}` | {status} | `{grpc:?}` | {again} |\n");
    }
    parts.insert("codes".to_owned(), codes);
    let mut table = "| code |".to_owned();
    table.extend(FORMATS.map(|format| format!(" {} |", format.name())));
    table += &format!("\n|{}\n", "---|".repeat(FORMATS.len() + 1));
    for code in ErrorCode::ALL {
        let error = PredictError::new(code, "m");
        table += &row(&format!("`{code}`"), &error).await;
    }
    for reason in ErrorReason::ALL {
        let code = match reason {
            ErrorReason::ContextLength
            | ErrorReason::ContentFilter
            | ErrorReason::SequenceUnknown => ErrorCode::InvalidInput,
            ErrorReason::ModelMissing | ErrorReason::AnswerUnusable | ErrorReason::CallRejected => {
                ErrorCode::UpstreamFailed
            }
            ErrorReason::QuotaExhausted => ErrorCode::Unavailable,
        };
        let error = PredictError::new(code, "m").with_reason(reason);
        let name = format!("`{code}`, reason `{}`", reason.as_str());
        table += &row(&name, &error).await;
    }
    parts.insert("dialects".to_owned(), table);
    assert_current("errors", parts);
}

async fn row(name: &str, error: &PredictError) -> String {
    let mut row = format!("| {name} |");
    for format in FORMATS {
        let response = ApiError(error.clone()).into_response();
        let response = render(response, format, "id");
        let status = response.status().as_u16();
        let again = response.headers().get("x-should-retry").is_some();
        let body = volley_http_edge::axum::body::to_bytes(response.into_body(), 1 << 16)
            .await
            .unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let named = match format.name() {
            "OpenAI" => vec![&body["error"]["type"], &body["error"]["code"]],
            "Volley" | "Anthropic" => vec![&body["error"]["type"]],
            "Hugging Face" => vec![&body["error_type"]],
            _ => Vec::new(),
        };
        let named = named
            .into_iter()
            .map(|it| format!(", `{}`", it.as_str().unwrap()));
        let mark = if again { "\\*" } else { "" };
        row += &format!(" {status}{mark}{} |", named.collect::<String>());
    }
    row + "\n"
}
