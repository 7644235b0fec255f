//! What a model's code may reach: files through Landlock, sockets through seccomp.
//!
//! Landlock has rules that allow, and none that forbid. A directory is hidden by rules for
//! everything beside it: for each directory on the way from `/` to it, the other entries of that
//! directory are allowed.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde::{Deserialize, Serialize};

/// Rights of this version are needed: it covers truncation. Linux 6.2 and later have it.
const NEEDED: ABI = ABI::V3;
/// Most rules of a process.
const MAX_RULES: usize = 16_384;
/// Devices that code in a sandbox may write to.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// A restriction of the code of a model, besides the worker's own files, which are always hidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// None.
    #[default]
    None,
    /// Files are read-only, except in the process' own directory for temporary files.
    Files,
    /// Besides, no network.
    FilesAndNetwork,
}

impl Sandbox {
    /// The names of all of them, for error messages.
    pub const NAMES: &str = "none, files or files_and_network";

    /// The sandbox of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "files" => Self::Files,
            "files_and_network" => Self::FilesAndNetwork,
            _ => return None,
        })
    }

    /// Why this machine cannot provide the sandbox; `None` when it can.
    pub(crate) fn missing(self) -> Option<&'static str> {
        if self == Self::None {
            return None;
        }
        if !has_landlock() {
            return Some("the kernel of this worker has no Landlock of version 3 (Linux 6.2)");
        }
        let has_filters = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
        if self == Self::FilesAndNetwork && !has_filters {
            return Some("the kernel of this worker has no seccomp filters");
        }
        None
    }
}

/// Whether the kernel restricts files.
pub(crate) fn has_landlock() -> bool {
    handled().and_then(|ruleset| ruleset.create()).is_ok()
}

/// The files that a process may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    pub(crate) sandbox: Sandbox,
    /// Files and directories of the worker that no model may open.
    pub(crate) hidden: Vec<PathBuf>,
    /// Directories that may be read, also inside of hidden ones.
    pub(crate) read_only: Vec<PathBuf>,
    /// Directories that may be written, also inside of hidden ones.
    pub(crate) writable: Vec<PathBuf>,
    /// The model's directory.
    pub(crate) model: PathBuf,
}

/// A failure to restrict this process.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Reach {
    /// Restricts this thread and what it executes. Irrevocable.
    ///
    /// # Errors
    /// When the kernel refuses a part of it; nothing may be executed then.
    pub(crate) fn enforce(&self) -> Result<(), Failure> {
        if self.sandbox == Sandbox::None && !has_landlock() {
            // The worker has logged that its files are not hidden.
            return Ok(());
        }
        let mut scopes = BitFlags::from(Scope::Signal);
        if self.sandbox != Sandbox::None {
            scopes |= Scope::AbstractUnixSocket;
        }
        let mut ruleset = handled()?
            .set_compatibility(CompatLevel::BestEffort)
            .scope(scopes)?
            .create()?
            .set_compatibility(CompatLevel::HardRequirement);
        for (path, access) in self.rules()? {
            ruleset = allow(ruleset, &path, access)?;
        }
        ruleset.restrict_self()?;
        if self.sandbox == Sandbox::FilesAndNetwork {
            seccompiler::apply_filter(&no_network()?)?;
        }
        Ok(())
    }

    /// What is allowed, and how.
    fn rules(&self) -> Result<Vec<(PathBuf, BitFlags<AccessFs>)>, Failure> {
        let all = AccessFs::from_all(NEEDED);
        let read = AccessFs::from_read(NEEDED);
        let existing = |paths: &[PathBuf]| -> Vec<PathBuf> {
            let paths = paths.iter().filter_map(|path| path.canonicalize().ok());
            paths.collect()
        };
        let (hidden, read_only) = (existing(&self.hidden), existing(&self.read_only));
        let model = self.model.canonicalize()?;
        let is_sandboxed = self.sandbox != Sandbox::None;
        let mut carved = hidden.clone();
        carved.extend(read_only.iter().cloned());
        let rest = if is_sandboxed { read } else { all };
        let mut beside = Vec::new();
        list_beside(Path::new("/"), &carved, &mut beside)?;
        let mut rules: Vec<_> = beside.into_iter().map(|path| (path, rest)).collect();
        for path in read_only {
            let inside = hidden.iter().filter(|it| it.starts_with(&path));
            let inside: Vec<_> = inside.cloned().collect();
            let mut beside = Vec::new();
            list_beside(&path, &inside, &mut beside)?;
            rules.extend(beside.into_iter().map(|path| (path, read)));
        }
        if hidden.iter().any(|hidden| model.starts_with(hidden)) {
            rules.push((model, read));
        } else if hidden.iter().any(|hidden| hidden.starts_with(&model)) {
            // Python lists the directories that it imports from.
            rules.push((model, AccessFs::ReadDir.into()));
        }
        if is_sandboxed {
            let devices = DEVICES.map(|name| Path::new("/dev").join(name));
            let gpus = std::fs::read_dir("/dev").into_iter().flatten().flatten();
            let gpus = gpus.filter(|it| it.file_name().to_string_lossy().starts_with("nvidia"));
            let devices = devices.into_iter().chain(gpus.map(|it| it.path()));
            let devices = devices.filter(|device| device.exists());
            rules.extend(devices.map(|device| (device, read | AccessFs::WriteFile)));
        }
        rules.extend(existing(&self.writable).into_iter().map(|path| (path, all)));
        Ok(rules)
    }
}

/// A ruleset that restricts files.
fn handled() -> Result<Ruleset, landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(NEEDED))
}

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, Failure> {
    let opened = match PathFd::new(path) {
        Ok(opened) => opened,
        // It ended, or was removed, since its directory was listed; or nobody may open it.
        Err(_) => return Ok(ruleset),
    };
    let is_directory = path.is_dir();
    let access = match is_directory {
        true => access,
        false => access & AccessFs::from_file(NEEDED),
    };
    Ok(ruleset.add_rule(PathBeneath::new(opened, access))?)
}

/// The files and directories below `directory` that together have everything except `carved`.
fn list_beside(
    directory: &Path,
    carved: &[PathBuf],
    found: &mut Vec<PathBuf>,
) -> Result<(), Failure> {
    if !carved.iter().any(|path| path.starts_with(directory)) {
        found.push(directory.to_owned());
        return Ok(());
    }
    if carved.iter().any(|path| path == directory) {
        return Ok(());
    }
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        // A link is followed to where it leads, and that has a rule of its own.
        if entry.file_type()?.is_symlink() {
            continue;
        }
        list_beside(&entry.path(), carved, found)?;
        if MAX_RULES < found.len() {
            return Err("the worker's files are in a directory with too many other files".into());
        }
    }
    Ok(())
}

/// A filter that has no sockets except those between processes of this machine.
fn no_network() -> Result<BpfProgram, Failure> {
    let local = u64::try_from(libc::AF_UNIX)?;
    let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, local)?;
    let other = SeccompRule::new(vec![other])?;
    let filter = SeccompFilter::new(
        [
            (libc::SYS_socket, vec![other]),
            // Its queues open sockets past this filter.
            (libc::SYS_io_uring_setup, Vec::new()),
        ]
        .into_iter()
        .collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(u32::try_from(libc::EACCES)?),
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_allowed_except_what_is_hidden() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for directory in ["a/keys", "a/open", "b"] {
            std::fs::create_dir_all(root.join(directory)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("a/keys"), root.join("link")).unwrap();
        let mut found = Vec::new();
        list_beside(&root, &[root.join("a/keys")], &mut found).unwrap();
        found.sort();
        assert_eq!(found, [root.join("a/open"), root.join("b")]);
        let mut whole = Vec::new();
        list_beside(&root, &[], &mut whole).unwrap();
        assert_eq!(whole, [root]);
    }

    #[test]
    fn names_are_those_of_the_documentation() {
        for (name, sandbox) in [
            ("none", Sandbox::None),
            ("files", Sandbox::Files),
            ("files_and_network", Sandbox::FilesAndNetwork),
        ] {
            assert_eq!(Sandbox::from_name(name), Some(sandbox));
            assert!(Sandbox::NAMES.contains(name));
        }
        assert_eq!(Sandbox::from_name("network"), None);
        assert!(Sandbox::None < Sandbox::Files && Sandbox::Files < Sandbox::FilesAndNetwork);
    }
}
