//! Control groups (version 2), where the worker may create some: limits that the kernel keeps.
//!
//! systemd gives a service a group of its own with `Delegate=yes`, and a container has one. A group
//! with processes has no limited groups below it, so the worker moves itself aside first.

use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::usage::Limits;

/// Controllers that limit a model.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// Name of the group that the worker moves to.
const WORKER: &str = "volley-worker";
/// Name of the group of all models.
const MODELS: &str = "volley-python";
/// How long killed processes may stay in their group.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(2);

/// The group of one model's processes. Dropping it removes the group.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a group below `parent` for the children of this process.
    ///
    /// # Errors
    /// When the group cannot be created or a limit not be set.
    pub(crate) fn create(parent: &Path, limits: &Limits) -> Result<Self> {
        let path = parent.join(std::process::id().to_string());
        std::fs::create_dir(&path)?;
        let group = Self { path };
        group.set("pids.max", &limits.tasks.to_string())?;
        if let Some(bytes) = limits.memory {
            group.set("memory.max", &bytes.to_string())?;
            group.set("memory.oom.group", "1")?;
            // Swapped memory is memory. Not every kernel counts it.
            if group.path.join("memory.swap.max").exists() {
                group.set("memory.swap.max", "0")?;
            }
        }
        Ok(group)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        std::fs::write(self.path.join(file), value)
            .map_err(|error| Error::other(format!("control group: {file}: {error}")))
    }

    /// Which limit the processes have reached; `None` when they stayed below.
    pub(crate) fn exceeded(&self) -> Option<&'static str> {
        let count = |file: &str, name: &str| -> u64 {
            let text = std::fs::read_to_string(self.path.join(file)).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|count| count.trim().parse().ok())
                .unwrap_or(0)
        };
        if 0 < count("memory.events", "oom_kill ") {
            return Some("the model used more memory than it may, and the kernel killed it");
        }
        if 0 < count("pids.events", "max ") {
            return Some("the model started more processes and threads than it may");
        }
        None
    }

    /// Kills every process of the group at once.
    pub(crate) fn kill(&self) {
        // Linux before 5.14 has no such file; the keeper kills them one by one then.
        let _ = self.set("cgroup.kill", "1");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let since = Instant::now();
        while std::fs::remove_dir(&self.path).is_err() && since.elapsed() < EMPTY_TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The group for all models of this worker, prepared for limited groups below it.
///
/// # Errors
/// Why control groups do not limit models here, for the log.
pub(crate) fn prepare() -> std::result::Result<PathBuf, String> {
    let own = own_group()?;
    let text = |file: &str| std::fs::read_to_string(own.join(file)).unwrap_or_default();
    let available = text("cgroup.controllers");
    for controller in CONTROLLERS {
        let mut names = available.split_ascii_whitespace();
        if !names.any(|name| name == controller) {
            return Err(format!("the controller '{controller}' is not available"));
        }
    }
    // Root may write to every group; systemd marks those that it has given away.
    if rustix::process::getuid().is_root() && !is_contained() && !is_delegated(&own) {
        return Err(
            "the control group is not delegated; set 'Delegate=yes' in its unit".to_owned(),
        );
    }
    let members = text("cgroup.procs");
    let me = std::process::id().to_string();
    if members.lines().any(|member| member != me) {
        return Err("the worker shares its control group with other processes".to_owned());
    }
    let refused = |error: Error| format!("the control group is not delegated: {error}");
    for name in [WORKER, MODELS] {
        match std::fs::create_dir(own.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(refused(error));
            }
            _ => {}
        }
    }
    std::fs::write(own.join(WORKER).join("cgroup.procs"), &me).map_err(refused)?;
    let enable = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    for group in [own.clone(), own.join(MODELS)] {
        std::fs::write(group.join("cgroup.subtree_control"), &enable).map_err(refused)?;
    }
    let models = own.join(MODELS);
    // Those of a worker that was killed.
    for left in std::fs::read_dir(&models).into_iter().flatten().flatten() {
        if left.path().is_dir() {
            let _ = std::fs::remove_dir(left.path());
        }
    }
    Ok(models)
}

/// The directory of the group that this process is in.
fn own_group() -> std::result::Result<PathBuf, String> {
    let missing = || "this machine has no control groups of version 2".to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|_| missing())?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|_| missing())?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let (mount, group) = (mount.ok_or_else(missing)?, group.ok_or_else(missing)?);
    let own = mount.join(group);
    // A worker that started before in this process has moved it.
    let own = match own.ends_with(WORKER) {
        true => own.parent().map(Path::to_path_buf).unwrap_or(own),
        false => own,
    };
    // The group of the whole machine belongs to its init.
    match own == mount && !is_contained() {
        true => Err("the worker is in the control group of the whole machine".to_owned()),
        false => Ok(own),
    }
}

/// Whether this process sees a part of the machine's control groups only, as in a container.
fn is_contained() -> bool {
    // The initial namespace has this number (`PROC_CGROUP_INIT_INO`).
    let namespace = std::fs::read_link("/proc/self/ns/cgroup").unwrap_or_default();
    !namespace.as_os_str().is_empty() && namespace != Path::new("cgroup:[4026531835]")
}

fn is_delegated(group: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0_u8; 8];
        let length = rustix::fs::getxattr(group, *name, &mut value);
        length.is_ok_and(|length| value.get(..length) == Some(b"1"))
    })
}
