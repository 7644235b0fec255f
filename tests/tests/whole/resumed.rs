//! Streams that are cut and taken up again, at another process than the one that holds them.

use reqwest::{Client, Response};
use serde_json::json;
use volley_tests::cluster::Cluster;
use volley_tests::until;

/// A cut stream: its id, what came before the cut, and the id of the last whole event in that.
struct Cut {
    id: String,
    had: String,
    last: String,
}

fn http() -> Client {
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

async fn begin(cluster: &Cluster, coordinator: usize, chunks: u32) -> Response {
    let address = &cluster.coordinators[coordinator].http;
    let url = format!("http://{address}/_plugins/_ml/models/drill/_predict/stream");
    let parameters = json!({ "prompt": "x", "chunks": chunks, "delay_ms": 20, "text": "n{n} " });
    let request = http().post(url).header("x-volley-stream", "resumable");
    let body = json!({ "parameters": parameters }).to_string();
    let request = request
        .header("content-type", "application/json")
        .body(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

async fn take_up(cluster: &Cluster, coordinator: usize, id: &str, last: &str) -> Response {
    let address = &cluster.coordinators[coordinator].http;
    let request = http().get(format!("http://{address}/v1/streams/{id}"));
    request.header("last-event-id", last).send().await.unwrap()
}

/// Reads so many events and leaves; what came of the next one is thrown away.
async fn cut_after(mut response: Response, events: usize) -> Cut {
    let id = response.headers()["x-volley-stream-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let mut text = String::new();
    while text.matches("\n\n").count() < events {
        let piece = response.chunk().await.unwrap().expect("the stream goes on");
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    let end = text.match_indices("\n\n").nth(events - 1).unwrap().0 + 2;
    let had = text[..end].to_owned();
    let last = had
        .rsplit("id: ")
        .next()
        .unwrap()
        .lines()
        .next()
        .unwrap()
        .to_owned();
    Cut { id, had, last }
}

async fn drilled() -> Cluster {
    drilled_for("60s").await
}

/// The same, where a cut stream is held for so long.
async fn drilled_for(window: &str) -> Cluster {
    let mut cluster = Cluster::new(3, 1);
    for coordinator in 0..3 {
        cluster.configure(coordinator, |text| {
            let (usual, asked) = (
                "[resume]\nwindow = \"60s\"",
                format!("[resume]\nwindow = {window:?}"),
            );
            assert!(text.contains(usual), "{text}");
            text.replace(usual, &asked)
        });
    }
    cluster.run().await;
    let model = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&model, 1).await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_at_the_other_coordinators_and_is_lost_with_its_own() {
    let mut cluster = drilled().await;
    let first = cut_after(begin(&cluster, 0, 60).await, 7).await;
    let second = take_up(&cluster, 1, &first.id, &first.last).await;
    let second = cut_after(second, 11).await;
    let third = take_up(&cluster, 2, &first.id, &second.last)
        .await
        .text()
        .await
        .unwrap();
    let told = first.had + &second.had + &third;
    let events: Vec<_> = told.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 61);
    for (index, event) in events.iter().enumerate() {
        let head = format!("id: {}.{}\ndata: ", first.id, index + 1);
        assert!(event.starts_with(&head), "{event}");
        let word = format!("\"n{index} \"");
        assert!(index == 60 || event.contains(&word), "{event}");
    }
    for coordinator in 0..3 {
        let whole = take_up(&cluster, coordinator, &first.id, "").await;
        assert_eq!(
            whole.text().await.unwrap(),
            told,
            "byte for byte, from anywhere"
        );
        let last = format!("{}.61", first.id);
        let end = take_up(&cluster, coordinator, &first.id, &last).await;
        assert_eq!(end.status(), 204);
    }

    let held = cut_after(begin(&cluster, 0, 1_000).await, 3).await;
    cluster.coordinators[0].kill().await;
    for coordinator in [1, 2] {
        let lost = take_up(&cluster, coordinator, &held.id, &held.last).await;
        assert_eq!(lost.status(), 410);
        let body = lost.text().await.unwrap();
        assert!(body.contains("\"code\":\"not_found\""), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_takes_up_stops_its_worker() {
    // Long enough to be seen before it is over.
    let cluster = drilled_for("5s").await;
    let metric = async |address: &str, line: &str| {
        let text = http()
            .get(format!("http://{address}/metrics"))
            .send()
            .await
            .ok()?;
        text.text().await.ok()?.contains(line).then_some(())
    };
    let cut = cut_after(begin(&cluster, 0, 100_000).await, 3).await;
    let (worker, owner) = (&cluster.workers[0].http, &cluster.coordinators[0].http);
    let runs = "volley_active_streams{model=\"drill\"} 1";
    metric(worker, runs)
        .await
        .expect("the work goes on for a while");
    until("the worker is told", || {
        metric(
            worker,
            "volley_requests_total{model=\"drill\",code=\"cancelled\"} 1",
        )
    })
    .await;
    for (node, line) in [
        (worker, "volley_active_streams{model=\"drill\"} 0"),
        (owner, "volley_streams_abandoned_total 1"),
        (owner, "volley_resumable_streams 0"),
    ] {
        until(line, || metric(node, line)).await;
    }
    let gone = take_up(&cluster, 1, &cut.id, &cut.last).await;
    assert_eq!(gone.status(), 410);
}
