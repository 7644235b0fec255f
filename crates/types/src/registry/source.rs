//! Checked URLs and hashes of models. Pure text; workers download the files.

use std::fmt;
use std::str::FromStr;

use crate::error::PredictError;

/// Maximum length of a model URL in bytes.
pub const MAX_MODEL_URL_BYTES: usize = 2_048;

/// Path endings and the kinds that they declare.
const ENDINGS: [(&str, ModelUrlKind); 5] = [
    ("/", ModelUrlKind::Directory),
    (".zip", ModelUrlKind::Zip),
    (".tar.gz", ModelUrlKind::TarGz),
    (".tgz", ModelUrlKind::TarGz),
    (".onnx", ModelUrlKind::Graph),
];

/// Kind of a model URL, derived from its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelUrlKind {
    /// `…/`: all files below it.
    Directory,
    /// `….zip`: an archive of the model's directory.
    Zip,
    /// `….tar.gz` or `….tgz`: an archive of the model's directory.
    TarGz,
    /// `….onnx`: one graph that contains its weights.
    Graph,
}

/// Scheme of a model URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelUrlScheme {
    /// `file:///…`: a file system of the worker.
    File,
    /// `http://host/…`: an HTTP server, unencrypted.
    Http,
    /// `https://host/…`: an HTTP server.
    Https,
    /// `s3://bucket/…`: Amazon S3, or a compatible server.
    S3,
    /// `gs://bucket/…`: Google Cloud Storage.
    Gcs,
    /// `az://container/…`: Azure Blob Storage.
    Azure,
}

impl ModelUrlScheme {
    /// All schemes.
    pub const ALL: [Self; 6] = [
        Self::File,
        Self::Http,
        Self::Https,
        Self::S3,
        Self::Gcs,
        Self::Azure,
    ];

    /// The scheme as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Https => "https",
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        }
    }
}

/// The URL of a model's directory, archive or graph. Its credentials are in the workers'
/// configuration, not in the URL.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ModelUrl {
    text: String,
    scheme: ModelUrlScheme,
    kind: ModelUrlKind,
    /// Byte offset of the path.
    path: usize,
}

impl ModelUrl {
    /// Checks a URL.
    ///
    /// # Errors
    /// `InvalidInput` for a malformed URL, an unknown scheme or ending, a user, a query, a
    /// fragment, or `..` in the path.
    pub fn parse(text: &str) -> Result<Self, PredictError> {
        if text.len() > MAX_MODEL_URL_BYTES {
            return Err(wrong("is too long"));
        }
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("has no scheme"))?;
        let named = |known: &ModelUrlScheme| known.as_str().eq_ignore_ascii_case(scheme);
        let scheme = ModelUrlScheme::ALL.into_iter().find(named).ok_or_else(|| {
            wrong("has an unknown scheme; the schemes are file, http, https, s3, gs and az")
        })?;
        let slash = rest.find('/').ok_or_else(|| wrong("has no path"))?;
        let (authority, path) = rest.split_at(slash);
        check_authority(scheme, authority)?;
        check_path(path)?;
        let kind = ENDINGS.into_iter().find(|(ending, _)| {
            let tail = path.len().checked_sub(ending.len());
            let tail = tail.and_then(|start| path.get(start..));
            tail.is_some_and(|tail| tail.eq_ignore_ascii_case(ending))
        });
        let (_, kind) = kind.ok_or_else(|| {
            wrong("must end in '/' for a directory, or in .zip, .tar.gz, .tgz or .onnx")
        })?;
        // Hosts are case-insensitive; buckets are case-sensitive.
        let is_host = matches!(scheme, ModelUrlScheme::Http | ModelUrlScheme::Https);
        let authority = if is_host {
            authority.to_ascii_lowercase()
        } else {
            authority.to_owned()
        };
        let origin = format!("{}://{authority}", scheme.as_str());
        Ok(Self {
            path: origin.len(),
            text: origin + path,
            scheme,
            kind,
        })
    }

    /// The complete URL, with scheme and host in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The scheme.
    #[must_use]
    pub fn scheme(&self) -> ModelUrlScheme {
        self.scheme
    }

    /// The kind of its target.
    #[must_use]
    pub fn kind(&self) -> ModelUrlKind {
        self.kind
    }

    /// The host with its port, the bucket, or the container; empty for `file` URLs.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.text[self.scheme.as_str().len() + 3..self.path]
    }

    /// The path, from its first `/`; percent-encoding is unchanged.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.text[self.path..]
    }

    /// Whether this URL is below `prefix`, which ends in `/`.
    #[must_use]
    pub fn is_below(&self, prefix: &Self) -> bool {
        prefix.kind == ModelUrlKind::Directory && self.text.starts_with(&prefix.text)
    }
}

fn wrong(what: &str) -> PredictError {
    PredictError::invalid(format!("the model's URL {what}"))
}

fn check_authority(scheme: ModelUrlScheme, authority: &str) -> Result<(), PredictError> {
    if authority.contains('@') {
        return Err(wrong(
            "has a user or a password; credentials belong in the workers' configuration",
        ));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    if !authority.chars().all(is_plain) {
        return Err(wrong("has a malformed host"));
    }
    match (scheme, authority.is_empty()) {
        (ModelUrlScheme::File, false) => Err(wrong("names a host; write file:///path")),
        (ModelUrlScheme::File, true) | (_, false) => Ok(()),
        (_, true) => Err(wrong("has no host or bucket")),
    }
}

fn check_path(path: &str) -> Result<(), PredictError> {
    if path.contains(['?', '#']) {
        return Err(wrong(
            "has a query or a fragment; credentials belong in the workers' configuration",
        ));
    }
    let is_odd = |c: char| c.is_control() || c.is_whitespace() || c == '\\';
    if path.chars().any(is_odd) {
        return Err(wrong(
            "has a space, backslash or control character in its path",
        ));
    }
    let lower = path.to_ascii_lowercase();
    if ["%2f", "%5c", "%00"]
        .iter()
        .any(|hidden| lower.contains(hidden))
    {
        return Err(wrong("has an encoded slash or null in its path"));
    }
    let mut segments: Vec<_> = lower.split('/').skip(1).collect();
    if segments.last() == Some(&"") {
        segments.pop();
    }
    let climbs = |segment: &&str| matches!(segment.replace("%2e", ".").as_str(), "" | "." | "..");
    if segments.iter().any(climbs) {
        return Err(wrong("has an empty, '.' or '..' part in its path"));
    }
    Ok(())
}

impl FromStr for ModelUrl {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        Self::parse(text)
    }
}

impl fmt::Display for ModelUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ModelUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

/// A SHA-256 hash, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256(pub [u8; 32]);

impl FromStr for Sha256 {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        let wrong = || PredictError::invalid("a SHA-256 hash must have 64 hexadecimal digits");
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(wrong());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(wrong);
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let value = digit(pair[0])? * 16 + digit(pair[1])?;
            *byte = u8::try_from(value).map_err(|_| wrong())?;
        }
        Ok(Self(hash))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
