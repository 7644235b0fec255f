//! WebSockets: requests and responses, limits, access, and disconnects.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_schema::{DataType, Field, Schema};
use futures::{SinkExt, StreamExt};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use volley_gateway::{ApiConfig, EdgeConfig, Origins};
use volley_types::{GenerationChunks, Signature, Task};

use super::support::{Edge, SOON, Script, eventually, last, request, text};

const PATH: &str = "/_plugins/_ml/models/m/_predict/ws";

type Socket = WebSocketStream<TcpStream>;

async fn try_open(edge: &Edge, headers: &[(&str, &str)]) -> Result<(Socket, Response<()>), Error> {
    let mut asked: Request<()> = format!("ws://{}{PATH}", edge.address)
        .into_client_request()
        .unwrap();
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        asked.headers_mut().insert(name, value.parse().unwrap());
    }
    let socket = TcpStream::connect(edge.address).await.unwrap();
    let opened = tokio_tungstenite::client_async(asked, socket).await;
    opened.map(|(socket, response)| (socket, response.map(drop)))
}

async fn open(edge: &Edge) -> Socket {
    try_open(edge, &[]).await.unwrap().0
}

async fn refused(edge: &Edge, headers: &[(&str, &str)]) -> StatusCode {
    match try_open(edge, headers).await {
        Err(Error::Http(response)) => response.status(),
        other => panic!("{other:?}"),
    }
}

async fn say(socket: &mut Socket, message: Value) {
    socket
        .send(Message::text(message.to_string()))
        .await
        .unwrap();
}

async fn message(socket: &mut Socket) -> Message {
    loop {
        let next = tokio::time::timeout(SOON, socket.next()).await;
        let next = next
            .expect("a message in time")
            .expect("the socket is open");
        match next.unwrap() {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

async fn told(socket: &mut Socket) -> Value {
    match message(socket).await {
        Message::Text(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn open_streams(edge: &Edge) -> usize {
    edge.cluster.open.load(Ordering::SeqCst)
}

fn ask(id: &str) -> Value {
    json!({ "id": id, "rows": [{ "prompt": "tell" }], "parameters": { "temperature": 0.5 } })
}

fn numbers() -> Signature {
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float32, false)]));
    Signature {
        task: Task::Tensors,
        input: schema.clone(),
        output: schema,
    }
}

#[tokio::test]
async fn requests_are_messages_and_so_are_the_pieces_of_their_answers() {
    let edge = Edge::start().await;
    let chunks = || Script::Chunks(vec![text("Once"), text(" upon"), last()]);
    edge.cluster.script("m", chunks());
    let mut socket = open(&edge).await;
    for id in ["a", "b"] {
        say(&mut socket, ask(id)).await;
        assert_eq!(
            told(&mut socket).await,
            json!({ "id": id, "item": 0, "text": "Once" })
        );
        assert_eq!(
            told(&mut socket).await,
            json!({ "id": id, "item": 0, "text": " upon" })
        );
        assert_eq!(
            told(&mut socket).await,
            json!({ "id": id, "item": 0, "last": true })
        );
    }
    let call = edge.cluster.last_call();
    assert_eq!(call.parameters.float("temperature").unwrap(), Some(0.5));

    edge.cluster.script("m", Script::Echo(numbers()));
    let mut socket = open(&edge).await;
    say(
        &mut socket,
        json!({ "id": "n", "rows": [{ "x": 1.5 }, { "x": 2.5 }] }),
    )
    .await;
    for (item, value) in [(0, 1.5), (1, 2.5)] {
        let told = told(&mut socket).await;
        assert_eq!((&told["id"], &told["item"]), (&json!("n"), &json!(item)));
        assert_eq!(told["output"][0]["data"], json!([value]));
    }
    let end = told(&mut socket).await;
    assert_eq!(end, json!({ "id": "n", "items": 2, "last": true }));
    socket.close(None).await.unwrap();
    let over = message(&mut socket).await;
    assert!(matches!(over, Message::Close(_)), "{over:?}");
    eventually("all work is done", || open_streams(&edge) == 0).await;
}

#[tokio::test]
async fn what_is_wrong_is_told_under_its_id_and_the_socket_goes_on() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Echo(numbers()));
    let mut socket = open(&edge).await;
    for (bad, id, status) in [
        (json!([]), json!(null), 400),
        (json!({ "id": "a" }), json!("a"), 400),
        (
            json!({ "id": "a", "rows": [{ "x": "no" }] }),
            json!("a"),
            400,
        ),
        (
            json!({ "id": "a", "rows": [{ "x": 1 }], "timeout_ms": 99_999_999 }),
            json!("a"),
            400,
        ),
    ] {
        say(&mut socket, bad.clone()).await;
        let told = told(&mut socket).await;
        assert_eq!(
            (&told["id"], &told["status"]),
            (&id, &json!(status)),
            "{bad}: {told}"
        );
        assert_eq!(told["code"], "invalid_input");
    }
    say(&mut socket, json!({ "id": "a", "rows": [{ "x": 1 }] })).await;
    assert_eq!(told(&mut socket).await["item"], 0);
}

#[tokio::test]
async fn a_request_can_be_cancelled_a_socket_has_so_many_and_one_that_goes_takes_them_with_it() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    let mut socket = open(&edge).await;
    say(&mut socket, ask("a")).await;
    feed.send(Ok(GenerationChunks::single(&text("x"))))
        .await
        .unwrap();
    assert_eq!(told(&mut socket).await["text"], "x");
    assert_eq!(open_streams(&edge), 1);
    say(&mut socket, ask("a")).await;
    assert!(
        told(&mut socket).await["error"]
            .as_str()
            .unwrap()
            .contains("with this id")
    );
    say(&mut socket, json!({ "cancel": "a" })).await;
    let over = told(&mut socket).await;
    assert_eq!(
        (&over["id"], &over["code"]),
        (&json!("a"), &json!("cancelled"))
    );
    eventually("its work stops", || open_streams(&edge) == 0).await;
    // A cancellation that is too late has no reply.
    say(&mut socket, json!({ "cancel": "a" })).await;

    edge.cluster.script("m", Script::Deaf(numbers()));
    let mut socket = open(&edge).await;
    for id in 0..16 {
        say(
            &mut socket,
            json!({ "id": id.to_string(), "rows": [{ "x": 1 }] }),
        )
        .await;
    }
    say(&mut socket, json!({ "id": "more", "rows": [{ "x": 1 }] })).await;
    let refused = told(&mut socket).await;
    assert_eq!(
        (&refused["id"], &refused["status"]),
        (&json!("more"), &json!(429))
    );
    eventually("all run", || open_streams(&edge) == 16).await;
    drop(socket);
    eventually("nothing is left", || open_streams(&edge) == 0).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_makes_its_model_wait_and_is_cut() {
    let config = ApiConfig::from(EdgeConfig {
        write_stall: Duration::from_millis(1_500),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    let mut socket = open(&edge).await;
    say(&mut socket, ask("a")).await;
    let chunk = GenerationChunks::single(&text(&"x".repeat(64 << 10)));
    let mut sent = 0;
    let flood = async {
        while feed.send(Ok(chunk.clone())).await.is_ok() {
            sent += 1;
        }
    };
    let cut = tokio::time::timeout(SOON, flood).await;
    assert!(cut.is_ok(), "the work is dropped");
    assert!(
        sent < 64 + 128,
        "{sent} chunks were taken of a client that reads none"
    );
    assert_eq!(open_streams(&edge), 0);
}

#[tokio::test]
async fn messages_have_limits_and_pings_have_answers() {
    let config = ApiConfig::from(EdgeConfig {
        max_body_bytes: 10_000,
        keep_alive: Duration::from_millis(50),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    edge.cluster.script("m", Script::Echo(numbers()));
    for (bad, code) in [
        (Message::text("x".repeat(10_001)), CloseCode::Size),
        (Message::binary(vec![1]), CloseCode::Unsupported),
    ] {
        let mut socket = open(&edge).await;
        socket.send(bad).await.unwrap();
        match message(&mut socket).await {
            Message::Close(Some(frame)) => assert_eq!(frame.code, code),
            other => panic!("{other:?}"),
        }
    }
    let mut socket = open(&edge).await;
    socket.send(Message::Ping("hi".into())).await.unwrap();
    let (mut pinged, mut ponged) = (false, false);
    while !(pinged && ponged) {
        let next = tokio::time::timeout(SOON, socket.next()).await.unwrap();
        match next.unwrap().unwrap() {
            Message::Ping(_) => pinged = true,
            Message::Pong(said) => ponged = said == "hi",
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_silent_client_is_cut_and_a_server_that_stops_says_so() {
    let config = ApiConfig::from(EdgeConfig {
        keep_alive: Duration::from_millis(50),
        write_stall: Duration::from_millis(300),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    let feed = edge.cluster.feed("m");
    // The client answers no pings, because nothing reads its socket.
    let mut silent = open(&edge).await;
    say(&mut silent, ask("a")).await;
    eventually("it runs", || open_streams(&edge) == 1).await;
    eventually("it is cut", || open_streams(&edge) == 0).await;
    drop(feed);

    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    let mut socket = open(&edge).await;
    say(&mut socket, ask("a")).await;
    feed.send(Ok(GenerationChunks::single(&text("x"))))
        .await
        .unwrap();
    assert_eq!(told(&mut socket).await["text"], "x");
    edge.shutdown.cancel();
    let closed = async {
        while TcpStream::connect(edge.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, closed)
        .await
        .expect("the port is closed");
    say(&mut socket, ask("b")).await;
    assert_eq!(told(&mut socket).await["status"], 503);
    feed.send(Ok(GenerationChunks::single(&last())))
        .await
        .unwrap();
    assert_eq!(
        told(&mut socket).await["last"],
        true,
        "what runs comes to its end"
    );
    match message(&mut socket).await {
        Message::Close(Some(frame)) => assert_eq!(frame.code, CloseCode::Away),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_pages_that_are_named_open_sockets_and_only_handshakes_are_answered() {
    let edge = Edge::allowing(Origins::new(&["https://app.example"]).unwrap()).await;
    edge.cluster.script("m", Script::Echo(numbers()));
    let own = format!("http://{}", edge.address);
    for origin in ["https://app.example", &own] {
        try_open(&edge, &[("origin", origin)]).await.unwrap();
    }
    for origin in ["https://evil.example", "null"] {
        assert_eq!(refused(&edge, &[("origin", origin)]).await, 403);
    }
    assert_eq!(refused(&edge, &[("sec-websocket-version", "8")]).await, 426);
    assert_eq!(refused(&edge, &[("sec-websocket-key", "short")]).await, 400);
    assert_eq!(
        refused(&edge, &[("sec-websocket-protocol", "chat")]).await,
        400
    );
    let (_, response) = try_open(&edge, &[("sec-websocket-protocol", "volley.v1")])
        .await
        .unwrap();
    assert_eq!(response.headers()["sec-websocket-protocol"], "volley.v1");
    assert_eq!(edge.get(PATH).await.status, 426);
    let unknown = edge.get(&PATH.replace("/m/", "/nobody/")).await;
    assert_eq!(unknown.status, 426, "the handshake comes first");
}

#[tokio::test]
async fn browsers_that_ask_first_are_answered_for_named_origins_alone() {
    let asked = |origin: &str| {
        let mut asked = request(Method::OPTIONS, "/v1/chat/completions", "");
        let headers = asked.headers_mut();
        headers.insert("origin", origin.parse().unwrap());
        headers.insert("access-control-request-method", "POST".parse().unwrap());
        let wanted = "content-type, x-volley-stream".parse().unwrap();
        headers.insert("access-control-request-headers", wanted);
        asked
    };
    let closed = Edge::start().await;
    let reply = closed.send(asked("https://app.example")).await;
    assert_eq!(reply.status, 405);
    assert!(!reply.headers.contains_key("access-control-allow-origin"));

    let edge = Edge::allowing(Origins::new(&["https://app.example"]).unwrap()).await;
    let reply = edge.send(asked("https://app.example")).await;
    assert_eq!(reply.status, 200);
    let allowed = |name: &str| reply.headers[name].to_str().unwrap().to_owned();
    assert_eq!(
        allowed("access-control-allow-origin"),
        "https://app.example"
    );
    assert!(allowed("access-control-allow-headers").contains("x-volley-stream"));
    assert!(allowed("access-control-allow-methods").contains("DELETE"));
    let foreign = edge.send(asked("https://evil.example")).await;
    assert!(!foreign.headers.contains_key("access-control-allow-origin"));
    let mut get = request(Method::GET, "/_volley/health/live", "");
    let origin = "https://app.example".parse().unwrap();
    get.headers_mut().insert("origin", origin);
    let reply = edge.send(get).await;
    let exposed = reply.headers["access-control-expose-headers"]
        .to_str()
        .unwrap();
    assert!(exposed.contains("x-volley-stream-id"), "{exposed}");
}

#[tokio::test]
async fn a_page_sends_its_key_as_a_subprotocol_which_is_never_echoed() {
    let edge = super::keys::edge().await;
    let body = json!({ "name": "page", "role": "predict", "models": ["team-a.*"] });
    let (_, key) = super::keys::make(&edge, body).await;
    let open = async |model: &str, protocols: &str| {
        let path = PATH.replace("/m/", &format!("/{model}/"));
        let asked = format!("ws://{}{path}", edge.address);
        let mut asked: Request<()> = asked.into_client_request().unwrap();
        let protocols = protocols.parse().unwrap();
        let headers = asked.headers_mut();
        headers.insert("sec-websocket-protocol", protocols);
        let socket = TcpStream::connect(edge.address).await.unwrap();
        match tokio_tungstenite::client_async(asked, socket).await {
            Ok((socket, response)) => {
                let spoken = &response.headers()["sec-websocket-protocol"];
                assert_eq!(spoken, "volley.v1");
                assert!(!format!("{:?}", response.headers()).contains(&key));
                Ok(socket)
            }
            Err(Error::Http(response)) => Err(response.status()),
            Err(other) => panic!("{other:?}"),
        }
    };
    let with = |key: &str| format!("volley.v1, volley.key.{key}");
    let mut socket = open("team-a.chat", &with(&key)).await.unwrap();
    say(&mut socket, ask("a")).await;
    assert_eq!(told(&mut socket).await["text"], "hi");
    let refused = async |model: &str, protocols: &str| open(model, protocols).await.unwrap_err();
    assert_eq!(refused("team-b.chat", &with(&key)).await, 404);
    assert_eq!(refused("team-a.chat", &with("vly_1_wrong")).await, 401);
    assert_eq!(refused("team-a.chat", "volley.v1").await, 401);
}

#[tokio::test]
async fn a_defect_fails_its_own_request_and_nothing_else() {
    let edge = Edge::start().await;
    let feed = edge.cluster.feed("m");
    let mut socket = open(&edge).await;
    say(&mut socket, ask("good")).await;
    eventually("it runs", || open_streams(&edge) == 1).await;
    edge.cluster.script("m", Script::Panics);
    say(&mut socket, ask("bad")).await;
    let failed = told(&mut socket).await;
    assert_eq!(
        (&failed["id"], &failed["status"]),
        (&json!("bad"), &json!(500))
    );
    let end = Ok(GenerationChunks::single(&last()));
    feed.send(end).await.unwrap();
    assert_eq!(told(&mut socket).await["id"], "good");
}
