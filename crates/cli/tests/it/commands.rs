//! Commands that need no cluster, and errors without a reachable cluster.

use crate::support::{complaint, text, volley};

#[tokio::test]
async fn help_names_every_command() {
    let help = text(&volley(&["--help"]).await);
    let commands = [
        "up",
        "coordinator",
        "worker",
        "model",
        "connector",
        "cluster",
        "alias",
        "pipeline",
        "key",
        "secret",
        "predict",
        "status",
        "completions",
        "config",
    ];
    for command in commands {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command}: {help}"
        );
    }
}

#[tokio::test]
async fn completions_are_printed_for_a_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&volley(&["completions", shell]).await);
        assert!(script.contains("undeploy"), "{shell}");
    }
}

#[tokio::test]
async fn an_unknown_key_is_refused_before_anything_starts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.toml");
    let file = "version = 1\n[node]\nid = \"w\"\n[listen]\nflight = \"127.0.0.1:0\"\nhtp = \"127.0.0.1:0\"\n";
    std::fs::write(&path, file).unwrap();
    let output = volley(&["worker", "--config", path.to_str().unwrap()]).await;
    let complaint = complaint(&output, 1);
    for word in ["worker.toml", "line 6", "listen.htp", "listen.http"] {
        assert!(complaint.contains(word), "{word}: {complaint}");
    }
}

#[tokio::test]
async fn without_a_coordinator_the_complaint_says_what_to_do() {
    for arguments in [
        &["--url", "http://127.0.0.1:1", "status"][..],
        &["--url", "http://127.0.0.1:1", "predict", "m", "hello"],
        &["--url", "http://127.0.0.1:1", "model", "list"],
    ] {
        let complaint = complaint(&volley(arguments).await, 1);
        assert!(complaint.contains("volley up"), "{complaint}");
        assert!(complaint.contains("127.0.0.1:1"), "{complaint}");
    }
}

#[tokio::test]
async fn a_command_line_that_makes_no_sense_ends_with_2() {
    for arguments in [
        &["model", "register", "m"][..],
        &["model", "register", "m", "--text", "--fake"],
        &["predict", "m", "hello", "--input", "{}"],
        &["predict", "m", "hello", "-p", "nothing"],
        &["shout"],
    ] {
        complaint(&volley(arguments).await, 2);
    }
}
