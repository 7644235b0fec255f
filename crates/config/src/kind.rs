//! The two kinds of configuration files.

use std::fmt;

/// The node that a file configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A coordinator.
    Coordinator,
    /// A worker.
    Worker,
}

impl FileKind {
    /// The kind of a file, given the keys of its table `listen`. Only a coordinator has `public`,
    /// and only a worker has `flight`. `None` if neither is present.
    #[must_use]
    pub fn from_listeners<'k>(keys: impl IntoIterator<Item = &'k str>) -> Option<Self> {
        keys.into_iter().find_map(|key| match key {
            "public" => Some(Self::Coordinator),
            "flight" => Some(Self::Worker),
            _ => None,
        })
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
        })
    }
}
