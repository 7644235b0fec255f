//! Clients that mean harm: slow senders, floods of connections, requests taken back as they come.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{PendingRequest, ask, get, say};
use super::stage::Stage;
use super::{Figure, Scale, quantile};

/// How long a request's headers may take here, and its body.
const PATIENCE: Duration = Duration::from_secs(2);
/// Beyond it, a slow client is cut no later than this.
const GRACE: Duration = Duration::from_secs(2);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
const ALIVE: &str = "/_volley/health/live";

/// Headers that come a byte at a time, bodies that do, and clients that never say a word.
///
/// # Panics
/// When no connection can be made.
pub async fn slow(scale: &Scale) -> Figure {
    let limits = format!(
        "[http]\nheader_timeout = \"{0}s\"\nbody_timeout = \"{0}s\"\n",
        PATIENCE.as_secs()
    );
    let stage = Stage::set(0, &limits, "").await;
    stage.cluster.wait_for_leader().await;
    let address = stage.address().to_owned();
    let head = "GET / HTTP/1.1\r\nhost: volley\r\nx-slow: ";
    let body = "POST /_plugins/_ml/models/_register HTTP/1.1\r\nhost: volley\r\n\
                content-type: application/json\r\ncontent-length: 100000\r\n\r\n{";
    let began = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..scale.slow {
        for start in [head, body, ""] {
            let address = address.clone();
            clients.spawn(async move {
                let asked = say(&address, start.as_bytes()).await.expect("a connection");
                drip(asked).await
            });
        }
    }
    let mut good = Vec::new();
    while began.elapsed() < PATIENCE {
        let asked = Instant::now();
        let alive = get(&address, ALIVE).await;
        assert!(alive.is_ok(), "others are served");
        good.push(asked.elapsed().as_secs_f64() * 1_000.0);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut longest = Duration::ZERO;
    let mut open = 0;
    while let Some(cut) = clients.join_next().await {
        match cut.expect("a client") {
            Some(after) => longest = longest.max(after),
            None => open += 1,
        }
    }
    let p99 = quantile(&mut good, 990);
    Figure {
        promise: "slow senders of headers and bodies are cut, and nobody else waits",
        told: format!(
            "{} slow clients: all cut within {:.1} s of {:.0} s, {open} left open; others \
             answered in {p99:.0} ms p99",
            scale.slow * 3,
            longest.as_secs_f64(),
            PATIENCE.as_secs_f64()
        ),
        held: open == 0 && longest <= PATIENCE + GRACE.mul_f64(scale.slack.min(3.0)),
    }
}

/// Clients that begin a TLS handshake and do not go on, or do not even begin.
///
/// # Panics
/// When no certificate can be made, or no connection.
pub async fn handshakes(scale: &Scale) -> Figure {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let files = [
        ("edge.pem", certificate.pem()),
        ("edge.key", key.serialize_pem()),
    ];
    let paths = files.map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    });
    let tls = format!(
        "\n[security.tls]\ncertificate = {:?}\nkey = {:?}\n",
        paths[0], paths[1]
    );
    let stage = Stage::set(0, &tls, "").await;
    let address = stage.address().to_owned();
    let listens = || async { TcpStream::connect(&address).await.ok().map(drop) };
    crate::until("it listens", listens).await;
    let mut clients = tokio::task::JoinSet::new();
    // The beginning of a ClientHello that says that it is long.
    for start in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        for _ in 0..scale.slow {
            let address = address.clone();
            clients.spawn(async move {
                let asked = say(&address, start).await.expect("a connection");
                asked.closed_within(HANDSHAKE * 4).await
            });
        }
    }
    let (mut longest, mut open) = (Duration::ZERO, 0);
    while let Some(cut) = clients.join_next().await {
        match cut.expect("a client") {
            Some(after) => longest = longest.max(after),
            None => open += 1,
        }
    }
    Figure {
        promise: "TLS handshakes that do not come to an end are given up",
        told: format!(
            "{} clients: all cut within {:.1} s of {:.0} s, {open} left open",
            scale.slow * 2,
            longest.as_secs_f64(),
            HANDSHAKE.as_secs_f64()
        ),
        held: open == 0 && longest <= HANDSHAKE + GRACE.mul_f64(scale.slack.min(3.0)),
    }
}

/// Sends a byte now and then; when the server has closed.
async fn drip(mut asked: PendingRequest) -> Option<Duration> {
    let limit = PATIENCE * 10;
    let mut piece = [0; 256];
    while asked.began.elapsed() < limit {
        let read = tokio::time::timeout(Duration::from_millis(200), asked.socket.read(&mut piece));
        match read.await {
            Ok(Ok(0) | Err(_)) => return Some(asked.began.elapsed()),
            // An answer before the end of the connection.
            Ok(Ok(_)) => {}
            Err(_) if asked.socket.write_all(b"a").await.is_err() => {
                return Some(asked.began.elapsed());
            }
            Err(_) => {}
        }
    }
    None
}

/// Connections past the cap: refused at once, and taken again once there is a place.
///
/// # Panics
/// When the first streams cannot be opened.
pub async fn flood(scale: &Scale) -> Figure {
    const CAP: usize = 32;
    let stage = Stage::set(
        1,
        &format!("[http]\nmax_connections = {CAP}\nmax_connections_per_address = {CAP}\n"),
        "",
    )
    .await;
    stage.deploy("quiet", CAP * 2).await;
    let script = json!({ "prompt": "x", "chunks": 2, "delay_ms": 3_600_000 });
    let mut held = Vec::new();
    // Connections of the tests themselves may hold some of the places for a moment.
    let by = Instant::now() + Duration::from_secs(30);
    while held.len() < CAP && Instant::now() < by {
        let mut asked = ask(stage.address(), "quiet", &script).await.expect("open");
        if asked.first().await.is_ok() {
            held.push(asked);
        }
    }
    let before = stage.resident()[0];
    let (mut told, mut machine) = (Vec::new(), Vec::new());
    let mut refused = 0;
    let neighbour = &stage.cluster.workers[0].http;
    for _ in 0..scale.flood {
        let Ok(asked) = ask(stage.address(), "quiet", &script).await else {
            continue;
        };
        let answer = asked.answer().await;
        let is_refusal = answer.status == 503 && answer.text.contains("retry-after");
        refused += usize::from(is_refusal);
        told.push(answer.after.as_secs_f64() * 1_000.0);
        if scale.slack != 1.0 {
            let asked = Instant::now();
            // Only how long it takes counts.
            let _ = get(neighbour, ALIVE).await;
            machine.push(asked.elapsed().as_secs_f64() * 1_000.0);
        }
    }
    // Beside other tests, what the machine itself makes everybody wait is no delay of a refusal.
    let bound = match scale.slack {
        1.0 => 50.0,
        slack => 50.0 * slack + 3.0 * quantile(&mut machine, 990),
    };
    let grown = stage.resident()[0].saturating_sub(before) >> 10;
    let full = held.len();
    drop(held);
    let freed = Instant::now();
    let again = loop {
        if let Ok(mut asked) = ask(stage.address(), "quiet", &script).await
            && asked.first().await.is_ok()
        {
            break freed.elapsed();
        }
        assert!(freed.elapsed() < Duration::from_secs(30), "places are free");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let p99 = quantile(&mut told, 990);
    Figure {
        promise: "connections past the cap are refused within 50 ms",
        told: format!(
            "{refused} of {} refused in {p99:.1} ms p99 beside {full} that are held, {grown} KiB \
             grown; the next one taken {:.0} ms after places were free",
            scale.flood,
            again.as_secs_f64() * 1_000.0
        ),
        held: full == CAP && refused * 100 >= scale.flood * 99 && p99 <= bound && grown <= 16 << 10,
    }
}

/// HTTP/2 requests that are reset as they are sent.
///
/// # Panics
/// When no connection can be made.
pub async fn resets(scale: &Scale) -> Figure {
    let stage = Stage::set(1, "", "").await;
    stage.deploy("quiet", 64).await;
    let before = stage.settled().await[0];
    let began = Instant::now();
    let (mut sent, mut connections, mut longest) = (0, 0, 0.0_f64);
    while sent < scale.resets && began.elapsed() < Duration::from_secs(60) {
        connections += 1;
        sent += rapid_resets(stage.address(), scale.resets - sent).await;
        let asked = Instant::now();
        assert!(
            get(stage.address(), ALIVE).await.is_ok(),
            "others are served"
        );
        longest = longest.max(asked.elapsed().as_secs_f64() * 1_000.0);
    }
    let grown = stage.settled().await[0].saturating_sub(before) >> 10;
    let each = sent / connections.max(1);
    Figure {
        promise: "HTTP/2 requests that are reset as they come end their connection",
        told: format!(
            "{sent} requests over {connections} connections, each closed after {each}; others \
             answered in at most {longest:.0} ms, {grown} KiB grown"
        ),
        held: each <= 20_000 && longest <= 250.0 * scale.slack && grown <= 32 << 10,
    }
}

/// Sends up to `most` requests, each with its reset, until the server closes; how many.
async fn rapid_resets(address: &str, most: usize) -> usize {
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    let (mut reading, mut writing) = socket.split();
    let closed = async {
        let mut piece = [0; 4 << 10];
        while let Ok(1..) = reading.read(&mut piece).await {}
    };
    let mut sent = 0;
    let sending = async {
        let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        preface.extend(frame(4, 0, 0, &[]));
        if writing.write_all(&preface).await.is_err() {
            return;
        }
        while sent < most {
            let mut batch = Vec::new();
            for stream in sent..(sent + 100).min(most) {
                let stream = u32::try_from(stream).unwrap_or(0) * 2 + 1;
                // `:method: GET`, `:scheme: http`, `:path: /` and an authority.
                let block = b"\x82\x86\x84\x41\x06volley";
                batch.extend(frame(1, 5, stream, block));
                // Cancelled.
                batch.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
            }
            if writing.write_all(&batch).await.is_err() {
                return;
            }
            sent += 100;
        }
        // Whatever comes now comes within a moment.
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        () = closed => {}
        () = sending => {}
    }
    sent.max(1)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}
