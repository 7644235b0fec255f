//! The output for operators: failed deployments, blocked drains, and nodes.

use serde_json::{Value, json};

use crate::nodes::Pair;
use crate::support::{text, volley};

fn complaint(output: &std::process::Output) -> String {
    assert!(!output.status.success(), "it did not fail");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn a_deployment_that_fails_names_its_reason_and_the_next_command_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start(folder.path()).await;
    let run = async |arguments: &[&str]| volley(&[&["--url", &pair.url], arguments].concat()).await;
    let missing = folder.path().join("missing");
    let missing = missing.to_str().unwrap();

    // The command that registers must print the reason.
    let register = [
        "model", "register", "broken", "--path", missing, "--deploy", "--wait",
    ];
    let told = complaint(&run(&register).await);
    assert!(told.contains("version 1 could not be loaded"), "{told}");
    assert!(told.contains("volley model undeploy broken"), "{told}");
    let reason = |told: &str| told.contains("could not be loaded");
    let refused = complaint(&run(&["predict", "broken", "x"]).await);
    assert!(reason(&refused), "{refused}");
    let status = text(&run(&["status"]).await);
    assert!(
        reason(&status) && status.contains("next: `volley model"),
        "{status}"
    );
    let shown = text(&run(&["model", "show", "broken", "--json"]).await);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["model_state"], "DEPLOY_FAILED");
    assert_eq!(shown["failure"]["version"], 1);
    assert_eq!(shown["failure"]["serving_version"], Value::Null);
    let deleted = text(&run(&["model", "delete", "broken"]).await);
    assert!(deleted.contains("is deleted"), "{deleted}");

    // A failed version leaves the previous one in service.
    text(&run(&["model", "register", "words", "--text", "--deploy", "--wait"]).await);
    let second = ["model", "register", "words", "--path", missing, "--deploy"];
    let told = complaint(&run(&[&second[..], &["--wait"]].concat()).await);
    assert!(told.contains("version 1 still serves"), "{told}");
    assert!(told.contains("volley model rollout undo words"), "{told}");
    let answer = text(&run(&["predict", "words", "one two"]).await);
    assert_eq!(answer, "one two\n");
    let shown = text(&run(&["model", "show", "words"]).await);
    assert!(
        shown.contains("version 2 could not be loaded") && shown.contains("rollout undo words"),
        "{shown}"
    );
    for listed in [
        &["model", "list"][..],
        &["model", "show", "words"],
        &["status"],
    ] {
        let told = text(&run(listed).await);
        assert!(told.contains("2 (1 serves)"), "{told}");
    }
    let status = text(&run(&["status", "--json"]).await);
    let status: Value = serde_json::from_str(&status).unwrap();
    let words = &status["models"][0]["failure"];
    assert_eq!(
        (&words["version"], &words["serving_version"]),
        (&json!(2), &json!(1))
    );
    text(&run(&["model", "rollout", "undo", "words"]).await);
    text(&run(&["model", "deploy", "words:1", "--wait"]).await);
}

#[tokio::test]
async fn a_drain_that_cannot_end_is_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start(folder.path()).await;
    let run = async |arguments: &[&str]| volley(&[&["--url", &pair.url], arguments].concat()).await;
    text(&run(&["model", "register", "words", "--text", "--deploy", "--wait"]).await);
    let drain = ["drain", "w", "--wait", "--timeout", "1h"];
    let told = complaint(&run(&drain).await);
    assert!(
        told.contains("words: the cluster has no other worker"),
        "{told}"
    );
    assert!(
        told.contains("--force") && told.contains("volley undrain w"),
        "{told}"
    );
    let answer = text(&run(&["predict", "words", "still here"]).await);
    assert_eq!(answer, "still here\n");
}

#[tokio::test]
async fn doctor_checks_the_node_of_the_file_that_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start(folder.path()).await;
    for role in ["coordinator", "worker"] {
        let file = folder.path().join(format!("{role}.toml"));
        let checked = volley(&["doctor", "--config", file.to_str().unwrap()]).await;
        let told = String::from_utf8(checked.stdout).unwrap();
        assert!(!told.contains("127.0.0.1:8420"), "another node: {told}");
        let expected = match role {
            "coordinator" => format!("{} is 7 (leader)", pair.url),
            _ => "runs and is ready".to_owned(),
        };
        assert!(told.contains(&expected), "{role}: {told}");
        assert!(checked.status.success(), "{told}");
    }
}
