//! Conversions of aliases: wire ⇄ [`volley_types::registry`].

use volley_types::registry::{AliasEntry, AliasMirror, AliasSpec, AliasTarget};
use volley_types::{ModelName, PredictError, Revision};

use crate::registry::v1 as wire;

/// Converts an alias to the wire.
#[must_use]
pub fn alias_to_wire(alias: &AliasSpec) -> wire::Alias {
    let target = |target: &AliasTarget| wire::AliasTarget {
        model: target.model.to_string(),
        weight: target.weight,
    };
    wire::Alias {
        name: alias.name.to_string(),
        targets: alias.targets.iter().map(target).collect(),
        mirror: alias.mirror.as_ref().map(|mirror| wire::AliasMirror {
            model: mirror.model.to_string(),
            permille: mirror.permille,
        }),
        sticky_header: alias.sticky_header.clone().unwrap_or_default(),
        description: alias.description.clone(),
    }
}

/// Converts an alias from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn alias_from_wire(alias: wire::Alias) -> Result<AliasSpec, PredictError> {
    let targets = alias.targets.into_iter().map(|target| {
        Ok(AliasTarget {
            model: target.model.parse()?,
            weight: target.weight,
        })
    });
    let mirror = alias.mirror.map(|mirror| {
        Ok::<_, PredictError>(AliasMirror {
            model: mirror.model.parse()?,
            permille: mirror.permille,
        })
    });
    Ok(AliasSpec {
        name: ModelName::new(alias.name)?,
        targets: targets.collect::<Result<_, PredictError>>()?,
        mirror: mirror.transpose()?,
        sticky_header: Some(alias.sticky_header).filter(|header| !header.is_empty()),
        description: alias.description,
    })
}

/// Converts an alias of a snapshot to the wire.
#[must_use]
pub fn alias_entry_to_wire(entry: &AliasEntry) -> wire::AliasRecord {
    wire::AliasRecord {
        alias: Some(alias_to_wire(&entry.spec)),
        revision: entry.revision.0,
    }
}

/// Converts an alias of a snapshot from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed or missing.
pub fn alias_entry_from_wire(record: wire::AliasRecord) -> Result<AliasEntry, PredictError> {
    let missing = || PredictError::invalid("a registry record has no alias");
    Ok(AliasEntry {
        spec: alias_from_wire(record.alias.ok_or_else(missing)?)?,
        revision: Revision(record.revision),
    })
}
