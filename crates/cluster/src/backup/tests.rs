use proptest::prelude::*;
use volley_types::registry::{BackendName, ModelSource, ModelVersionSpec, RegistryCommand};
use volley_types::{ModelName, ModelVersion, Parameters};

use super::*;

fn registry(models: usize) -> RegistryState {
    let mut state = RegistryState::default();
    for index in 0..models {
        let spec = ModelVersionSpec {
            version: ModelVersion(0),
            backend: BackendName::TEXT,
            source: ModelSource::None,
            parameters: Parameters::default(),
            description: format!("number {index}"),
            created_ms: 5,
        };
        let name = ModelName::new(format!("m{index}")).unwrap();
        let command = RegistryCommand::RegisterModel(name, spec);
        volley_registry::apply(&mut state, &command).unwrap();
    }
    state
}

#[test]
fn a_backup_is_read_back_as_it_was_and_tells_what_is_inside() {
    let state = registry(3);
    let backup = encode(&state, 42);
    let (head, read) = decode(&backup).unwrap();
    assert_eq!(read, state);
    assert_eq!(
        (head.revision, head.models, head.created_ms),
        (state.revision.0, 3, 42)
    );
    assert!(backup.starts_with(b"volley-backup 1\n{\"volley\":"));
}

#[test]
fn another_format_and_another_file_are_told_apart_from_damage() {
    let says = |bytes: &[u8]| decode(bytes).unwrap_err().message;
    assert!(says(b"").contains("not a Volley backup"));
    assert!(says(b"PK\x03\x04").contains("not a Volley backup"));
    assert!(says(b"volley-backup 2\n{}").contains("format"));
    assert!(says(b"volley-backup 1\n{}").contains("truncated or changed"));
}

#[test]
fn what_a_later_version_added_is_not_dropped_silently() {
    let state = registry(1);
    let mut payload = state_to_wire(&state).encode_to_vec();
    // Field 2047, a varint, is unknown in this version.
    payload.extend([0xf8, 0x7f, 0x01]);
    let mut backup = MAGIC.as_bytes().to_vec();
    let head = BackupHead {
        volley: "9.9.9".to_owned(),
        created_ms: 0,
        revision: state.revision.0,
        models: 1,
        connectors: 0,
        keys: 0,
        bytes: payload.len(),
    };
    backup.extend(serde_json::to_vec(&head).unwrap());
    backup.push(b'\n');
    backup.extend(payload);
    let seal = seal(&backup);
    backup.extend(seal.as_bytes());
    let refused = decode(&backup).unwrap_err();
    assert!(refused.message.contains("9.9.9"), "{refused:?}");
}

proptest! {
    #[test]
    fn any_change_of_any_byte_is_found(at: prop::sample::Index, flip in 1u8..) {
        let mut backup = encode(&registry(2), 1);
        let at = at.index(backup.len());
        backup[at] ^= flip;
        prop_assert!(decode(&backup).is_err());
    }

    #[test]
    fn a_backup_that_was_cut_is_refused(length: prop::sample::Index) {
        let backup = encode(&registry(2), 1);
        let length = length.index(backup.len());
        prop_assert!(decode(&backup[..length]).is_err());
    }

    #[test]
    fn nonsense_is_refused(mut bytes: Vec<u8>, with_magic: bool) {
        if with_magic {
            bytes.splice(0..0, MAGIC.bytes());
        }
        prop_assert!(decode(&bytes).is_err());
    }
}
