//! AWS signing keys, parsed from common formats. Pure.

use std::fmt;

use serde_json::Value;

/// Keys for AWS Signature Version 4.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKeys {
    /// The access key id, which is not secret.
    pub access_key: String,
    /// The secret access key.
    pub secret_key: String,
    /// The session token of temporary keys.
    pub session_token: Option<String>,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// Normalized names of the keys in AWS files, variables and STS answers, and in OpenSearch.
const ACCESS: [&str; 3] = ["accesskeyid", "accesskey", "awsaccesskeyid"];
const SECRET: [&str; 3] = ["secretaccesskey", "secretkey", "awssecretaccesskey"];
const TOKEN: [&str; 4] = ["sessiontoken", "securitytoken", "token", "awssessiontoken"];

impl SigningKeys {
    /// Parses a JSON object with keys, the first profile of a credentials file, or `access:secret`
    /// with an optional `:token`. `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.starts_with('{') {
            return Self::of_json(&serde_json::from_str(text).ok()?);
        }
        if text.contains('=') && text.contains('\n') || text.starts_with('[') {
            return Self::of_lines(text);
        }
        let mut parts = text.splitn(3, ':');
        let (access_key, secret_key) = (parts.next()?, parts.next()?);
        Self::of(access_key, secret_key, parts.next())
    }

    /// Creates keys from their values; `None` if a required one is empty.
    pub fn of(access: &str, secret: &str, token: Option<&str>) -> Option<Self> {
        let filled = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        Some(Self {
            access_key: filled(access)?,
            secret_key: filled(secret)?,
            session_token: token.and_then(filled),
        })
    }

    fn of_json(json: &Value) -> Option<Self> {
        // STS answers have the keys in this object.
        let json = json.get("Credentials").unwrap_or(json);
        let fields = json.as_object()?;
        let pairs = fields.iter();
        Self::of_pairs(pairs.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))))
    }

    fn of_lines(text: &str) -> Option<Self> {
        let lines = text.lines().map(str::trim);
        let lines = lines.skip_while(|line| line.is_empty() || line.starts_with('['));
        let profile = lines.take_while(|line| !line.starts_with('['));
        Self::of_pairs(profile.filter_map(|line| line.split_once('=')))
    }

    fn of_pairs<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let (mut access, mut secret, mut token) = (None, None, None);
        for (name, value) in pairs {
            let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
            let name = name.to_ascii_lowercase();
            if ACCESS.contains(&name.as_str()) {
                access = Some(value);
            } else if SECRET.contains(&name.as_str()) {
                secret = Some(value);
            } else if TOKEN.contains(&name.as_str()) {
                token = Some(value);
            }
        }
        Self::of(access?, secret?, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_every_form_that_they_are_kept_in() {
        for (text, token) in [
            (
                r#"{"access_key":"A","secret_key":"S/+=","session_token":"T"}"#,
                Some("T"),
            ),
            (
                r#"{"Credentials":{"AccessKeyId":"A","SecretAccessKey":"S/+=","SessionToken":"T","Expiration":"x"}}"#,
                Some("T"),
            ),
            (
                "[default]\naws_access_key_id = A\naws_secret_access_key=S/+=\n\n[other]\naws_access_key_id=B\n",
                None,
            ),
            (
                "AWS_ACCESS_KEY_ID=A\nAWS_SECRET_ACCESS_KEY=S/+=\nAWS_SESSION_TOKEN=T",
                Some("T"),
            ),
            ("A:S/+=", None),
            ("A:S/+=:T", Some("T")),
        ] {
            let keys = SigningKeys::parse(text).expect(text);
            assert_eq!(
                (keys.access_key.as_str(), keys.secret_key.as_str()),
                ("A", "S/+=")
            );
            assert_eq!(keys.session_token.as_deref(), token, "{text}");
            assert_eq!(format!("{keys:?}"), "Keys(..)");
        }
        for text in [
            "",
            "token",
            "{}",
            "A:",
            ":S",
            "[default]\naws_access_key_id=A",
        ] {
            assert_eq!(SigningKeys::parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in "[\\[\\]{}=:\"a-z_\\n ]{0,40}") {
            let _ = SigningKeys::parse(&text);
        }
    }
}
