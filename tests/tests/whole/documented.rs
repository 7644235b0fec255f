//! The commands in `README.md` and `docs/`, run in the order in which a reader meets them, and what
//! they print beside what the page shows.
//!
//! A page has one cluster, `volley up` on ports of its own. Its blocks of `sh` run in one shell; a
//! bare block right behind one is what it prints, with `…` for what differs from run to run. A
//! comment before a block says what a reader sees to by hand:
//!
//! - `<!-- run: no, REASON -->`: the block is not run.
//! - `<!-- run: replace A=B -->`: `B` stands for `A`, as a model's directory.
//! - `<!-- run: first` … `-->`: commands that run before the block.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use volley_tests::process::{Process, Setting, binary, free_port};
use volley_tests::until;
use volley_tests::upstream::{Upstream, chunk, head};

/// The page that a reader of `README.md` goes on with.
const FIRST_STEPS: &str = "docs/tutorials/first-cluster.md";
/// How long all commands of one page may take.
const PAGE: Duration = Duration::from_secs(180);
/// Pages at a time, over all tests of this file: most of a page's time is the start of its cluster,
/// which waits more than it computes.
static TURNS: Semaphore = Semaphore::const_new(2);
/// Stands before the output of a block.
const MARK: char = '\u{1}';

/// One block of commands.
#[derive(Debug, Default)]
struct Block {
    /// Where it begins in its page, from 1.
    line: usize,
    script: String,
    /// What it prints, where the page shows that.
    shown: Option<String>,
}

/// What the comments before a block say.
#[derive(Debug, Default)]
struct Directions {
    skipped: Option<String>,
    replaced: Vec<(String, String)>,
    first: String,
}

/// A page's blocks that are run, and the reasons of those that are not.
fn read(page: &str) -> (Vec<Block>, Vec<String>) {
    let (mut blocks, mut skipped) = (Vec::<Block>::new(), Vec::new());
    let mut directions = Directions::default();
    // Whether the last thing on the page was a block that runs.
    let mut behind_block = false;
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let mut rest_until = |end: &str| {
            let taken = lines.by_ref().take_while(|(_, line)| *line != end);
            let taken: Vec<_> = taken.map(|(_, line)| line).collect();
            taken.join("\n")
        };
        match line {
            "```sh" => {
                let script = rest_until("```");
                let Directions {
                    skipped: reason,
                    replaced,
                    first,
                } = std::mem::take(&mut directions);
                behind_block = reason.is_none();
                match reason {
                    Some(reason) => skipped.push(reason),
                    None => blocks.push(Block {
                        line: index + 1,
                        script: replaced.iter().fold(
                            format!("{first}\nprintf '{MARK}'\n{script}\n"),
                            |script, (from, to)| script.replace(from, to),
                        ),
                        shown: None,
                    }),
                }
            }
            "```" => {
                let text = rest_until("```");
                if std::mem::take(&mut behind_block)
                    && let Some(block) = blocks.last_mut()
                {
                    block.shown = Some(text);
                }
            }
            "<!-- run: first" => directions.first = rest_until("-->"),
            _ if line.starts_with("```") => {
                rest_until("```");
                behind_block = false;
            }
            _ => {
                behind_block &= line.is_empty();
                direction(line, &mut directions);
            }
        }
    }
    (blocks, skipped)
}

fn direction(line: &str, directions: &mut Directions) {
    let said = line.strip_prefix("<!-- run: ");
    let Some(said) = said.and_then(|said| said.strip_suffix(" -->")) else {
        return;
    };
    if let Some(reason) = said.strip_prefix("no, ") {
        directions.skipped = Some(reason.to_owned());
    } else if let Some(pair) = said.strip_prefix("replace ") {
        let (from, to) = pair.split_once('=').expect("replace A=B");
        directions.replaced.push((from.to_owned(), to.to_owned()));
    } else {
        panic!("unknown direction in a page: {line}");
    }
}

/// Whether `printed` is what the page shows; `…` stands for anything.
fn agrees(shown: &str, printed: &str) -> bool {
    let mut rest = printed.trim();
    let mut parts = shown.trim().split('…');
    let first = parts.next().unwrap_or_default().trim_end();
    let Some(behind) = rest.strip_prefix(first) else {
        return false;
    };
    rest = behind;
    let mut last = first;
    for part in parts {
        last = part.trim();
        let Some(at) = rest.find(last) else {
            return false;
        };
        rest = &rest[at + last.len()..];
    }
    rest.trim().is_empty() || last.is_empty()
}

/// The variables with keys that connectors on the pages name.
const VARIABLES: [&str; 13] = [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_OPENAI_KEY",
    "COHERE_API_KEY",
    "EU_KEY",
    "GEMINI_KEY",
    "LLM_KEY",
    "MISTRAL_API_KEY",
    "OPENAI_API_KEY",
    "OWN_KEY",
    "US_KEY",
];

/// The cluster of one page.
struct Site {
    port: u16,
    upstream: Upstream,
    folder: tempfile::TempDir,
    _up: Process,
}

impl Site {
    async fn start() -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let answer = [
            head("200 OK", "text/event-stream"),
            chunk("Because it scatters."),
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
                .into(),
            "data: [DONE]\n\n".into(),
        ];
        let upstream = Upstream::start(answer.concat(), false).await;
        let data = folder.path().join("data");
        let (port_text, data) = (port.to_string(), data.to_string_lossy().into_owned());
        let arguments = [
            "up",
            "--allow-python",
            "--port",
            &port_text,
            "--data-dir",
            &data,
        ];
        let setting = Setting {
            env: VARIABLES.map(|name| (name, format!("sk-{name}"))).to_vec(),
            ..Setting::default()
        };
        let up = Process::start_as("up", &arguments, folder.path(), &setting);
        until("its demo models are ready", async || {
            up.output().contains("Ctrl-C").then_some(())
        })
        .await;
        Self {
            port,
            upstream,
            folder,
            _up: up,
        }
    }

    /// A page's text with this site's addresses for those that it names.
    fn localised(&self, script: &str) -> String {
        let mut script = script.replace("target/release", &bin().to_string_lossy());
        for offset in 0..4 {
            let shown = format!(":{}", 8420 + offset);
            script = script.replace(&shown, &format!(":{}", self.port + offset));
        }
        let own = self.upstream.url.trim_start_matches("http://");
        let own = own.split('/').next().expect("host and port");
        script.replace("127.0.0.1:11434", own)
    }

    /// Runs a page's blocks in one shell; returns what each printed.
    async fn run(&self, page: &str, blocks: &[Block]) -> Vec<String> {
        let mut script = String::from(
            "curl() { command curl --silent --show-error --fail-with-body \"$@\"; }\n",
        );
        for block in blocks {
            script.push_str(&format!("echo \"line {}\" >&3\n", block.line));
            script.push_str(&self.localised(&block.script));
        }
        let (file, trace) = (
            self.folder.path().join("script"),
            self.folder.path().join("trace"),
        );
        std::fs::write(&file, script).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command
            .args(["-c", "exec 3>\"$1\"; set -euo pipefail; source \"$0\""])
            .args([&file, &trace])
            .current_dir(root())
            .env("PATH", format!("{}:{path}", bin().display()))
            .env("VOLLEY_URL", format!("http://127.0.0.1:{}", self.port))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = tokio::time::timeout(PAGE, command.output()).await;
        let at = || std::fs::read_to_string(&trace).unwrap_or_default();
        let at = || at().lines().last().unwrap_or("its beginning").to_owned();
        let output = output.unwrap_or_else(|_| panic!("{page}, {}: takes too long", at()));
        let output = output.expect("bash");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{page}, {}: {}\n{printed}\n{complaint}",
            at(),
            output.status
        );
        printed.split(MARK).skip(1).map(str::to_owned).collect()
    }
}

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("the workspace").to_path_buf()
}

fn bin() -> PathBuf {
    binary().parent().expect("a folder").to_path_buf()
}

async fn check(page: &str) {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (blocks, skipped) = read(&text);
    if blocks.is_empty() {
        return;
    }
    let _turn = TURNS.acquire().await.expect("it is never closed");
    let began = Instant::now();
    let site = Site::start().await;
    let printed = site.run(page, &blocks).await;
    assert_eq!(printed.len(), blocks.len(), "{page}");
    for (block, printed) in blocks.iter().zip(&printed) {
        if let Some(shown) = &block.shown {
            let (line, shown) = (block.line, site.localised(shown));
            assert!(
                agrees(&shown, printed),
                "{page}, line {line} shows:\n{shown}\nand prints:\n{printed}"
            );
        }
    }
    eprintln!(
        "{page}: {} blocks run in {:.1} s, {} not: {skipped:?}",
        blocks.len(),
        began.elapsed().as_secs_f64(),
        skipped.len()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_readme_and_of_the_first_steps_do_what_is_shown() {
    check_all(["README.md", FIRST_STEPS].map(str::to_owned)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_every_other_page_do_what_is_shown() {
    let pages = pages(&root().join("docs")).into_iter();
    let pages = pages.map(|page| {
        let page = page.strip_prefix(root()).unwrap();
        page.to_str().unwrap().to_owned()
    });
    check_all(pages.filter(|page| page != FIRST_STEPS)).await;
}

/// Checks all of them, and fails with the first that is wrong once all are done.
async fn check_all(pages: impl IntoIterator<Item = String>) {
    let mut checks = JoinSet::new();
    for page in pages {
        checks.spawn(async move { check(&page).await });
    }
    let mut wrong = None;
    while let Some(done) = checks.join_next().await {
        wrong = wrong.or(done.err());
    }
    if let Some(wrong) = wrong {
        std::panic::resume_unwind(wrong.into_panic());
    }
}

/// All pages below `folder`, sorted.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let entries = entries.map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = entries
        .flat_map(|path| match path.is_dir() {
            true => pages(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    pages.sort();
    pages
}

#[test]
fn what_differs_from_run_to_run_is_left_out_of_the_comparison() {
    assert!(agrees("a\nb", "a\nb\n"));
    assert!(agrees("a … c", "a b c"));
    assert!(agrees("a\n…", "a\nb\nc"));
    assert!(!agrees("a\n…\nd", "a\nb\nc"));
    assert!(!agrees("a", "a\nb"));
    let page =
        "<!-- run: no, it needs a GPU -->\n```sh\nx\n```\n\n```sh\necho 1\n```\n```\n1\n```\n";
    let (blocks, skipped) = read(page);
    assert_eq!(skipped, ["it needs a GPU"]);
    assert_eq!((blocks.len(), blocks[0].line), (1, 6));
    assert_eq!(blocks[0].shown.as_deref(), Some("1"));
}
