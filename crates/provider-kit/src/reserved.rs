//! Names of parameters that only a connector may set: the address and credentials of its server,
//! and how its answers are read. Requests with such a parameter are rejected. Pure.

use serde_json::{Map, Value};
use volley_types::{ParamValue, Parameters, PredictError};

/// Names of endpoints and credentials, in lower case without `_`, `-` and `.`, because clients
/// write `api_base`, `apiBase` and `api-base`.
const NAMES: [&str; 81] = [
    "accesskey",
    "accesskeyid",
    "accesstoken",
    "apibase",
    "apikey",
    "apikeys",
    "apisecret",
    "apitoken",
    "apitype",
    "apiurl",
    "apiversion",
    "auth",
    "authentication",
    "authorization",
    "authtoken",
    "basepath",
    "baseurl",
    "bearer",
    "bearertoken",
    "clientsecret",
    "cookie",
    "cookies",
    "credential",
    "credentialheader",
    "credentials",
    "customheaders",
    "customllmprovider",
    "defaultheaders",
    "defaultquery",
    "deploymentid",
    "endpoint",
    "endpointurl",
    "extrabody",
    "extraheaders",
    "extraquery",
    "fallbacks",
    "gateway",
    "headers",
    "host",
    "hostname",
    "httpclient",
    "httpheaders",
    "httpproxy",
    "httpsproxy",
    "idtoken",
    "key",
    "modellist",
    "ocpapimsubscriptionkey",
    "organization",
    "organizationid",
    "orgid",
    "passwd",
    "password",
    "project",
    "projectid",
    "proxies",
    "proxy",
    "proxyurl",
    "refreshtoken",
    "region",
    "regionname",
    "secret",
    "secretaccesskey",
    "secretkey",
    "secrets",
    "server",
    "serverurl",
    "serviceaccount",
    "serviceaccountjson",
    "servicename",
    "sessiontoken",
    "sslverify",
    "targeturl",
    "token",
    "uri",
    "url",
    "userconfig",
    "username",
    "verifyssl",
    "xapikey",
    "xgoogapikey",
];
/// Prefixes of names that belong to a cloud or a library: `aws_secret_access_key`.
const BEGINNINGS: [&str; 4] = ["aws_", "azure_", "litellm_", "vertex_"];
/// Suffixes of names with a prefix, in the singular: `openai_api_key`, `inference_endpoints`.
const ENDS: [&str; 25] = [
    "accesskey",
    "accesstoken",
    "adtoken",
    "apibase",
    "apikey",
    "apitoken",
    "apiversion",
    "authtoken",
    "credential",
    "endpoint",
    "githubtoken",
    "header",
    "hftoken",
    "host",
    "oauthtoken",
    "organization",
    "password",
    "privatekey",
    "proxy",
    "secret",
    "secretkey",
    "sessiontoken",
    "subscriptionkey",
    "uri",
    "url",
];
/// Parameters of a connector about its server's answers and their prices.
const OF_ANSWERS: [&str; 9] = [
    "response",
    "response_filter",
    "pre_process_function",
    "post_process_function",
    "input_docs_processed_step_size",
    STREAM_UPSTREAM,
    PROVIDER_TOOLS,
    PRICES,
    KEY_HEADER,
];

/// Connector parameter with the prices.
pub const PRICES: &str = "prices";

/// Connector parameter with the header of the credential.
pub const KEY_HEADER: &str = "credential_header";

/// Connector parameter that allows or rejects tools that run at the provider.
pub const PROVIDER_TOOLS: &str = "provider_tools";

/// Connector parameters for signing. They are not sent in the body.
pub const SIGNING: [&str; 2] = ["region", "service_name"];

/// Connector parameter that makes the server stream every answer.
pub const STREAM_UPSTREAM: &str = "stream_upstream";

/// Rejects request parameters with a reserved name.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub fn refuse(given: &Parameters) -> Result<(), PredictError> {
    if let Some((name, _)) = given.iter().find(|(name, _)| is_reserved(name)) {
        return Err(refused(name));
    }
    for name in NESTED {
        if let Some(ParamValue::Json(text)) = given.get(name)
            && let Ok(nested) = serde_json::from_str(text)
        {
            refuse_fields(&nested)?;
        }
    }
    Ok(())
}

/// Whether only a connector may set the parameter.
pub fn is_reserved(name: &str) -> bool {
    OF_ANSWERS.contains(&name) || is_endpoint(name)
}

/// Whether a parameter has the name of an endpoint or a credential.
fn is_endpoint(name: &str) -> bool {
    let lower = name.trim().to_ascii_lowercase();
    let squeezed: String = lower
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    let singular = squeezed.strip_suffix('s').unwrap_or(&squeezed);
    let is_named = |name: &str| NAMES.contains(&name) || ENDS.iter().any(|end| name.ends_with(end));
    is_named(&squeezed)
        || is_named(singular)
        || BEGINNINGS.iter().any(|begin| lower.starts_with(begin))
}

/// Parameters whose values are objects of further parameters.
const NESTED: [&str; 2] = ["options", "chat_template_kwargs"];
/// Fields of a body with a list of messages.
const LISTS: [&str; 2] = ["messages", "input"];

/// Rejects a body in the format of its server that has a reserved name: among its fields, its
/// options, or the fields of its messages. Metadata may have any names.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn refuse_fields(body: &Map<String, Value>) -> Result<(), PredictError> {
    let nested = NESTED
        .iter()
        .filter_map(|name| body.get(*name)?.as_object());
    let lists = LISTS.iter().filter_map(|name| body.get(*name)?.as_array());
    let messages = lists.flatten().filter_map(Value::as_object);
    let objects = std::iter::once(body).chain(nested).chain(messages);
    let mut names = objects.flat_map(Map::keys);
    match names.find(|name| is_endpoint(name)) {
        Some(name) => Err(refused(name)),
        None => Ok(()),
    }
}

fn refused(name: &str) -> PredictError {
    PredictError::invalid(format!(
        "parameter '{}' is not allowed in a request: only the connector sets the address and \
         headers of its server",
        shown(name)
    ))
}

/// A caller's parameter name for error messages: without control characters, at most 64 characters.
pub fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Whether the connector requests a stream for every answer.
///
/// # Errors
/// `InvalidInput` if the parameter is neither true nor false.
pub fn always_streams(connector: &Parameters) -> Result<bool, PredictError> {
    match connector.get(STREAM_UPSTREAM) {
        Some(ParamValue::Bool(always)) => Ok(*always),
        _ => Ok(connector.boolean(STREAM_UPSTREAM)?.unwrap_or(false)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use volley_types::ErrorCode;

    use super::*;

    fn refused(name: &str) -> Option<PredictError> {
        let value = ParamValue::Text("x".to_owned());
        let given = [(name.to_owned(), value)].into_iter().collect();
        refuse(&given).err()
    }

    #[test]
    fn endpoints_and_credentials_are_refused_by_name_however_they_are_spelt() {
        for name in [
            "api_base",
            "apiBase",
            "API-BASE",
            "base_url",
            "baseURL",
            "headers",
            "extra_headers",
            "extra_body",
            "api_key",
            "openai_api_key",
            "x-api-key",
            "authorization",
            "Authorization",
            "organization",
            "openai_organization",
            "api_version",
            "proxy",
            "https_proxy",
            "aws_secret_access_key",
            "azure_ad_token",
            "vertex_credentials",
            "region",
            "endpoint",
            "token",
            "response_filter",
            "credential_header",
            "prices",
            "stream_upstream",
            "provider_tools",
            "api_host",
            "inference_endpoint",
            "endpoints",
            "base_uri",
            "ollama_host",
            "callback_url",
            "urls",
            "server",
            "auth_header",
            "openai_proxy",
            "hf_token",
            "hf_api_token",
            "private_key",
            "service_account_json",
            "Ocp-Apim-Subscription-Key",
            "litellm_params",
            "fallbacks",
            "model_list",
            "ssl_verify",
        ] {
            let error = refused(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(error.code, ErrorCode::InvalidInput);
            assert!(error.message.contains(&format!("'{name}'")), "{name}");
        }
    }

    #[test]
    fn what_only_looks_alike_is_a_parameter() {
        for name in [
            "temperature",
            "max_tokens",
            "prompt_cache_key",
            "response_format",
            "token_budget",
            "stop_token_ids",
            "thinking",
            "metadata",
            "user",
            "service_tier",
            "keep_alive",
            "logit_bias",
            "anthropic_version",
            "safety_identifier",
            "monkey",
            "skip_special_tokens",
            "add_bos_token",
            "max_completion_tokens",
            "include",
        ] {
            assert!(refused(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_body_in_its_servers_format_is_searched_where_parameters_are() {
        for (body, name) in [
            (json!({ "api_base": "http://evil" }), Some("api_base")),
            (json!({ "options": { "headers": {} } }), Some("headers")),
            (
                json!({ "messages": [{ "role": "user", "base_url": "x" }] }),
                Some("base_url"),
            ),
            (
                json!({ "metadata": { "url": "x" }, "options": { "seed": 1 } }),
                None,
            ),
        ] {
            let refused = refuse_fields(body.as_object().unwrap()).err();
            assert_eq!(refused.is_some(), name.is_some(), "{body}");
            if let Some((refused, name)) = refused.zip(name) {
                assert!(refused.message.contains(&format!("'{name}'")), "{refused}");
            }
        }
        let nested = ParamValue::Json(r#"{"api_key":"x"}"#.to_owned());
        let given = [("chat_template_kwargs".to_owned(), nested)];
        assert!(refuse(&given.into_iter().collect()).is_err());
    }

    #[test]
    fn a_long_name_is_not_repeated_whole() {
        let name = format!("{}\napi_key", "x".repeat(500));
        let error = refused(&name).unwrap();
        assert!(error.message.len() < 300 && !error.message.contains('\n'));
    }
}
