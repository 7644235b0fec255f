//! `volley config`: migration of configuration files.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use volley_config::{FileKind, Migration};

use crate::args::{Config, Migrate};
use crate::config;
use crate::terminal::Terminal;

/// Runs a command on configuration files.
///
/// # Errors
/// When a file cannot be read, migrated or replaced, or with `--check` when a file has another
/// format version.
pub(crate) fn run(command: &Config) -> anyhow::Result<()> {
    let Config::Migrate(migrate) = command;
    // Reads all files before it replaces the first one.
    let files = migrate.files.iter().map(|path| Ok((path, read(path)?)));
    let files: Vec<_> = files.collect::<anyhow::Result<_>>()?;
    match migrate {
        Migrate { check: true, .. } => {
            let old = files.iter().filter(|(_, it)| it.is_changed);
            let old: Vec<_> = old.map(|(path, _)| path.display().to_string()).collect();
            ensure!(
                old.is_empty(),
                "not in the format of this version: {}; rewrite with `volley config migrate \
                 --in-place`",
                old.join(", ")
            );
            Ok(())
        }
        Migrate { in_place: true, .. } => {
            for (path, migration) in files {
                replace(path, &migration)?;
            }
            Ok(())
        }
        _ => match files.as_slice() {
            [(_, migration)] => Terminal::stdout().raw(migration.text.as_bytes()),
            _ => bail!("several files need --in-place or --check"),
        },
    }
}

/// The migrated file, checked to be readable by a node.
fn read(path: &Path) -> anyhow::Result<Migration> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the configuration {}", path.display()))?;
    let context = || format!("in the configuration {}", path.display());
    let migration = volley_config::migrate(&text).with_context(context)?;
    let checked = match migration.kind {
        FileKind::Coordinator => config::coordinator::check(&migration.text),
        FileKind::Worker => config::worker::check(&migration.text),
    };
    match migration.is_changed {
        true => checked
            .context(
                "the rewritten file is still invalid; line numbers refer to the rewritten file",
            )
            .with_context(context)?,
        false => checked.with_context(context)?,
    }
    Ok(migration)
}

/// Replaces the file, following symbolic links. Owner and permissions are preserved.
fn replace(path: &Path, migration: &Migration) -> anyhow::Result<()> {
    let mut out = Terminal::stdout();
    if !migration.is_changed {
        return out.line(&format!("{}: unchanged", path.display()));
    }
    let write = || -> std::io::Result<()> {
        let path = path.canonicalize()?;
        let before = path.metadata()?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(migration.text.as_bytes())?;
        file.as_file().set_permissions(before.permissions())?;
        let own = file.as_file().metadata()?;
        if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
            std::os::unix::fs::fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
        }
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().with_context(|| format!("replacing {}", path.display()))?;
    let count = migration.renamed.len();
    let keys = if count == 1 { "key" } else { "keys" };
    out.line(&format!(
        "{}: rewritten, {count} {keys} renamed",
        path.display()
    ))
}
