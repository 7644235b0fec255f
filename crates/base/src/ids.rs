//! Identifiers. Each has its own type, so that a worker id cannot be passed as a model name. String
//! ids are validated when they are created.

use std::fmt;
use std::str::FromStr;

use crate::error::{ErrorCode, PredictError};

/// The longest string id, in bytes.
pub const MAX_ID_LEN: usize = 128;

fn validate_id(kind: &str, value: &str) -> Result<(), PredictError> {
    let well_formed = !value.is_empty()
        && value.len() <= MAX_ID_LEN
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !value.starts_with('.');
    if well_formed {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::InvalidInput,
        format!(
            "{kind} must be 1 to {MAX_ID_LEN} characters of letters, digits, '-', '_' or '.', \
             and not begin with '.'"
        ),
    ))
}

/// Validates a model name: parts in the form of an id, separated by `/`, as in the model names of
/// hubs. With `open`, the name may end in `/`, as a prefix of other names.
fn validate_name(value: &str, open: bool) -> Result<(), PredictError> {
    let whole = value.strip_suffix('/').filter(|_| open).unwrap_or(value);
    let well_formed = value.len() <= MAX_ID_LEN
        && whole
            .split('/')
            .all(|part| validate_id("model name", part).is_ok());
    if well_formed {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::InvalidInput,
        format!(
            "model name must be 1 to {MAX_ID_LEN} characters of letters, digits, '-', '_' or '.', \
             and not begin with '.'; it may have several such parts with a '/' between them"
        ),
    ))
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        string_id!(
            $(#[$doc])*
            /// 1 to 128 characters of `[A-Za-z0-9._-]`, not starting with a dot.
            $name, |value: &str| validate_id($kind, value)
        );
    };
    ($(#[$doc:meta])* $name:ident, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Validates `value`.
            ///
            /// # Errors
            /// [`ErrorCode::InvalidInput`] when the value is not well formed.
            pub fn new(value: impl Into<String>) -> Result<Self, PredictError> {
                let value = value.into();
                ($check)(value.as_str())?;
                Ok(Self(value))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = PredictError;
            fn from_str(value: &str) -> Result<Self, PredictError> {
                Self::new(value)
            }
        }
    };
}

string_id!(
    /// The unique name of a model; in REST it is the `model_id`. 1 to 128 characters: parts of
    /// `[A-Za-z0-9._-]` that do not start with a dot, with a `/` between two of them.
    ModelName, |value: &str| validate_name(value, false)
);

impl ModelName {
    /// A prefix of model names, which may end in `/`.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidInput`] when no model name can start with `value`.
    pub fn beginning(value: impl Into<String>) -> Result<Self, PredictError> {
        let value = value.into();
        validate_name(&value, true)?;
        Ok(Self(value))
    }

    /// Whether the name has several parts. Nodes below feature level 5 cannot read such names.
    #[must_use]
    pub fn has_parts(&self) -> bool {
        self.0.contains('/')
    }
}

string_id!(
    /// The id of a connector, the definition of a remote model.
    ConnectorId, "connector id"
);
string_id!(
    /// The configured id of a worker, stable across restarts.
    WorkerId, "worker id"
);
string_id!(
    /// A tenant; `default` if no tenants are configured.
    TenantId, "tenant id"
);
string_id!(
    /// The id of a model group.
    ModelGroupId, "model group id"
);
string_id!(
    /// The id of an API key.
    KeyId, "key id"
);
string_id!(
    /// The name of a sealed secret in the registry.
    SecretName, "secret name"
);
string_id!(
    /// The id of a request in every hop, log line and error.
    RequestId, "request id"
);

impl Default for TenantId {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl TenantId {
    /// The tenant's name as a model name; both have the same form.
    #[must_use]
    pub fn as_name(&self) -> ModelName {
        ModelName(self.0.clone())
    }
}

impl RequestId {
    /// A fresh random id (UUIDv4, simple form).
    #[must_use]
    pub fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number_id!(
    /// A coordinator's Raft id. Never reused: a wiped node rejoins with a new id.
    NodeId, u64
);
number_id!(
    /// An immutable version of a model, starting at 1.
    ModelVersion, u32
);
number_id!(
    /// The registry revision. It increases by one with every applied write.
    Revision, u64
);
number_id!(
    /// One run of a worker process: random at start, so that a restart is visible.
    Incarnation, u64
);

/// A model, optionally with a version. Written `name` or `name:version`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelRef {
    /// The model's name.
    pub name: ModelName,
    /// The version; `None` for the deployed one.
    pub version: Option<ModelVersion>,
}

impl ModelRef {
    /// The deployed version of `name`.
    #[must_use]
    pub fn deployed(name: ModelName) -> Self {
        Self {
            name,
            version: None,
        }
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version {
            Some(version) => write!(f, "{}:{version}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

impl FromStr for ModelRef {
    type Err = PredictError;

    fn from_str(value: &str) -> Result<Self, PredictError> {
        match value.split_once(':') {
            None => Ok(Self::deployed(ModelName::new(value)?)),
            Some((name, version)) => {
                let version = version.parse().map(ModelVersion).map_err(|_| {
                    PredictError::new(
                        ErrorCode::InvalidInput,
                        "the part after ':' in a model reference must be a version number",
                    )
                })?;
                Ok(Self {
                    name: ModelName::new(name)?,
                    version: Some(version),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_refs_round_trip_and_reject_what_is_malformed() {
        for text in [
            "storyteller",
            "storyteller:3",
            "a.b-c_d:12",
            "Qwen/Qwen3-8B",
            "hub/org/model:2",
        ] {
            assert_eq!(text.parse::<ModelRef>().unwrap().to_string(), text);
        }
        for text in [
            "",
            ":1",
            "a:",
            "a:x",
            "/a",
            "a/",
            "a//b",
            "a/.b",
            "a/../b",
            ".a",
            "a b",
            "ä",
            &"x".repeat(129),
        ] {
            assert_eq!(
                text.parse::<ModelRef>().unwrap_err().code,
                ErrorCode::InvalidInput,
                "{text}"
            );
        }
        assert!(ModelName::new("Qwen/").is_err() && ConnectorId::new("a/b").is_err());
        assert_eq!(ModelName::beginning("Qwen/").unwrap().as_str(), "Qwen/");
        assert!(ModelName::beginning("/").is_err() && ModelName::beginning("a//").is_err());
    }
}
