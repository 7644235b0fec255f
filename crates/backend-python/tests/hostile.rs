//! Hostile models beside a well-behaved one, which answers the whole time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "support/files.rs"]
#[allow(dead_code, reason = "each file of tests uses its part")]
mod files;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use volley_backend::Backend;
use volley_backend_python::Sandbox;
use volley_types::{ErrorCode, ParamValue, PredictError};

use files::{Files, prompt, read, until};

/// Longer than an answer of the well-behaved model takes on a busy machine.
const SLOWEST_ANSWER: Duration = Duration::from_secs(20);
/// Memory that this process may gain while hostile models run.
const MEMORY: u64 = 64 << 20;

/// A well-behaved model that is asked again and again.
struct Neighbour {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    asking: tokio::task::JoinHandle<()>,
    memory: u64,
    _files: Files,
}

impl Neighbour {
    async fn start() -> Self {
        let files =
            Files::new("def generate(prompt: str):\n    yield 'still '\n    yield 'here'\n");
        let model = files.load(&[]).await.unwrap();
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let asking = {
            let (stop, answers): (_, Arc<AtomicUsize>) = (stop.clone(), Arc::clone(&answers));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    let (text, error) = read(&*model, prompt("go")).await;
                    assert!(error.is_none(), "{error:?}");
                    assert_eq!(text, "still here");
                    assert!(asked.elapsed() < SLOWEST_ANSWER, "{:?}", asked.elapsed());
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Self {
            stop,
            answers,
            asking,
            memory: resident(),
            _files: files,
        }
    }

    /// Checks that it goes on to answer, and that this process has not grown.
    async fn still_answers(self) {
        let before = self.answers.load(Ordering::Relaxed);
        until("the neighbour goes on", async || {
            let answers = self.answers.load(Ordering::Relaxed);
            assert!(!self.asking.is_finished(), "the neighbour failed");
            (before + 3 <= answers).then_some(())
        })
        .await;
        self.stop.store(true, Ordering::Relaxed);
        self.asking.await.unwrap();
        let grown = resident().saturating_sub(self.memory);
        assert!(grown < MEMORY, "this process has grown by {grown} bytes");
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.unwrap().trim().trim_end_matches("kB").trim();
    kibibytes.parse::<u64>().unwrap() << 10
}

fn is_running(id: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(id).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

/// The model's process ended while it ran the request; returns the error.
async fn broken(model: &dyn Backend, text: &str) -> PredictError {
    let (_, error) = read(model, prompt(text)).await;
    let error = error.expect("the request fails with its process");
    assert!(error.message.contains("while it ran"), "{error}");
    error
}

async fn comes_back(model: &dyn Backend) {
    until("a new process serves", async || {
        let error = read(model, prompt("go")).await.1;
        error.is_none().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_ends_with_all_its_processes() {
    let neighbour = Neighbour::start().await;
    let files = Files::new(
        r#"
import os, time

def generate(prompt: str):
    yield "a"
    if prompt == "bomb":
        for _ in range(10):
            # Each generation leaves the process group, and doubles.
            os.fork()
            os.setsid() if os.getpid() != os.getpgid(0) else None
        with open("bomb.%d" % os.getpid(), "w"):
            pass
        time.sleep(1000)
"#,
    );
    let limit = [("task_limit", ParamValue::Int(64))];
    let model = files.load(&limit).await.unwrap();
    let error = broken(&*model, "bomb").await;
    assert!(error.message.contains("killed"), "{error}");
    until("no process of the bomb is left", async || {
        let entries = std::fs::read_dir(files.path()).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut ids = names.filter_map(|name| Some(name.strip_prefix("bomb.")?.to_owned()));
        (!ids.any(|id| is_running(&id))).then_some(())
    })
    .await;
    comes_back(&*model).await;
    neighbour.still_answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_leak_ends_at_the_limit_of_its_model() {
    let neighbour = Neighbour::start().await;
    let files = Files::new(
        r#"
import os, time

def leak():
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)))

def generate(prompt: str):
    yield "a"
    if prompt == "leak":
        leak()
    if prompt == "children":
        for _ in range(6):
            if os.fork() == 0:
                kept = bytearray(b"x" * (60 << 20))
                time.sleep(1000)
        time.sleep(1000)
"#,
    );
    let limit = [("memory_limit_bytes", ParamValue::Int(200 << 20))];
    let model = files.load(&limit).await.unwrap();
    // One process meets its own limit, and Python reports it.
    let error = read(&*model, prompt("leak")).await.1.unwrap();
    assert!(error.message.contains("MemoryError"), "{error}");
    // Several stay below it, and are too many together.
    broken(&*model, "children").await;
    comes_back(&*model).await;
    neighbour.still_answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segmentation_fault_is_the_error_of_its_caller() {
    let neighbour = Neighbour::start().await;
    let files = Files::new(
        "import ctypes\n\ndef generate(prompt: str):\n    yield 'a'\n    if prompt == 'crash':\n        \
         ctypes.string_at(0)\n",
    );
    let model = files.load(&[]).await.unwrap();
    let error = broken(&*model, "crash").await;
    assert!(error.message.contains("segmentation fault"), "{error}");
    comes_back(&*model).await;
    neighbour.still_answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_never_yields_is_killed_after_its_caller_left() {
    let neighbour = Neighbour::start().await;
    // A pattern that backtracks holds the interpreter: no other thread of the process runs.
    let files = Files::new(
        "import re\n\ndef generate(prompt: str):\n    yield 'a'\n    if prompt == 'hang':\n        \
         re.match('(a+)+$', 'a' * 64 + 'b')\n",
    );
    let grace = [("cancel_grace_seconds", ParamValue::Float(0.2))];
    let model = files.load(&grace).await.unwrap();
    let asked = read(&*model, prompt("hang"));
    let left = tokio::time::timeout(Duration::from_secs(1), asked).await;
    assert!(left.is_err(), "it hangs until its caller leaves");
    comes_back(&*model).await;
    neighbour.still_answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_per_line_on_standard_output_are_cut() {
    let neighbour = Neighbour::start().await;
    let files = Files::new(
        r#"
import os, sys

def generate(prompt: str):
    line = b"x" * (1 << 20)
    for _ in range(200):
        os.write(1, line + b"\n")
        sys.stderr.write("y" * (1 << 20))
    yield "printed"
"#,
    );
    let model = files.load(&[]).await.unwrap();
    assert_eq!(read(&*model, prompt("go")).await.0, "printed");
    neighbour.still_answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_never_returns_fails_its_load() {
    let neighbour = Neighbour::start().await;
    let files = Files::new(
        "import os, time\nwith open('started', 'w') as file:\n    file.write(str(os.getpid()))\n\
         while True:\n    time.sleep(1)\n",
    );
    let timeout = [("load_timeout_seconds", ParamValue::Float(8.0))];
    let error = files.load(&timeout).await.err().unwrap();
    assert!(error.message.contains("load_timeout_seconds"), "{error}");
    let id = files.written("started").await;
    until("its process ends", async || {
        (!is_running(&id)).then_some(())
    })
    .await;
    neighbour.still_answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_leave_their_group_end_with_their_model() {
    let files = Files::new(
        r#"
import os, time

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("daemon", "w") as file:
                file.write(str(os.getpid()))
            time.sleep(1000)
        os._exit(0)

def generate(prompt: str):
    daemon()
    while not os.path.exists("daemon") or not open("daemon").read():
        time.sleep(0.01)
    yield "a"
    if prompt == "exit":
        os._exit(3)
"#,
    );
    let model = files.load(&[]).await.unwrap();
    let error = broken(&*model, "exit").await;
    assert!(error.message.contains("code 3"), "{error}");
    let first = files.written("daemon").await;
    until("the daemon of a crash ends", async || {
        (!is_running(&first)).then_some(())
    })
    .await;
    std::fs::remove_file(files.path().join("daemon")).unwrap();
    comes_back(&*model).await;
    let second = files.written("daemon").await;
    assert!(is_running(&second));
    drop(model);
    until("the daemon of an unloaded model ends", async || {
        (!is_running(&second)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_the_worker_and_of_other_models_cannot_be_opened() {
    let secret = tempfile::tempdir().unwrap();
    let key = secret.path().join("keys/node.pem");
    std::fs::create_dir(key.parent().unwrap()).unwrap();
    std::fs::write(&key, "the key").unwrap();
    std::fs::write(secret.path().join("open"), "anyone").unwrap();
    let files = Files::new(
        r#"
import glob, os, signal

def outcome(act):
    try:
        return str(act())
    except OSError as error:
        return type(error).__name__

def generate(prompt: str):
    key = os.path.join(prompt, "keys/node.pem")
    link = os.path.join(os.environ["TMPDIR"], "link")
    os.symlink(key, link)
    host = os.path.dirname(os.path.dirname(os.environ["TMPDIR"]))
    worker = int(open("/proc/%d/stat" % os.getppid()).read().rsplit(")", 1)[1].split()[1])
    yield outcome(lambda: open(os.path.join(prompt, "open")).read()) + " "
    yield outcome(lambda: open(key).read()) + " "
    yield outcome(lambda: open(link).read()) + " "
    yield outcome(lambda: open(key, "w")) + " "
    yield outcome(lambda: os.listdir(os.path.join(host, "temporary"))) + " "
    yield outcome(lambda: open(os.path.join(host, "host/calls.py"), "a")) + " "
    yield outcome(lambda: open("/proc/%d/environ" % worker).read()) + " "
    yield outcome(lambda: os.kill(worker, signal.SIGUSR1)) + " "
    with open("own", "w") as file:
        file.write("written")
    yield open("own").read()
"#,
    );
    let hidden = secret.path().join("keys");
    let model = files
        .load_with(&[], |config| config.hidden = vec![hidden])
        .await
        .unwrap();
    let (text, error) = read(&*model, prompt(&secret.path().to_string_lossy())).await;
    assert!(error.is_none(), "{error:?}");
    let denied = "PermissionError ".repeat(7);
    assert_eq!(text, format!("anyone {denied}written"));
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "the key");
}

const REACH: &str = r#"
import os, socket, tempfile

def outcome(act):
    try:
        act()
        return "yes "
    except OSError as error:
        return type(error).__name__ + " "

def connect(kind):
    with socket.socket(socket.AF_INET, kind) as opened:
        opened.connect(("127.0.0.1", int(os.environ.get("PORT", "9"))))

def generate(prompt: str):
    yield outcome(lambda: open("model.py").read())
    yield outcome(lambda: open("own", "w"))
    yield outcome(lambda: tempfile.NamedTemporaryFile())
    yield outcome(lambda: open("/dev/null", "w"))
    yield outcome(lambda: connect(socket.SOCK_DGRAM))
    yield outcome(lambda: socket.socketpair())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_takes_files_and_the_network_away() {
    let files = Files::new(REACH);
    for (name, expected) in [
        ("none", "yes yes yes yes yes yes "),
        ("files", "yes PermissionError yes yes yes yes "),
        (
            "files_and_network",
            "yes PermissionError yes yes PermissionError yes ",
        ),
    ] {
        let sandbox = [("sandbox", ParamValue::Text(name.to_owned()))];
        let model = files.load(&sandbox).await.unwrap();
        assert_eq!(read(&*model, prompt("go")).await.0, expected, "{name}");
    }
    // A model cannot have less than its worker asks for.
    let none = [("sandbox", ParamValue::Text("none".to_owned()))];
    let model = files
        .load_with(&none, |config| config.sandbox = Sandbox::FilesAndNetwork)
        .await
        .unwrap();
    let text = read(&*model, prompt("go")).await.0;
    assert!(text.contains("PermissionError"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_instance_serves_while_the_first_one_is_started_again() {
    let files = Files::new(
        r#"
import os, time

class Model:
    def __init__(self):
        # Only the first two processes load at once; later ones wait.
        if len([name for name in os.listdir(".") if name.startswith("load")]) >= 2:
            while not os.path.exists("release"):
                time.sleep(0.01)
        open("load.%d" % os.getpid(), "w").close()

    def generate(self, prompt: str):
        yield str(os.getpid())
        if prompt == "exit":
            os._exit(1)
"#,
    );
    let two = [("instances", ParamValue::Int(2))];
    let model = files.load(&two).await.unwrap();
    let error = read(&*model, prompt("exit")).await.1.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable, "it had begun: {error}");
    for _ in 0..20 {
        let (_, error) = read(&*model, prompt("go")).await;
        assert!(error.is_none(), "{error:?}");
    }
    std::fs::write(files.path().join("release"), "now").unwrap();
}
