//! The keeper of a model's process: the parent between a worker and an interpreter.
//!
//! A worker starts its own binary as `volley python-host keep ORDER`. The keeper starts itself once
//! more (`run`), which restricts itself and then becomes the interpreter. Orphans of the model's
//! code have the keeper as their new parent, so it finds every process that the code has started,
//! also those that left the process group. When the interpreter ends, uses too much, or the worker
//! ends, the keeper kills all of them and ends in the same way as the interpreter.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{
    self, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, getppid, getrlimit, getuid,
    kill_process, set_child_subreaper, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::cgroup::Cgroup;
use crate::sandbox::{Failure, Reach};
use crate::tree;
use crate::usage::{Limits, Watch};

/// Interval between two looks at what the processes use.
const LOOK: Duration = Duration::from_millis(100);
/// Higher than the worker's score, so that the kernel kills the model first when memory runs out.
const OOM_SCORE: &str = "600";
/// The number of threads of the user that a model may reach, above those that there are at its
/// start. A second bound besides `Limits::tasks`: it counts all programs of the user.
const USER_TASKS: u64 = 8_192;
/// Exit status when the interpreter could not be started.
const NOT_STARTED: u8 = 125;

/// What a keeper starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) interpreter: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) reach: Reach,
    /// Directory in which the process gets one of its own for temporary files.
    pub(crate) temporary: PathBuf,
    /// Control group that the process gets one of its own in.
    pub(crate) cgroup: Option<PathBuf>,
    /// Whether the process goes on when the thread that started it ends.
    pub(crate) outlives: bool,
}

/// The program of a model's process, as `keep ORDER` or `run ORDER` at the end of the arguments.
/// The process must have one thread. With `run`, returns only when the interpreter cannot be
/// started.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let order = arguments.pop().and_then(|text| text.into_string().ok());
    let order = order.and_then(|text| serde_json::from_str::<Order>(&text).ok());
    let part = arguments.pop().and_then(|part| part.into_string().ok());
    let result = match (part.as_deref(), order) {
        (Some("keep"), Some(order)) => keep(order, arguments),
        (Some("run"), Some(order)) => Err(run(&order)),
        _ => Err("'python-host' is started by workers only".into()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            report(&format!("the model's process cannot be started: {error}"));
            ExitCode::from(NOT_STARTED)
        }
    }
}

/// A line for the model's log.
fn report(text: &str) {
    // There is no other way to report that standard error is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Runs the interpreter in a process below this one until its end.
fn keep(mut order: Order, prefix: Vec<OsString>) -> Result<ExitCode, Failure> {
    // Before anything else is started: a worker that has ended already is not the parent.
    set_parent_process_death_signal(Some(Signal::TERM))?;
    set_child_subreaper(Some(getpid()))?;
    setrlimit(Resource::Core, only(0))?;
    let temporary = tempfile::Builder::new()
        .prefix("process-")
        .tempdir_in(&order.temporary)?;
    order.reach.writable.push(temporary.path().to_owned());
    let cgroup = order.cgroup.as_deref();
    let cgroup = cgroup.map(|parent| Cgroup::create(parent, &order.limits));
    let cgroup = cgroup.transpose()?;
    order.cgroup = cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
    let interpreter = Command::new("/proc/self/exe")
        .args(prefix)
        .arg("run")
        .arg(serde_json::to_string(&order)?)
        .env("TMPDIR", temporary.path())
        .process_group(0)
        .spawn()?;
    let interpreter = i32::try_from(interpreter.id())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let status = runtime.block_on(wait(interpreter, Watch::new(order.limits), cgroup.as_ref()))?;
    if let Some(cgroup) = &cgroup {
        cgroup.kill();
    }
    if !tree::kill_below(getpid().as_raw_pid()) {
        report("a process of the model does not end");
    }
    drop((cgroup, temporary));
    Ok(end_like(status))
}

/// How the interpreter ended.
enum End {
    Status(WaitStatus),
    /// This keeper ends it.
    Killed,
}

/// Waits until the interpreter has ended, the processes use too much, or the worker ends them.
async fn wait(interpreter: i32, mut watch: Watch, cgroup: Option<&Cgroup>) -> Result<End, Failure> {
    let mut children = signal(SignalKind::child())?;
    let mut told = signal(SignalKind::terminate())?;
    let parent = getppid();
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        while let Some((id, status)) = process::wait(WaitOptions::NOHANG)? {
            if id.as_raw_pid() == interpreter {
                if let Some(why) = cgroup.and_then(Cgroup::exceeded) {
                    report(why);
                }
                return Ok(End::Status(status));
            }
        }
        tokio::select! {
            _ = told.recv() => return Ok(End::Killed),
            _ = children.recv() => {}
            _ = looks.tick() => {
                if getppid() != parent {
                    return Ok(End::Killed);
                }
                if let Some(why) = watch.exceeded() {
                    report(&format!("{why}; its processes are killed"));
                    return Ok(End::Killed);
                }
            }
        }
    }
}

/// Ends this process as the interpreter ended.
fn end_like(end: End) -> ExitCode {
    let signal = match end {
        End::Killed => Signal::KILL,
        End::Status(status) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => return ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, number) => number
                .and_then(Signal::from_named_raw)
                .unwrap_or(Signal::KILL),
        },
    };
    // The handler of Rust's runtime takes the first segmentation fault, and restores the default.
    for signal in [signal, signal, Signal::KILL] {
        if kill_process(getpid(), signal).is_err() {
            break;
        }
    }
    ExitCode::FAILURE
}

/// Restricts this process and becomes the interpreter. Returns only an error.
fn run(order: &Order) -> Failure {
    if let Err(error) = restrict(order) {
        return error;
    }
    let mut command = Command::new(&order.interpreter);
    command.args(&order.arguments).exec().into()
}

fn restrict(order: &Order) -> Result<(), Failure> {
    if !order.outlives {
        let keeper = getppid();
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != keeper {
            return Err("its keeper has ended".into());
        }
    }
    if let Some(cgroup) = &order.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        report(&format!("the OOM score of the model is not set: {error}"));
    }
    let Limits { memory, files, .. } = order.limits;
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    setrlimit(Resource::Nofile, only(files.min(most)))?;
    if let Some(bytes) = memory {
        setrlimit(Resource::Data, only(bytes))?;
    }
    // The kernel does not count the processes of root.
    if !getuid().is_root() {
        let tasks = tasks_of_user().saturating_add(USER_TASKS);
        let most = getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
        setrlimit(Resource::Nproc, only(tasks.min(most)))?;
    }
    // Nothing new can be created beside a directory that leads to a hidden file, and the home
    // directory may be one. Libraries that download models need this.
    if let Some(home) = std::env::var_os("HOME")
        && let Err(error) = std::fs::create_dir(PathBuf::from(home).join(".cache"))
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        report(&format!("the directory '.cache' is not created: {error}"));
    }
    order.reach.enforce()?;
    drop_capabilities()
}

/// Takes the rights of root away, except to files of other users: they reach past what is hidden.
/// The interpreter cannot get them back, because it gains no privileges from now on.
fn drop_capabilities() -> Result<(), Failure> {
    let now = capabilities(None)?;
    let kept = now.permitted & CapabilitySet::DAC_OVERRIDE;
    set_no_new_privs(true)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

fn only(value: u64) -> Rlimit {
    Rlimit {
        current: Some(value),
        maximum: Some(value),
    }
}

/// Threads of this process' user.
fn tasks_of_user() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let user = getuid().as_raw();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() == user).then_some(id)
    });
    ids.filter_map(tree::ProcessUsage::read)
        .map(|process| process.tasks)
        .sum()
}
