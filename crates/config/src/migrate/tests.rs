use super::*;

const LISTEN: &str = "[listen]\npublic = \"127.0.0.1:1\"\n";

fn migrated(text: &str) -> String {
    migrate(text)
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
        .text
}

#[test]
fn comments_and_order_stay() {
    let old = r#"# The first of three coordinators.
# Start them in any order.

# Its name.
[node]
id = 1 # never again

[listen]
public = "127.0.0.1:8420"
# For Triton.
also = [
    "127.0.0.1:8000", # REST
]
internal = "127.0.0.1:8421"

[cluster]
# Slow disks.
raft_multiplier = 3
write_timeout = "9s"

[cluster.bootstrap]
1 = "127.0.0.1:8421"

# What is too much.
[limits]
max_body_bytes = 16777216 # 16 MiB
# A short wait.
wake_timeout = "10s"
max_tries = 2
max_inflight_body_bytes = "4GiB"
failed_auth_burst = 5

# Who may call.
[security]
insecure = true
# The end.
"#;
    let new = r#"# The first of three coordinators.
# Start them in any order.
version = 1

# Its name.
[node]
id = 1 # never again

[listen]
public = "127.0.0.1:8420"
# For Triton.
additional = [
    "127.0.0.1:8000", # REST
]
internal = "127.0.0.1:8421"

[cluster.bootstrap]
1 = "127.0.0.1:8421"

[raft]
# Slow disks.
timeout_multiplier = 3
write_timeout = "9s"

# What is too much.
[requests]
max_body_size = "16MiB" # 16 MiB
max_body_memory = "4GiB"

[activation]
# A short wait.
timeout = "10s"

[routing]
max_attempts = 2

# Who may call.
[security]
insecure = true
failed_auth_burst = 5
# The end.
"#;
    let migration = migrate(old).unwrap();
    assert_eq!(migration.text, new);
    assert_eq!(migration.kind, FileKind::Coordinator);
    assert_eq!(migration.renamed.len(), 8);
    let again = migrate(new).unwrap();
    assert_eq!((again.text.as_str(), again.is_changed), (new, false));
}

#[test]
fn every_way_to_write_a_table_is_understood() {
    let values = |text: &str| text.parse::<toml::Table>().unwrap();
    let expected = values(
        "version = 1\nlisten.public = 'h:1'\nlisten.additional = ['h:2']\nhttp.write_timeout = \
         '2m'\nrequests.max_body_size = '1000B'\n",
    );
    for old in [
        "listen.public = 'h:1'\nlisten.also = ['h:2']\nlimits.write_stall = '2m'\n\
         limits.max_body_bytes = 1_000\n",
        "listen = { public = 'h:1', also = ['h:2'] }\n\
         limits = { write_stall = '2m', max_body_bytes = 1000 }\n",
        "[limits]\nwrite_stall = '2m'\nmax_body_bytes = 0x3e8\n[listen]\nalso = ['h:2']\n\
         public = 'h:1'",
        "limits.\"write_stall\" = '2m'\nlimits.'max_body_bytes' = 1000\n[listen]\npublic = 'h:1'\n\
         'also' = ['h:2']\n",
    ] {
        let new = migrated(old);
        assert_eq!(values(&new), expected, "{old}\n{new}");
    }
}

#[test]
fn the_comments_of_a_table_that_ends_stay() {
    let limits = "# One.\n[limits] # Two.\n# Three.\nfailed_auth_burst = 5 # Four.\n";
    let alone = migrated(&format!("{LISTEN}\n{limits}"));
    let expected = "\n# One.\n[security] # Two.\n# Three.\nfailed_auth_burst = 5 # Four.\n";
    assert!(alone.ends_with(expected), "{alone}");
    let beside = migrated(&format!("{LISTEN}\n[security]\ninsecure = true\n{limits}"));
    let expected = "\n[security]\ninsecure = true\n# One.\n# Two.\n# Three.\nfailed_auth_burst = 5 \
                    # Four.\n";
    assert!(beside.ends_with(expected), "{beside}");
    let implicit = migrated(&format!(
        "{LISTEN}\n# One.\n[cluster]\nsnapshot_every = 5\n[cluster.bootstrap]\n1 = 'h'\n"
    ));
    let expected = "[cluster.bootstrap]\n1 = 'h'\n\n# One.\n[raft]\nsnapshot_threshold = 5\n";
    assert!(implicit.ends_with(expected), "{implicit}");
}

#[test]
fn a_table_without_keys_ends_and_its_comments_stay() {
    let old = format!("{LISTEN}\n# One.\n[limits]\n# max_streams = 5\n\n[browser]\norigins = []\n");
    let new =
        format!("version = 1\n\n{LISTEN}# max_streams = 5\n\n[browser]\norigins = []\n# One.\n");
    assert_eq!(migrated(&old), new);
    let cluster = format!("{LISTEN}\n# One.\n[cluster]\n");
    assert_eq!(migrated(&cluster), format!("version = 1\n\n{cluster}"));
}

#[test]
fn sizes_get_a_unit() {
    for (old, new) in [
        ("16777216", "\"16MiB\""),
        ("1048577", "\"1048577B\""),
        ("\"4096\"", "\"4KiB\""),
        ("\"12 GiB\"", "\"12 GiB\""),
        // Invalid sizes are kept: parsing reports them.
        ("-1", "-1"),
        ("\"much\"", "\"much\""),
    ] {
        let text = migrated(&format!("{LISTEN}[limits]\nresume_total_bytes = {old}\n"));
        let expected = format!("[resume]\nmax_total_size = {new}\n");
        assert!(text.ends_with(&expected), "{text}");
    }
    let worker = migrated("listen.flight = 'h:1'\n[onnx]\nprocess_memory = 4096 # little\n");
    assert!(
        worker.ends_with("process_memory = \"4KiB\" # little\n"),
        "{worker}"
    );
}

#[test]
fn a_worker_has_its_own_names() {
    let text = migrated(
        "[listen]\nflight = 'h:1'\n[cluster]\ncoordinators = ['h:2']\n[limits]\n\
         heartbeat_interval = '1s'\nwrite_stall = '2m'\n",
    );
    assert_eq!(
        text,
        "version = 1\n\n[listen]\nflight = 'h:1'\n[cluster]\ncoordinators = ['h:2']\n\
         heartbeat_interval = '1s'\n\n[flight]\nwrite_timeout = '2m'\n"
    );
}

#[test]
fn keys_that_are_not_known_stay_for_the_reader_to_reject() {
    let text = migrated(&format!("{LISTEN}[limits]\nmax_streams = 3\ncolour = 3\n"));
    assert!(text.contains("[limits]\ncolour = 3\n"), "{text}");
    assert!(text.contains("[requests]\nmax_concurrent = 3\n"), "{text}");
}

#[test]
fn what_cannot_be_rewritten_is_an_error() {
    for (old, why) in [
        ("[listen", "line 1"),
        ("[node]\nid = 1\n", "'listen.public'"),
        ("version = 2\nlisten.public = 'h:1'\n", "format version 2"),
        ("version = 'one'\nlisten.public = 'h:1'\n", "must be 1"),
        (
            "listen.public = 'h'\nlisten.also = []\nlisten.additional = []\n",
            "both",
        ),
        (
            "listen.public = 'h'\nlimits.max_streams = 1\nrequests.max_concurrent = 1\n",
            "both",
        ),
        (
            "requests = 1\nlisten.public = 'h'\nlimits.max_streams = 1\n",
            "not a table",
        ),
    ] {
        let error = migrate(old).unwrap_err().to_string();
        assert!(error.contains(why), "{old}: {error}");
    }
}
