use std::io::Write;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;
use volley_telemetry::Metrics;
use zip::write::SimpleFileOptions;

use super::*;
use crate::cache::CacheLimits;

const MAX_BYTES: u64 = 1 << 20;

/// Unpacks `bytes` as a fetch does. The folder contains the result.
fn unpacked(kind: Archive, bytes: &[u8]) -> (Result<(), PredictError>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let limits = CacheLimits {
        cache_bytes: u64::MAX,
        min_free_bytes: 0,
    };
    let cache = Cache::open(folder.path().join("cache"), limits, Metrics::new()).unwrap();
    let (file, stop) = (folder.path().join("archive"), Cancel::default());
    fs::write(&file, bytes).unwrap();
    let result = measure(kind, &file, MAX_BYTES, &stop).and_then(|_| {
        let into = folder.path().join("into");
        unpack(kind, &file, &into, MAX_BYTES, &cache, &stop)
    });
    (result, folder)
}

fn refusal(kind: Archive, bytes: &[u8]) -> PredictError {
    let (result, folder) = unpacked(kind, bytes);
    // Nothing exists outside of the target directory.
    assert_eq!(outside(&folder), Vec::<PathBuf>::new());
    result.unwrap_err()
}

fn outside(folder: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let known = ["cache", "archive", "into"].map(|name| folder.path().join(name));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| !known.contains(path)).collect()
}

/// A zip archive with these entries: name, Unix mode and content.
fn zip_of(entries: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    for (name, mode, bytes) in entries {
        let options = SimpleFileOptions::default().unix_permissions(*mode);
        zip.start_file(*name, options).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// A gzipped tar archive with these entries. The names are written unchanged.
fn tar_of(entries: &[(&str, tar::EntryType, &[u8])]) -> Vec<u8> {
    let gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    for (name, kind, bytes) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if kind.is_symlink() || kind.is_hard_link() {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

#[test]
fn what_archivers_add_is_left_out() {
    let zip = zip_of(&[
        ("m/model.onnx", 0o644, b"graph"),
        ("__MACOSX/m/._model.onnx", 0o644, b"x"),
        ("m/.DS_Store", 0o644, b"x"),
    ]);
    let (result, folder) = unpacked(Archive::Zip, &zip);
    result.unwrap();
    let root = model_root(&folder.path().join("into")).unwrap();
    let names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["model.onnx"]);
}

#[test]
fn entries_that_leave_the_directory_are_refused() {
    use tar::EntryType::Regular;
    for name in ["../x", "/tmp/x", "a/../../x", "..\\x", "a/./x", "C:\\x"] {
        let zip = zip_of(&[("model.onnx", 0o644, b"x"), (name, 0o644, b"x")]);
        let refused = refusal(Archive::Zip, &zip);
        assert_eq!(refused.code, ErrorCode::InvalidInput, "{name}");
        let tar = tar_of(&[("model.onnx", Regular, b"x"), (name, Regular, b"x")]);
        let refused = refusal(Archive::TarGz, &tar);
        assert_eq!(refused.code, ErrorCode::InvalidInput, "{name}");
    }
}

#[test]
fn links_and_special_files_are_refused() {
    use tar::EntryType::{Block, Char, Fifo, Link, Symlink};
    for kind in [Symlink, Link, Fifo, Char, Block] {
        let refused = refusal(Archive::TarGz, &tar_of(&[("model.onnx", kind, b"")]));
        assert!(
            refused.message.contains("plain files"),
            "{kind:?}: {refused:?}"
        );
    }
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    zip.add_symlink("model.onnx", "/etc/passwd", options)
        .unwrap();
    let zip = zip.finish().unwrap().into_inner();
    let refused = refusal(Archive::Zip, &zip);
    assert!(refused.message.contains("plain files"), "{refused:?}");
}

#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 2 << 20];
    let zip = zip_of(&[("model.onnx", 0o644, &zeros)]);
    assert!(zip.len() < 10_000);
    assert_eq!(refusal(Archive::Zip, &zip).code, ErrorCode::TooLarge);
    // An archive whose header declares a small size.
    let mut lying = zip;
    let size = (2_u32 << 20).to_le_bytes();
    for at in 0..lying.len() - 4 {
        if lying[at..at + 4] == size {
            lying[at..at + 4].copy_from_slice(&9_u32.to_le_bytes());
        }
    }
    let (result, folder) = unpacked(Archive::Zip, &lying);
    assert!(result.is_err());
    let written = crate::cache::tree_bytes(&folder.path().join("into")).unwrap();
    assert!(written <= MAX_BYTES, "{written}");

    let tar = tar_of(&[("model.onnx", tar::EntryType::Regular, &zeros)]);
    assert_eq!(refusal(Archive::TarGz, &tar).code, ErrorCode::TooLarge);
    let names: Vec<_> = (0..=MAX_FILES).map(|at| format!("f{at}")).collect();
    let many: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), 0o644, &b""[..]))
        .collect();
    assert_eq!(
        refusal(Archive::Zip, &zip_of(&many)).code,
        ErrorCode::TooLarge
    );
    let many: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), tar::EntryType::Regular, &b""[..]))
        .collect();
    assert_eq!(
        refusal(Archive::TarGz, &tar_of(&many)).code,
        ErrorCode::TooLarge
    );
}

#[test]
fn a_file_twice_or_where_a_folder_is_and_none_at_all_are_refused() {
    use tar::EntryType::{Directory, Regular};
    let twice = tar_of(&[("model.onnx", Regular, b"x"), ("model.onnx", Regular, b"y")]);
    assert_eq!(
        refusal(Archive::TarGz, &twice).code,
        ErrorCode::InvalidInput
    );
    let clash = zip_of(&[("a", 0o644, b"x"), ("a/model.onnx", 0o644, b"y")]);
    assert_eq!(refusal(Archive::Zip, &clash).code, ErrorCode::InvalidInput);
    let none = tar_of(&[("m/", Directory, b"")]);
    assert_eq!(refusal(Archive::TarGz, &none).code, ErrorCode::InvalidInput);
    for kind in [Archive::Zip, Archive::TarGz] {
        assert_eq!(
            refusal(kind, b"not an archive").code,
            ErrorCode::InvalidInput
        );
        assert_eq!(refusal(kind, b"").code, ErrorCode::InvalidInput);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_names_stay_inside_or_are_refused(
        names in proptest::collection::vec("(\\.{0,2}/)?[a-c./\\\\]{1,9}", 1..5),
    ) {
        let entries: Vec<_> = names.iter().map(|name| (name.as_str(), 0o644, &b"x"[..])).collect();
        let mut unique = entries.clone();
        unique.sort_unstable();
        unique.dedup_by_key(|entry| entry.0);
        let (_, folder) = unpacked(Archive::Zip, &zip_of(&unique));
        prop_assert_eq!(outside(&folder), Vec::<PathBuf>::new());
        let entries: Vec<_> = entries
            .iter()
            .map(|(name, _, bytes)| (*name, tar::EntryType::Regular, *bytes))
            .collect();
        let (_, folder) = unpacked(Archive::TarGz, &tar_of(&entries));
        prop_assert_eq!(outside(&folder), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_damaged_archive_is_read_or_refused(at: proptest::sample::Index, to: u8, end: proptest::sample::Index) {
        let zip = zip_of(&[("m/model.onnx", 0o644, b"graph graph graph"), ("m/a", 0o644, b"b")]);
        let tar = tar_of(&[("model.onnx", tar::EntryType::Regular, b"graph graph")]);
        for (kind, mut archive) in [(Archive::Zip, zip), (Archive::TarGz, tar)] {
            let at = at.index(archive.len());
            archive[at] = to;
            for archive in [&archive[..], &archive[..end.index(archive.len())]] {
                let (result, folder) = unpacked(kind, archive);
                prop_assert_eq!(outside(&folder), Vec::<PathBuf>::new());
                if let Err(error) = result {
                    let known = matches!(error.code, ErrorCode::InvalidInput | ErrorCode::TooLarge);
                    prop_assert!(known, "{:?}", error);
                }
            }
        }
    }
}
