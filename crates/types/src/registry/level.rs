//! Levels: which commands a version of Volley understands.
//!
//! While a cluster is upgraded, coordinators of two versions share one registry. Each says which
//! level it speaks; a command of a higher level is refused until all of them speak it, and from
//! the first such command on nobody of a lower level takes part any more.

use crate::registry::RegistryCommand;

/// The level that this version speaks: 1 was the first, 2 has [`RegistryCommand::Drain`] and
/// [`DeployOptions::beside`](super::DeployOptions::beside), 3 has [`RegistryCommand::PutTask`], 4
/// has [`Placing::moving`](super::Placing::moving). A
/// version that adds a command, or a field to one, adds a level.
pub const LEVEL: u32 = 4;

/// The level from which on replicas move although their workers are there.
pub const MOVING_LEVEL: u32 = 4;

impl RegistryCommand {
    /// The lowest level at which everything in this command is understood.
    #[must_use]
    pub fn level(&self) -> u32 {
        match self {
            Self::Drain(..) | Self::Undrain(_) => 2,
            Self::PutTask { .. } | Self::ForgetTask(_) => 3,
            Self::Place(placings) if placings.iter().any(|it| it.moving) => MOVING_LEVEL,
            // What replaces a version elsewhere must not do so here.
            Self::Deploy { options, .. } if options.beside != 0 => 2,
            _ => 1,
        }
    }
}
