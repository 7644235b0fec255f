use std::collections::BTreeMap;

use super::*;
use crate::{FormatVersion, Size, TimeSpan};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is only printed")]
struct File {
    version: FormatVersion,
    listen: Listen,
    #[serde(default)]
    http: Http,
    #[serde(default)]
    requests: Requests,
    #[serde(default)]
    issuers: Vec<Listen>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it is only printed")]
struct Listen {
    public: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Http {
    write_timeout: Option<TimeSpan>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Requests {
    max_body_size: Option<Size>,
}

fn error(text: &str) -> String {
    let parsed = parse::<File>(text, FileKind::Coordinator);
    parsed.expect_err(text).to_string()
}

#[test]
fn a_known_file_is_read() {
    let text = "version = 1\n[listen]\npublic = 'h:1'\nlabels = { any = 'x' }\n[requests]\n\
                max_body_size = '1MiB'\n[[issuers]]\npublic = 'x'\n";
    let file: File = parse(text, FileKind::Coordinator).unwrap();
    assert_eq!(file.requests.max_body_size, Some(Size(1 << 20)));
}

#[test]
fn unknown_keys_are_named_with_the_nearest_one() {
    for (line, said) in [
        (
            "http.write_timout = '1s'",
            "line 3: unknown key 'http.write_timout'; did you mean 'http.write_timeout'?",
        ),
        // In another table.
        (
            "http.max_body_size = '1MiB'",
            "unknown key 'http.max_body_size'; did you mean 'requests.max_body_size'?",
        ),
        ("htp.write_timeout = '1s'", "did you mean 'http'?"),
        (
            "issuers = [{ public = 'a' }, { pubic = 'b' }]",
            "did you mean 'issuers.public'?",
        ),
        (
            "colour = 3",
            "unknown key 'colour'; a coordinator's file has version, listen, http",
        ),
        ("http.colour = 3", "'http' has write_timeout"),
        // Old names.
        (
            "limits.write_stall = '1s'",
            "line 3: 'limits.write_stall' is now 'http.write_timeout'",
        ),
        (
            "limits = { max_tries = 3 }",
            "'limits.max_tries' is now 'routing.max_attempts'",
        ),
        ("limits.colour = 3", "unknown key 'limits.colour'"),
        ("limits = 3", "unknown key 'limits'"),
    ] {
        let error = error(&format!("version = 1\nlisten.public = 'h:1'\n{line}\n"));
        assert!(error.contains(said), "{line}: {error}");
        assert!(!error.contains("migrate"), "{error}");
    }
}

#[test]
fn all_unknown_keys_are_told_of_at_once_but_not_without_end() {
    let both = error("version = 1\nlisten.public = 'h:1'\nxyz = 1\nlimits.max_tries = 1\n");
    assert!(
        both.contains("'xyz'") && both.contains("max_attempts"),
        "{both}"
    );
    let keys: String = (0..50).map(|n| format!("unheard_of_{n} = 1\n")).collect();
    let many = error(&format!("version = 1\n{keys}listen.public = 'h:1'\n"));
    assert_eq!(many.lines().count(), 21, "{many}");
    assert!(many.contains("and 30 more unknown keys"), "{many}");
}

#[test]
fn the_version_is_one_that_this_binary_reads() {
    let newer = error("version = 2\nsomething = 'new'\n");
    assert!(
        newer.contains("format version 2") && newer.contains("reads format version 1"),
        "{newer}"
    );
    assert!(!newer.contains("something"), "{newer}");
    for wrong in ["0", "-1", "'1'", "1.0", "true"] {
        let error = error(&format!("version = {wrong}\nlisten.public = 'h:1'\n"));
        assert!(error.contains("'version' must be 1"), "{wrong}: {error}");
    }
    let missing = error("listen.public = 'h:1'\n");
    assert!(missing.contains("'version = 1' is missing"), "{missing}");
    assert!(
        missing.contains("`volley config migrate FILE`"),
        "{missing}"
    );
    let old = error("[listen]\npublic = 'h:1'\n[limits]\nmax_tries = 3\n");
    assert!(
        old.contains("'limits.max_tries' is now 'routing.max_attempts'"),
        "{old}"
    );
    assert!(old.contains("`volley config migrate FILE`"), "{old}");
}

#[test]
fn a_value_of_the_wrong_form_is_shown() {
    for (value, why) in [
        ("16777216", "expected a size with a unit such as \"16MiB\""),
        ("'16M'", "is not a size such as \"16MiB\"; the units are"),
        ("'0B'", "is not between 1B and"),
    ] {
        let text =
            format!("version = 1\nlisten.public = 'h:1'\nrequests.max_body_size = {value}\n");
        let error = error(&text);
        assert!(error.contains(why) && error.contains("line 3"), "{error}");
    }
    let number = error("version = 1\nlisten.public = 'h:1'\nhttp.write_timeout = 30\n");
    assert!(
        number.contains("expected a duration with a unit such as \"30s\""),
        "{number}"
    );
}
