//! One key's limits, over three real coordinators: what it uses at one counts at all.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use volley_tests::until;

use crate::aliases::fake;
use crate::tenants::{Caller, caller, guarded};

const LIMIT: usize = 30;

fn chat(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] })
}

async fn ask(caller: &Caller, model: &str) -> StatusCode {
    let body = chat(model);
    let told = caller.send(&Method::POST, "/v1/chat/completions", &body);
    told.await.status
}

/// Asks five times a second until that is refused; gives how often it was answered.
async fn ask_on(caller: &Caller) -> usize {
    // Slower than coordinators tell each other what was used, on a busy machine too.
    let mut pace = tokio::time::interval(Duration::from_millis(200));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for answered in 0..3 * LIMIT {
        pace.tick().await;
        match ask(caller, "quick").await {
            StatusCode::OK => {}
            StatusCode::TOO_MANY_REQUESTS => return answered,
            status => panic!("{status}"),
        }
    }
    panic!("nothing was refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keys_limits_hold_for_three_coordinators_together() {
    let (cluster, admins) = guarded(3, 1).await;
    cluster
        .deploy(&fake("quick", json!({ "text": "x" })), 1)
        .await;
    let slow = json!({ "text": "x", "chunks": 10_000, "delay_ms": 50 });
    cluster.deploy(&fake("slow", slow), 1).await;
    let limits = json!({ "requests_per_minute": LIMIT });
    let key = json!({ "name": "many", "role": "predict", "limits": limits });
    let one = caller(&admins[0], key).await;
    let all: Vec<_> = admins.iter().map(|admin| one.at(admin)).collect();
    until("every coordinator knows the key", || async {
        for caller in &all {
            let who = caller
                .send(&Method::GET, "/_volley/whoami", &Value::Null)
                .await;
            if who.status != StatusCode::OK {
                return None;
            }
        }
        Some(())
    })
    .await;

    let (a, b, c) = tokio::join!(ask_on(&all[0]), ask_on(&all[1]), ask_on(&all[2]));
    let answered = a + b + c;
    // By themselves they would have answered three times as many. What comes back in the time, and
    // what begins before the others have heard of it, comes on top.
    assert!(
        (LIMIT..2 * LIMIT).contains(&answered),
        "of {LIMIT} a minute {answered} were answered at once: {a}, {b} and {c}"
    );
    until("all have heard that nothing is left", || async {
        for caller in &all {
            if ask(caller, "quick").await == StatusCode::OK {
                return None;
            }
        }
        Some(())
    })
    .await;

    let key = json!({ "name": "one", "role": "predict", "limits": { "max_streams": 1 } });
    let one = caller(&admins[0], key).await;
    let path = "/_plugins/_ml/models/slow/_predict/stream";
    let body = json!({ "parameters": { "prompt": "x" } });
    let other = one.at(&admins[1]);
    let mut stream = one.open(path, &body).await;
    assert!(stream.chunk().await.unwrap().is_some());
    until("the other coordinator has heard of the stream", || async {
        (ask(&other, "quick").await == StatusCode::TOO_MANY_REQUESTS).then_some(())
    })
    .await;
    drop(stream);
    until("it has heard of its end", || async {
        (ask(&other, "quick").await == StatusCode::OK).then_some(())
    })
    .await;
}
