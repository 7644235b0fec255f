//! What the processes of a model may use, and what they use.

use serde::{Deserialize, Serialize};

use crate::tree::{self, ProcessUsage};

/// Looks after which the processes are listed again, even when the machine has started none.
const LIST_AGAIN: u32 = 20;

/// Limits of a model's process and all that it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Bytes of all of them together, and of the private memory of each.
    pub(crate) memory: Option<u64>,
    /// Processes and threads.
    pub(crate) tasks: u64,
    /// Open files of each.
    pub(crate) files: u64,
}

/// Compares what the processes below this one use with their limits.
pub(crate) struct Watch {
    limits: Limits,
    root: i32,
    known: Vec<ProcessUsage>,
    /// The last process that this machine has started.
    newest: String,
    looks: u32,
}

impl Watch {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            root: rustix::process::getpid().as_raw_pid(),
            known: Vec::new(),
            newest: String::new(),
            looks: 0,
        }
    }

    /// Why the processes have to end; `None` while they stay below their limits.
    pub(crate) fn exceeded(&mut self) -> Option<String> {
        self.look();
        let tasks: u64 = self.known.iter().map(|process| process.tasks).sum();
        if self.limits.tasks < tasks {
            return Some(format!(
                "the model has {tasks} processes and threads, and may have {}",
                self.limits.tasks
            ));
        }
        let limit = self.limits.memory?;
        let resident: u64 = self.known.iter().map(|process| process.resident).sum();
        if resident <= limit {
            return None;
        }
        // Pages that processes share count once; reading that takes longer.
        let used: u64 = self.known.iter().map(ProcessUsage::proportional).sum();
        (limit < used).then(|| {
            let mebibytes = |bytes: u64| bytes >> 20;
            format!(
                "the model uses {} MiB of memory, and may use {}",
                mebibytes(used),
                mebibytes(limit)
            )
        })
    }

    /// Reads the processes. While the machine starts none, there is none to find.
    fn look(&mut self) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let newest = load.split_ascii_whitespace().next_back().unwrap_or("");
        self.looks += 1;
        if newest != self.newest || newest.is_empty() || LIST_AGAIN <= self.looks {
            newest.clone_into(&mut self.newest);
            self.looks = 0;
            self.known = tree::below(self.root);
        } else {
            let known = self.known.iter();
            self.known = known.filter_map(|it| ProcessUsage::read(it.id)).collect();
        }
        self.known.retain(|process| !process.is_zombie);
    }
}
