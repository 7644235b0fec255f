//! `volley doctor`: what is wrong with a node, or about to be, and what to do about it.

mod certificate;
mod machine;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use volley_backend_onnx::Runtime;
use volley_client::{Client, Status};

use crate::config;
use crate::terminal::Terminal;

/// Certificates that end sooner are told of.
const EXPIRY_NOTICE: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Answers carry whole seconds, and take a moment to arrive.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// How long one coordinator may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    Notice,
    Bad,
}

/// What a check found out.
#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    detail: String,
    /// What to do; empty where nothing is.
    advice: String,
}

impl Finding {
    fn good(what: &'static str, detail: impl Into<String>) -> Self {
        Self::new(Verdict::Good, what, detail.into(), "")
    }

    fn new(verdict: Verdict, what: &'static str, detail: String, advice: &str) -> Self {
        Self {
            verdict,
            what,
            detail,
            advice: advice.to_owned(),
        }
    }
}

/// Checks this machine and, with a file, a node's configuration; and the coordinators at `clients`.
///
/// # Errors
/// When anything is bad, so that the exit status tells.
pub(crate) async fn run(clients: &[(String, Client)], config: Option<&Path>) -> anyhow::Result<()> {
    let mut findings = machine::limits();
    let mut library = None;
    if let Some(config) = config {
        let node = NodeFile::read(config)?;
        findings.extend(node.check(config));
        library = node.path(&["onnx", "library"]);
        findings.extend(
            node.path(&["node", "data_dir"])
                .iter()
                .flat_map(|folder| machine::disk(folder)),
        );
        findings.extend(
            node.path(&["artifacts", "cache_dir"])
                .iter()
                .flat_map(|folder| machine::disk(folder)),
        );
    }
    findings.push(runtime(library.as_deref()));
    for (url, client) in clients {
        findings.extend(coordinator(url, client).await);
    }
    let mut out = Terminal::stdout();
    for finding in &findings {
        let mark = match finding.verdict {
            Verdict::Good => "ok    ",
            Verdict::Notice => "notice",
            Verdict::Bad => "BAD   ",
        };
        out.line(&format!("{mark}  {:<14} {}", finding.what, finding.detail))?;
        if !finding.advice.is_empty() {
            out.line(&format!("{:24}{}", "", finding.advice))?;
        }
    }
    let bad = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Bad)
        .count();
    if bad != 0 {
        bail!("{bad} of {} checks found something bad", findings.len());
    }
    Ok(())
}

/// A node's file, read for what can be checked from outside.
struct NodeFile {
    table: toml::Table,
    is_coordinator: bool,
}

impl NodeFile {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the configuration {}", path.display()))?;
        let table: toml::Table = toml::from_str(&text)
            .with_context(|| format!("in the configuration {}", path.display()))?;
        let listen = table.get("listen").and_then(toml::Value::as_table);
        let is_coordinator = listen.is_some_and(|listen| listen.contains_key("public"));
        Ok(Self {
            table,
            is_coordinator,
        })
    }

    fn text(&self, keys: &[&str]) -> Option<&str> {
        let (last, sections) = keys.split_last()?;
        let mut table = &self.table;
        for section in sections {
            table = table.get(*section)?.as_table()?;
        }
        table.get(*last)?.as_str()
    }

    fn path(&self, keys: &[&str]) -> Option<PathBuf> {
        self.text(keys).map(PathBuf::from)
    }

    /// What the node itself would say of the file, its certificates, and its ports.
    fn check(&self, path: &Path) -> Vec<Finding> {
        let read = if self.is_coordinator {
            config::coordinator::read(path).map(drop)
        } else {
            config::worker::read(path).map(drop)
        };
        let kind = if self.is_coordinator {
            "coordinator"
        } else {
            "worker"
        };
        let mut findings = vec![match read {
            Ok(()) => Finding::good("configuration", format!("{} is a {kind}'s", path.display())),
            Err(error) => Finding::new(
                Verdict::Bad,
                "configuration",
                format!("{error:#}"),
                "correct the file; docs/configuration.md explains every key",
            ),
        }];
        let certificates = [
            ["security", "tls", "certificate"],
            ["security", "nodes", "certificate"],
            ["security", "nodes", "authority"],
        ];
        for keys in certificates {
            if let Some(file) = self.path(&keys) {
                findings.push(expiry(&file, SystemTime::now()));
            }
        }
        for key in ["public", "internal", "flight", "http"] {
            if let Some(address) = self.text(&["listen", key]) {
                findings.push(machine::port(key, address));
            }
        }
        findings
    }
}

/// Whether the first certificate of a file is valid now, and for a while.
fn expiry(file: &Path, now: SystemTime) -> Finding {
    let what = "certificate";
    let name = file.display();
    let ends = match std::fs::read(file).map(|pem| certificate::not_after(&pem)) {
        Ok(Some(ends)) => ends,
        Ok(None) => {
            let advice = "give a PEM file with the certificate first";
            return Finding::new(Verdict::Bad, what, format!("{name} holds none"), advice);
        }
        Err(error) => {
            let advice = "correct the path, or let this user read the file";
            return Finding::new(Verdict::Bad, what, format!("{name}: {error}"), advice);
        }
    };
    let until = humantime::format_rfc3339_seconds(ends);
    let renew = "renew it; nodes take over a new file within seconds, without a restart";
    match ends.duration_since(now) {
        Err(_) => Finding::new(
            Verdict::Bad,
            what,
            format!("{name} ended at {until}"),
            renew,
        ),
        Ok(left) if left < EXPIRY_NOTICE => {
            let days = left.as_secs() / (24 * 3_600);
            let detail = format!("{name} ends in {days} days, at {until}");
            Finding::new(Verdict::Notice, what, detail, renew)
        }
        Ok(_) => Finding::good(what, format!("{name} is valid until {until}")),
    }
}

fn runtime(configured: Option<&Path>) -> Finding {
    match Runtime::locate(configured) {
        Ok(library) => Finding::good("ONNX Runtime", library.display().to_string()),
        Err(error) => Finding::new(
            Verdict::Notice,
            "ONNX Runtime",
            error.message,
            "needed on workers that run ONNX models only",
        ),
    }
}

/// What a coordinator tells of itself and its cluster, and whether its clock is ours.
async fn coordinator(url: &str, client: &Client) -> Vec<Finding> {
    let what = "coordinator";
    let asked = SystemTime::now();
    let answer = tokio::time::timeout(ANSWER, async {
        let date = client.date().await?;
        Ok::<_, volley_client::ClientError>((date, client.status().await?))
    });
    let (date, status) = match answer.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let advice = "start it, give --url, or give its key in VOLLEY_API_KEY";
            return vec![Finding::new(
                Verdict::Bad,
                what,
                format!("{url}: {error}"),
                advice,
            )];
        }
        Err(_) => {
            let detail = format!("{url} does not answer within {ANSWER:?}");
            let advice = "look at its log, and at the network between";
            return vec![Finding::new(Verdict::Bad, what, detail, advice)];
        }
    };
    let mut findings = cluster(url, &status);
    if let Some(date) = date.and_then(|date| httpdate::parse_http_date(&date).ok()) {
        findings.push(clock(url, asked, date));
    }
    findings
}

fn clock(url: &str, ours: SystemTime, theirs: SystemTime) -> Finding {
    let apart = ours
        .duration_since(theirs)
        .unwrap_or_else(|error| error.duration());
    if apart <= CLOCK_TOLERANCE {
        return Finding::good(
            "clock",
            format!("{url} is within {CLOCK_TOLERANCE:?} of this one"),
        );
    }
    Finding::new(
        Verdict::Notice,
        "clock",
        format!("{url} is {} s off this machine's", apart.as_secs()),
        "let both machines keep time (chrony, systemd-timesyncd); keys and certificates end by it",
    )
}

fn cluster(url: &str, status: &Status) -> Vec<Finding> {
    let voters = status.coordinators.iter().filter(|node| node.voter).count();
    let (id, role) = (status.node.id, &status.node.role);
    let mut findings = vec![match status.node.leader {
        Some(leader) => {
            let detail = format!("{url} is {id} ({role}); {leader} leads {voters} voters");
            Finding::good("coordinator", detail)
        }
        None => Finding::new(
            Verdict::Bad,
            "coordinator",
            format!("{url} is {id} ({role}) and knows no leader"),
            "start the other coordinators; docs/operations.md#no-leader",
        ),
    }];
    if voters != 0 && voters.is_multiple_of(2) {
        findings.push(Finding::new(
            Verdict::Notice,
            "voters",
            format!("{voters}, which bear no more losses than {}", voters - 1),
            "add one more coordinator, or remove one",
        ));
    }
    for worker in status
        .workers
        .iter()
        .filter(|worker| worker.liveness != "alive")
    {
        findings.push(Finding::new(
            Verdict::Notice,
            "worker",
            format!("{} is {}", worker.id, worker.liveness),
            "docs/operations.md#worker-lost",
        ));
    }
    if let Some(unfinished) = super::status::upgrade(status) {
        findings.push(Finding::new(
            Verdict::Notice,
            "levels",
            unfinished,
            "give the others the new version, or take their 'cluster.compatibility_level' away",
        ));
    }
    for drain in &status.drains {
        findings.push(Finding::new(
            Verdict::Notice,
            "drain",
            format!("{} {} is {}", drain.kind, drain.node, drain.state),
            "`volley undrain` puts it to work again",
        ));
    }
    for model in &status.models {
        if model.state == "DEPLOY_FAILED" || model.state == "PARTIALLY_DEPLOYED" {
            findings.push(Finding::new(
                Verdict::Notice,
                "model",
                format!("{} is {}", model.id, model.state),
                "`volley model show` tells why",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
