//! The LiteLLM proxy: a third-party server with both formats.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use volley_types::registry::ProviderName;
use volley_types::{ErrorCode, FinishReason};

use crate::server::{config, connector, key_file, load, open, read};

/// The proxy takes long to start because of its imports.
const PATIENCE: Duration = Duration::from_secs(300);

async fn proxy() -> (Child, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/litellm");
    let installed = folder
        .join("../../../target/venv-litellm/bin/litellm")
        .exists();
    assert!(installed, "run scripts/get-litellm.sh before the tests");
    // Below the ephemeral ports, which the system could assign before the proxy listens.
    let mut ports = (4_000..5_000).skip(usize::try_from(std::process::id() % 900).unwrap());
    let port = ports
        .find(|port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port");
    let mut child = Command::new(folder.join("run.sh"))
        .arg(port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let address = format!("127.0.0.1:{port}");
    let listening = async {
        while tokio::net::TcpStream::connect(&address).await.is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the proxy ended");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, listening)
        .await
        .expect("the proxy listens in time");
    (child, format!("http://{address}"))
}

#[tokio::test]
async fn a_real_proxy_streams_in_both_formats() {
    let (_proxy, base) = proxy().await;
    let key = key_file("sk-volley-test");
    let formats = [
        (
            ProviderName::from_static("openai"),
            "/v1/chat/completions",
            "mock-gpt",
            "The quick brown fox jumps over the lazy dog, says the proxy.",
        ),
        (
            ProviderName::from_static("anthropic"),
            "/v1/messages",
            "mock-claude",
            "Every good boy deserves fudge, says the other proxy.",
        ),
    ];
    let mut patient = config();
    patient.first_byte_timeout = Duration::from_secs(60);
    patient.stall_timeout = Duration::from_secs(60);
    for (provider, path, model, says) in formats {
        let mut spec = connector(&format!("{base}{path}"), provider);
        spec.model = model.to_owned();
        spec.credential = Some(key.clone());
        let loaded = load(spec.clone(), patient.clone()).await.unwrap();
        let answer = read(open(&loaded, &[]).await).await;
        assert_eq!(answer.text, says);
        assert_eq!(answer.finish, Some(FinishReason::Stop));
        assert!(
            answer.rows > 5,
            "it came as a stream and not whole: {answer:?}"
        );
        assert!(
            answer
                .usage
                .is_some_and(|usage| usage.completion_tokens > 5)
        );
        // The proxy answers with a status of its own without its optional database.
        spec.credential = None;
        let refused = read(open(&load(spec.clone(), patient.clone()).await.unwrap(), &[]).await);
        let error = refused.await.error.expect("no key, no answer");
        assert_eq!(error.code, ErrorCode::UpstreamFailed, "{error:?}");
    }
    let url = format!("{base}/v1/chat/completions");
    let mut limited = connector(&url, ProviderName::from_static("openai"));
    limited.model = "mock-limited".to_owned();
    limited.credential = Some(key.clone());
    let limited = load(limited, patient).await.unwrap();
    let error = read(open(&limited, &[]).await).await.error.unwrap();
    assert_eq!(error.code, ErrorCode::Overloaded, "{error:?}");
}
