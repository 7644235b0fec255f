//! Clusters whose nodes are not alike: their clocks, and their versions.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use volley_tests::callers::Callers;
use volley_tests::cluster::{Cluster, Node};
use volley_tests::process::{self, Setting};

fn say(text: &str) {
    // Nothing depends on it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Waits until every coordinator sees so many workers alive, and the replicas of `model` ready.
async fn settled(cluster: &Cluster, model: &str, workers: usize, replicas: u32) {
    for coordinator in 0..cluster.coordinators.len() {
        cluster
            .wait(coordinator, "all is well again", |status| {
                let alive = status.workers.iter();
                let alive = alive.filter(|worker| worker.liveness == "alive").count();
                let ready = status
                    .models
                    .iter()
                    .any(|it| it.id == model && it.ready_replicas == replicas);
                status.node.leader.is_some() && alive == workers && ready
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_are_an_hour_off_harm_nothing_and_doctor_tells_of_them() {
    let skewed = |skew| Setting::skewed(skew);
    let (Ok(ahead), Ok(behind)) = (skewed("+1h"), skewed("-1h")) else {
        let told = "not run: the library of 'faketime' is not installed";
        assert!(std::env::var_os("CI").is_none(), "{told}");
        return say(&format!("{told}\n"));
    };
    let mut cluster = Cluster::new(3, 2);
    cluster.coordinators[1].setting = ahead.clone();
    cluster.coordinators[2].setting = behind;
    cluster.workers[1].setting = ahead;
    cluster.run().await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 2).await;
    let callers = Callers::start(&cluster, &["drill"], 6);
    for turn in 0..6 {
        let client = cluster.client(turn % 3);
        let written = client.register_text_model(&format!("w{turn}")).await;
        assert!(written.is_ok(), "{written:?}");
        callers.go_on(20).await;
    }
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());

    let urls = cluster.coordinators.iter();
    let urls: Vec<_> = urls.map(|node| format!("http://{}", node.http)).collect();
    let (text, ok) = process::run(&["--url", &urls.join(","), "doctor"]).await;
    assert!(
        ok,
        "a clock is something to look at, and no failure: {text}"
    );
    let told = text.matches("s off this machine's").count();
    assert_eq!((told, text.matches("is within").count()), (2, 1), "{text}");

    // Whoever leads dies; those whose clocks are off elect, and take it back under its own clock.
    let leader = cluster.wait_for_leader().await;
    cluster.coordinators[leader].kill().await;
    cluster.wait_for_leader().await;
    let other = cluster.client((leader + 1) % 3);
    let written = other.register_text_model("after").await;
    assert!(written.is_ok(), "{written:?}");
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        node.kill().await;
        node.setting = Setting::default();
        node.start();
    }
    cluster.wait_for_leader().await;
    settled(&cluster, "drill", 2, 2).await;
    for coordinator in 0..3 {
        cluster
            .wait(coordinator, "nothing is lost", |status| {
                let there = |name: &str| status.models.iter().any(|model| model.id == name);
                (0..6).all(|turn| there(&format!("w{turn}"))) && there("after")
            })
            .await;
    }
    say(&format!(
        "clocks an hour ahead and an hour behind: {} requests and 7 writes, 0 failed\n",
        tally.answered
    ));
}

/// Stops a node, and starts it again with another binary, on a file in its format.
async fn change(node: &mut Node, program: Option<PathBuf>) {
    node.stop().await;
    match &program {
        None => {
            let file = node.config.to_string_lossy().into_owned();
            let (text, ok) = process::run(&["config", "migrate", "--in-place", &file]).await;
            assert!(ok, "{text}");
        }
        Some(program) => write_for(program, node).await,
    }
    node.setting.program = program;
    node.start();
}

/// Writes a node's file in the format that `program` reads. What does not know `volley config`
/// reads the format from before the first version.
async fn write_for(program: &Path, node: &Node) {
    let mut command = tokio::process::Command::new(program);
    command
        .args(["config", "migrate", "--check"])
        .arg(&node.config);
    if command.output().await.unwrap().status.success() {
        return;
    }
    let text = std::fs::read_to_string(&node.config).unwrap();
    let sections = "[raft]\nwrite_timeout = \"10s\"\n\n[requests]\nmax_body_size = \"1MiB\"\n\n\
                    [resume]\nwindow = \"60s\"\n\n[shutdown]\n";
    let limits = "[limits]\nmax_body_bytes = 1048576\nresume_window = \"60s\"\n";
    let text = text
        .replacen("version = 1\n\n", "", 1)
        .replacen(sections, limits, 1)
        .replacen("[shutdown]\n", "[limits]\n", 1);
    std::fs::write(&node.config, text).unwrap();
}

/// `VOLLEY_BEFORE` is the binary of an earlier version. Without it there is nothing to mix.
#[tokio::test(flavor = "multi_thread")]
async fn workers_and_coordinators_of_two_versions_work_together_in_any_order() {
    let Some(before) = std::env::var_os("VOLLEY_BEFORE").map(PathBuf::from) else {
        return say("not run: VOLLEY_BEFORE names no earlier binary\n");
    };
    let mut cluster = Cluster::new(3, 3);
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        write_for(&before, node).await;
        node.setting.program = Some(before.clone());
    }
    cluster.run().await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 2).await;
    settled(&cluster, "drill", 3, 2).await;
    let callers = Callers::start(&cluster, &["drill"], 6);
    callers.go_on(50).await;
    // Workers first, then coordinators; and a worker goes back to the version before.
    for worker in 0..3 {
        change(&mut cluster.workers[worker], None).await;
        settled(&cluster, "drill", 3, 2).await;
        callers.go_on(50).await;
    }
    for coordinator in 0..3 {
        change(&mut cluster.coordinators[coordinator], None).await;
        settled(&cluster, "drill", 3, 2).await;
        callers.go_on(50).await;
    }
    change(&mut cluster.workers[0], Some(before)).await;
    settled(&cluster, "drill", 3, 2).await;
    callers.go_on(50).await;
    let tally = callers.stop().await;
    assert_eq!(tally.failures, Vec::<String>::new());
    say(&format!(
        "two versions beside each other: {} requests, 0 failed\n",
        tally.answered
    ));
}
