//! `volley doctor`: existing and imminent problems of a node, and what to do about them.

mod file;
mod machine;
mod peers;

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use volley_backend_onnx::Runtime;
use volley_client::{Client, ClientError, Status};
use volley_security::certificate::{Validity, validity};

use self::file::NodeFile;
use crate::terminal::Terminal;

/// Certificates that expire within this time are reported.
const EXPIRY_NOTICE: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Responses contain whole seconds, and the response takes time to arrive.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);
/// Time limit for the response of one coordinator.
const ANSWER: Duration = Duration::from_secs(5);

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    Notice,
    Bad,
}

/// The result of one check.
#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    what: &'static str,
    detail: String,
    /// What to do; empty if there is nothing to do.
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

/// The scope of the checks.
pub(crate) struct CheckScope<'a> {
    /// The configuration file of a node. If set, that node is checked.
    pub(crate) config: Option<&'a Path>,
    /// Skip all checks that need the network.
    pub(crate) offline: bool,
    /// The coordinators given on the command line, with their URLs.
    pub(crate) clients: &'a [(String, Client)],
    /// Creates a client for a URL, with the caller's key and CA certificate.
    pub(crate) connect: &'a dyn Fn(&str) -> anyhow::Result<Client>,
}

/// Checks this machine and the given coordinators. With a configuration file, also checks that file
/// and its node.
///
/// # Errors
/// When a finding is `Verdict::Bad`, so that the exit status is not zero.
pub(crate) async fn run(scope: &CheckScope<'_>) -> anyhow::Result<()> {
    let mut findings = machine::limits();
    let mut library = None;
    if let Some(config) = scope.config {
        let node = NodeFile::read(config)?;
        findings.extend(node.check(config));
        if !scope.offline {
            findings.extend(peers::check(&node).await);
            findings.extend(itself(&node, scope).await);
        }
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
    if !scope.offline {
        for (url, client) in scope.clients {
            findings.extend(coordinator(url, client).await);
        }
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
        bail!("{bad} of {} checks failed", findings.len());
    }
    Ok(())
}

/// Checks that the first certificate of a file is valid and does not expire soon.
fn expiry(file: &Path, now: SystemTime) -> Finding {
    let what = "certificate";
    let name = file.display();
    let Validity { begins, ends } = match std::fs::read(file).map(|pem| validity(&pem)) {
        Ok(Some(validity)) => validity,
        Ok(None) => {
            let advice = "give a PEM file with the certificate first";
            return Finding::new(
                Verdict::Bad,
                what,
                format!("{name} has no certificate"),
                advice,
            );
        }
        Err(error) => {
            let advice = "correct the path, or let this user read the file";
            return Finding::new(Verdict::Bad, what, format!("{name}: {error}"), advice);
        }
    };
    if now < begins {
        let from = humantime::format_rfc3339_seconds(begins);
        let advice =
            "check this machine's clock, or wait; other nodes reject the certificate until then";
        let detail = format!("{name} begins at {from}");
        return Finding::new(Verdict::Bad, what, detail, advice);
    }
    let until = humantime::format_rfc3339_seconds(ends);
    let renew = "renew it; nodes reload the file within seconds, without a restart";
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

/// Checks the node that a file configures, at the address in the file.
async fn itself(node: &NodeFile, scope: &CheckScope<'_>) -> Vec<Finding> {
    let Some(url) = node.url() else {
        return Vec::new();
    };
    let client = match (scope.connect)(&url) {
        Ok(client) => client,
        Err(error) => {
            let advice = "correct the address that the file listens on";
            let detail = format!("{url}: {error:#}");
            return vec![Finding::new(Verdict::Bad, "node", detail, advice)];
        }
    };
    let ready = tokio::time::timeout(ANSWER, client.ready()).await;
    if let Ok(Err(ClientError::Connect(..))) = ready {
        return vec![Finding::new(
            Verdict::Notice,
            "node",
            format!("{url} accepts no connections: the node of the file does not run"),
            "start it, or check its log",
        )];
    }
    if node.is_coordinator {
        return coordinator(&url, &client).await;
    }
    vec![match ready {
        Ok(Ok(true)) => Finding::good("worker", format!("{url} runs and is ready")),
        Ok(Ok(false)) => Finding::new(
            Verdict::Bad,
            "worker",
            format!("{url} runs and is not ready"),
            "see its log; it is ready once it has a coordinator",
        ),
        Ok(Err(error)) => Finding::new(
            Verdict::Notice,
            "worker",
            format!("{url}: {error}"),
            "start it, or check its log",
        ),
        Err(_) => Finding::new(
            Verdict::Bad,
            "worker",
            format!("{url} did not respond within {ANSWER:?}"),
            "check its log, and which process uses its port",
        ),
    }]
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

/// Checks a coordinator, its view of the cluster, and the difference of its clock.
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
            let detail = format!("{url} did not respond within {ANSWER:?}");
            let advice = "check its log, and the network in between";
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
        "synchronize the clocks of both machines (chrony, systemd-timesyncd); keys and \
         certificates expire by them",
    )
}

/// Reports the leader and the voters, and the coordinators that do not respond.
fn coordinators(url: &str, status: &Status) -> Vec<Finding> {
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
            "start the other coordinators; docs/how-to/operate/cluster-alerts.md#no-leader",
        ),
    }];
    if voters != 0 && voters.is_multiple_of(2) {
        findings.push(Finding::new(
            Verdict::Notice,
            "voters",
            format!("{voters}, which survive no more losses than {}", voters - 1),
            "add one more coordinator, or remove one",
        ));
    }
    // Coordinators that could be reached have reported a version.
    let silent = status.coordinators.iter();
    for node in silent.filter(|node| node.id != id && node.version.is_none()) {
        findings.push(Finding::new(
            Verdict::Notice,
            "coordinator",
            format!("{} at {} does not respond to {id}", node.id, node.address),
            "start it, or check the network in between; \
             docs/how-to/operate/cluster-alerts.md#too-few-coordinators",
        ));
    }
    findings
}

fn cluster(url: &str, status: &Status) -> Vec<Finding> {
    let mut findings = coordinators(url, status);
    for worker in status
        .workers
        .iter()
        .filter(|worker| worker.liveness != "alive")
    {
        findings.push(Finding::new(
            Verdict::Notice,
            "worker",
            format!("{} is {}", worker.id, worker.liveness),
            "docs/how-to/operate/worker-alerts.md#worker-lost",
        ));
    }
    if let Some(unfinished) = super::status::upgrade(status) {
        findings.push(Finding::new(
            Verdict::Notice,
            "levels",
            unfinished,
            "upgrade the other coordinators, or remove their 'cluster.feature_level'",
        ));
    }
    for drain in &status.drains {
        findings.push(Finding::new(
            Verdict::Notice,
            "drain",
            format!("{} {} is {}", drain.kind, drain.node, drain.state),
            "`volley undrain` returns it to service",
        ));
    }
    for model in &status.models {
        if model.state == "DEPLOY_FAILED" || model.state == "PARTIALLY_DEPLOYED" {
            findings.push(Finding::new(
                Verdict::Notice,
                "model",
                format!("{} is {}", model.id, model.state),
                "`volley model show` shows the reason",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
