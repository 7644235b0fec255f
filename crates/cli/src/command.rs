//! The commands that call a running cluster.

pub(crate) mod alias;
pub(crate) mod backup;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod connector;
pub(crate) mod doctor;
pub(crate) mod drain;
mod gpus;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod model;
pub(crate) mod pipeline;
pub(crate) mod predict;
pub(crate) mod secret;
#[cfg(feature = "sql")]
pub(crate) mod sql;
pub(crate) mod status;
pub(crate) mod top;

use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value};
use volley_client::{Client, ClientError};

use self::gpus::gpus;

/// A client of the coordinators at `urls`, optionally with an API key and a trusted CA certificate.
///
/// # Errors
/// When a URL or the key is malformed, or when the CA certificate cannot be read.
pub(crate) fn connect(
    urls: &[String],
    key: Option<&str>,
    authority: Option<&Path>,
) -> anyhow::Result<Client> {
    let mut client = Client::new(urls)?;
    if let Some(file) = authority {
        let pem = std::fs::read(file)
            .with_context(|| format!("reading the authority {}", file.display()))?;
        client = client.with_authority(&pem)?;
    }
    match key.filter(|key| !key.is_empty()) {
        Some(key) => Ok(client.with_key(key)?),
        None => Ok(client),
    }
}

/// One client for each of the coordinators at `urls`, with its URL.
///
/// # Errors
/// As for [`connect`].
pub(crate) fn connect_each(
    urls: &[String],
    key: Option<&str>,
    authority: Option<&Path>,
) -> anyhow::Result<Vec<(String, Client)>> {
    urls.iter()
        .map(|url| {
            let client = connect(std::slice::from_ref(url), key, authority)?;
            Ok((url.clone(), client))
        })
        .collect()
}

/// Appends the next step to an error, if one is known.
pub(crate) fn explain(error: ClientError) -> anyhow::Error {
    let advice = match &error {
        ClientError::Connect(..) if is_told_of("certificate", &error) => {
            "its certificate is not trusted here: give its authority with --ca-file or in \
             VOLLEY_CA_FILE, use a name from the certificate in --url, and check both clocks"
        }
        ClientError::Connect(..) => {
            "is a coordinator running there? start a cluster with `volley up`, or give --url"
        }
        ClientError::Broken(_) if is_told_of("invalid HTTP version", &error) => {
            "if the server uses TLS, start --url with https://"
        }
        ClientError::Refused { status: 401, .. } => {
            "give an API key in the environment variable VOLLEY_API_KEY"
        }
        ClientError::Refused { code, .. } if code == "not_deployed" => {
            "deploy it with `volley model deploy NAME`"
        }
        ClientError::Refused { code, status, .. } if code == "not_found" || *status == 404 => {
            "`volley status`, `volley model list` and `volley connector list` list the existing \
             names"
        }
        ClientError::Url(_)
        | ClientError::Key
        | ClientError::Setup(_)
        | ClientError::Broken(_)
        | ClientError::Timeout
        | ClientError::Refused { .. }
        | ClientError::Incomplete
        | ClientError::TooLarge => return error.into(),
    };
    anyhow::anyhow!("{error}; {advice}")
}

/// Whether the message of `error` or of one of its causes contains `what`.
fn is_told_of(what: &str, error: &ClientError) -> bool {
    let error: &dyn std::error::Error = error;
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| cause.to_string().contains(what))
}

/// Parameters from the command line as a JSON object.
pub(crate) fn object(pairs: Vec<(String, Value)>) -> Map<String, Value> {
    pairs.into_iter().collect()
}
