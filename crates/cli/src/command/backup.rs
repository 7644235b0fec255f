//! `volley backup`, `volley restore` and `volley recover`.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use volley_artifacts::blob_store;
use volley_client::Client;
use volley_cluster::backup::{self, BackupHead, ClusterSeed, MAX_BACKUP_BYTES, RecoverySource};

use super::explain;
use crate::args::ops::{Backup, Recover, Restore};
use crate::config;
use crate::node::coordinator::{CoordinatorPlan, Membership};
use crate::terminal::Terminal;

/// Fetches a backup, verifies it, and writes it to the destination.
pub(crate) async fn take(client: &Client, arguments: Backup) -> anyhow::Result<()> {
    let bytes = client.backup(MAX_BACKUP_BYTES).await.map_err(explain)?;
    let (head, _) = backup::decode(&bytes).context("the coordinator's answer")?;
    let size = bytes.len();
    match arguments.target.as_str() {
        "-" => return Terminal::stdout().raw(&bytes),
        url if is_url(url) => blob_store::put(url, bytes, arguments.overwrite)
            .await
            .map_err(|error| anyhow::anyhow!("{}", error.chain()))?,
        file => write(Path::new(file), &bytes, arguments.overwrite)?,
    }
    Terminal::stdout().line(&format!("{}, {size} bytes", summary(&head)))
}

/// Restores a backup into the data directory of the first coordinator, or only inspects it.
pub(crate) async fn restore(arguments: Restore) -> anyhow::Result<()> {
    let bytes = read(&arguments.source).await?;
    let mut out = Terminal::stdout();
    let Some(config) = arguments.config else {
        let (head, _) = backup::decode(&bytes)?;
        return out.line(&format!("whole: {}", summary(&head)));
    };
    let plan = config::coordinator::read(&config)?;
    let head = backup::restore(&bytes, &beginning(&plan)?)?;
    out.line(&format!("restored {}", summary(&head)))?;
    next_steps(&mut out, &plan, &config)
}

/// Creates the first coordinator of a new cluster from the data of a surviving coordinator.
pub(crate) fn recover(arguments: &Recover) -> anyhow::Result<()> {
    let plan = config::coordinator::read(&arguments.config)?;
    let from = &arguments.from;
    let read = || format!("reading the data in {}", from.display());
    let survivor = backup::examine(from).with_context(read)?;
    let mut out = Terminal::stdout();
    out.line(&warning(&survivor))?;
    ensure!(
        arguments.the_others_are_lost,
        "nothing was changed; to continue, add --the-others-are-lost"
    );
    backup::recover(from, &beginning(&plan)?).with_context(read)?;
    out.line("recovered.")?;
    next_steps(&mut out, &plan, &arguments.config)
}

fn warning(survivor: &RecoverySource) -> String {
    format!(
        "Coordinator {} has left a registry of revision {} with {} models; {} entries at the end \
         of its log were perhaps never acknowledged, and will be kept.\n\
         \n\
         THIS ENDS THE OLD CLUSTER. What was acknowledged and had not reached this coordinator \
         is lost. Never start another coordinator of the old cluster again, not even once: wipe \
         their data directories, and let their machines join under new ids. While more than half \
         of the old coordinators could still be started, do that instead.\n",
        survivor.node, survivor.revision, survivor.models, survivor.unconfirmed,
    )
}

/// The seed of the new cluster, from the configuration of its first coordinator.
fn beginning(plan: &CoordinatorPlan) -> anyhow::Result<ClusterSeed<'_>> {
    if let Membership::Bootstrap(members) = &plan.membership {
        ensure!(
            members.len() == 1,
            "'cluster.bootstrap' names {} members, but a new cluster begins with one: leave this \
             node alone in it, and let the others come with 'cluster.join'",
            members.len()
        );
    }
    Ok(ClusterSeed {
        data_dir: &plan.cluster.data_dir,
        node: plan.cluster.node_id,
        advertise: plan.cluster.advertise.clone(),
    })
}

fn next_steps(out: &mut Terminal, plan: &CoordinatorPlan, config: &Path) -> anyhow::Result<()> {
    out.line(&format!(
        "Start it:     volley coordinator --config {}\n\
         Then let others join: start each with an empty data directory, an id that was never \
         used, and 'cluster.join = [\"{}\"]'. Workers come by themselves once their \
         'cluster.coordinators' name the new coordinators.",
        config.display(),
        plan.cluster.advertise,
    ))
}

fn summary(head: &BackupHead) -> String {
    let seconds = std::time::Duration::from_millis(head.created_ms);
    let when = std::time::SystemTime::UNIX_EPOCH + seconds;
    format!(
        "revision {} of {} (Volley {}): {} models, {} connectors, {} keys",
        head.revision,
        humantime::format_rfc3339_seconds(when),
        head.volley,
        head.models,
        head.connectors,
        head.keys,
    )
}

fn is_url(text: &str) -> bool {
    text.contains("://")
}

async fn read(source: &str) -> anyhow::Result<Vec<u8>> {
    if is_url(source) {
        return blob_store::get(source, MAX_BACKUP_BYTES)
            .await
            .map_err(|error| anyhow::anyhow!("{}", error.chain()));
    }
    let input: Box<dyn Read> = if source == "-" {
        Box::new(std::io::stdin())
    } else {
        let file = std::fs::File::open(source);
        Box::new(file.with_context(|| format!("opening the backup {source}"))?)
    };
    let mut bytes = Vec::new();
    let limit = MAX_BACKUP_BYTES as u64;
    input
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("reading the backup {source}"))?;
    ensure!(
        bytes.len() as u64 <= limit,
        "{source} is not a backup: it is too large"
    );
    Ok(bytes)
}

/// Writes a file atomically, readable only by its owner.
fn write(path: &Path, bytes: &[u8], overwrite: bool) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;

    if !overwrite && path.exists() {
        bail!(
            "{} already exists; add --overwrite, or choose another name",
            path.display()
        );
    }
    let mut name = path
        .file_name()
        .context("the target is not a file")?
        .to_owned();
    name.push(".part");
    let draft = path.with_file_name(name);
    let written = (|| {
        let options = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&draft);
        let mut file = options?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    })();
    if written.is_err() {
        // The temporary file may not exist.
        let _ = std::fs::remove_file(&draft);
    }
    written.with_context(|| format!("writing {}", path.display()))
}
