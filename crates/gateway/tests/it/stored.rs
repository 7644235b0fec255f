//! Stored responses, and requests that continue from them.

use std::sync::Arc;

use serde_json::{Value, json};
use volley_gateway::{ApiConfig, LocalStreams, PeerStreams, Responses, ResponsesConfig, Streams};
use volley_types::chat::conversation;
use volley_types::{NodeId, StreamSource};

use super::reference::talker;
use super::support::{Edge, typed_events};

const RESPONSES: &str = "/v1/responses";

async fn ask(edge: &Edge, more: &Value) -> Value {
    let mut body = json!({ "model": "m", "input": "Hi" });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    edge.post(RESPONSES, &body.to_string()).await.ok()
}

fn said(edge: &Edge) -> Vec<(String, String)> {
    let called = edge.cluster.last_call();
    let said = conversation(called.rows.column_by_name("messages").unwrap(), 0).unwrap();
    said.into_iter().map(|it| (it.role, it.content)).collect()
}

fn pairs(said: &[(String, String)]) -> Vec<(&str, &str)> {
    said.iter()
        .map(|(role, text)| (role.as_str(), text.as_str()))
        .collect()
}

#[tokio::test]
async fn a_conversation_goes_on_behind_a_response() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let first = ask(&edge, &json!({ "instructions": "Be brief." })).await;
    assert_eq!(
        (&first["store"], &first["previous_response_id"]),
        (&json!(true), &Value::Null)
    );
    let id = first["id"].as_str().unwrap();
    let second = ask(
        &edge,
        &json!({ "input": "And?", "previous_response_id": id }),
    )
    .await;
    assert_eq!(second["previous_response_id"], id);
    let told = said(&edge);
    let expected = [
        ("user", "Hi"),
        ("assistant", "Hello there"),
        ("user", "And?"),
    ];
    assert_eq!(pairs(&told), expected, "instructions do not go on");
    let again = json!({ "input": "So?", "previous_response_id": second["id"] });
    ask(&edge, &again).await;
    assert_eq!(said(&edge).len(), 5);
}

#[tokio::test]
async fn a_response_is_read_again_and_forgotten() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let first = ask(&edge, &json!({})).await;
    let path = format!("{RESPONSES}/{}", first["id"].as_str().unwrap());
    assert_eq!(edge.get(&path).await.ok(), first);
    let items = edge.get(&format!("{path}/input_items")).await.ok();
    assert_eq!(
        (&items["object"], &items["has_more"]),
        (&json!("list"), &json!(false))
    );
    assert_eq!(items["data"][0]["content"][0]["text"], "Hi");
    assert_eq!(items["first_id"], items["data"][0]["id"]);
    let next = ask(
        &edge,
        &json!({ "input": "B", "previous_response_id": first["id"] }),
    )
    .await;
    let next = format!("{RESPONSES}/{}/input_items", next["id"].as_str().unwrap());
    let page = edge.get(&format!("{next}?limit=2&order=asc")).await.ok();
    assert_eq!(
        (page["data"].as_array().unwrap().len(), &page["has_more"]),
        (2, &json!(true))
    );
    let after = page["last_id"].as_str().unwrap();
    let page = edge
        .get(&format!("{next}?order=asc&after={after}"))
        .await
        .ok();
    assert_eq!(page["data"][0]["content"][0]["text"], "B");
    edge.get(&format!("{next}?order=up"))
        .await
        .refused_openai(400);

    let deleted = edge.delete(&path).await.ok();
    assert_eq!(deleted["deleted"], true);
    for gone in [edge.get(&path).await, edge.delete(&path).await] {
        assert_eq!(gone.status, 404);
        assert_eq!(gone.json()["error"]["code"], "response_not_found");
    }
    let body = json!({ "model": "m", "input": "x", "previous_response_id": first["id"] });
    let refused = edge.post(RESPONSES, &body.to_string()).await;
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.json()["error"]["code"],
        "previous_response_not_found"
    );
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
}

#[tokio::test]
async fn what_is_not_to_be_stored_is_not() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let told = ask(&edge, &json!({ "store": false })).await;
    assert_eq!(told["store"], false);
    let path = format!("{RESPONSES}/{}", told["id"].as_str().unwrap());
    edge.get(&path).await.refused_openai(404);
    let wrong = r#"{"model":"m","input":"x","store":"yes"}"#;
    edge.post(RESPONSES, wrong).await.refused_openai(400);
    let small = ResponsesConfig {
        response_bytes: 10,
        ..ResponsesConfig::default()
    };
    let edge = Edge::with(ApiConfig {
        responses: small,
        ..ApiConfig::default()
    })
    .await;
    edge.cluster.script("m", talker());
    assert_eq!(
        ask(&edge, &json!({})).await["store"],
        false,
        "it is too large"
    );
}

#[tokio::test]
async fn a_streamed_response_is_stored_too() {
    let edge = Edge::start().await;
    edge.cluster.script("m", talker());
    let body = r#"{"model":"m","input":"Hi","stream":true}"#;
    let events = typed_events(&edge.post(RESPONSES, body).await);
    let ended = &events.last().unwrap()["response"];
    let path = format!("{RESPONSES}/{}", ended["id"].as_str().unwrap());
    assert_eq!(&edge.get(&path).await.ok(), ended);
}

#[tokio::test]
async fn a_response_is_found_through_any_coordinator() {
    let all = [1, 2].map(|id| LocalStreams {
        streams: Streams::new(NodeId(id), ApiConfig::default().resume),
        responses: Responses::new(NodeId(id), ResponsesConfig::default()),
    });
    let held = all.clone();
    let peers: PeerStreams = Arc::new(move |node: NodeId| {
        let held = held.get(usize::try_from(node.0).ok()?.checked_sub(1)?)?;
        Some(Arc::new(held.clone()) as Arc<dyn StreamSource>)
    });
    let [one, two] = all;
    let one = Edge::holding_responses(one, peers.clone()).await;
    let two = Edge::holding_responses(two, peers).await;
    one.cluster.script("m", talker());
    two.cluster.script("m", talker());
    let first = ask(&one, &json!({})).await;
    let path = format!("{RESPONSES}/{}", first["id"].as_str().unwrap());
    assert_eq!(two.get(&path).await.ok(), first);
    ask(
        &two,
        &json!({ "input": "B", "previous_response_id": first["id"] }),
    )
    .await;
    assert_eq!(said(&two).len(), 3);
    two.delete(&path).await.ok();
    one.get(&path).await.refused_openai(404);
    let elsewhere = path.replace("resp_1_", "resp_9_");
    two.get(&elsewhere).await.refused_openai(404);
}
