//! Zip archives, the format of OpenSearch's models.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use volley_types::{ErrorCode, PredictError};
use zip::ZipArchive;
use zip::read::ZipFile;

use super::{Survey, Writer, entry_path, malformed, not_plain};
use crate::cancel::Cancel;
use crate::failure;
use crate::manifest::MAX_FILES;

/// Maximum size of the end record: 22 bytes, and a comment of up to 65,535 bytes.
const END_BYTES: u64 = 22 + 65_535;
const END_MARK: &[u8] = b"PK\x05\x06";
const END64_MARK: &[u8] = b"PK\x06\x06";

type Zip = ZipArchive<BufReader<File>>;

pub(super) fn measure(file: &Path, survey: &mut Survey, stop: &Cancel) -> Result<(), PredictError> {
    let mut zip = open(file)?;
    for index in 0..zip.len() {
        stop.check()?;
        let entry = entry(&mut zip, index)?;
        survey.entry()?;
        let Some(path) = entry_path(&name(&entry)?)? else {
            continue;
        };
        if entry.is_file() {
            survey.file(&path, entry.size())?;
        }
    }
    Ok(())
}

pub(super) fn unpack(file: &Path, writer: &mut Writer<'_>) -> Result<(), PredictError> {
    let mut zip = open(file)?;
    for index in 0..zip.len() {
        let mut entry = entry(&mut zip, index)?;
        let name = name(&entry)?;
        if entry.is_dir() {
            writer.folder(&name)?;
        } else {
            writer.file(&name, &mut entry)?;
        }
    }
    Ok(())
}

fn open(file: &Path) -> Result<Zip, PredictError> {
    let mut reader = BufReader::new(File::open(file).map_err(failure::of_disk)?);
    check_count(&mut reader)?;
    ZipArchive::new(reader).map_err(malformed)
}

/// Rejects an archive that declares too many entries, because `ZipArchive` reads the whole index
/// into memory.
fn check_count(reader: &mut BufReader<File>) -> Result<(), PredictError> {
    let bytes = reader.seek(SeekFrom::End(0)).map_err(failure::of_disk)?;
    // The zip64 record is directly before the short one.
    let start = bytes.saturating_sub(END_BYTES + 128);
    reader
        .seek(SeekFrom::Start(start))
        .map_err(failure::of_disk)?;
    let mut tail = Vec::new();
    reader.read_to_end(&mut tail).map_err(failure::of_disk)?;
    reader.seek(SeekFrom::Start(0)).map_err(failure::of_disk)?;
    let number = |at: usize, width: usize| {
        let digits = tail.get(at..at + width)?;
        let digits = digits.iter().rev();
        Some(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let find = |mark: &'static [u8]| {
        let windows = tail.windows(mark.len()).enumerate();
        windows.filter_map(move |(at, window)| (window == mark).then_some(at))
    };
    let short = find(END_MARK).filter_map(|at| number(at + 10, 2).filter(|count| *count != 0xFFFF));
    let long = find(END64_MARK).filter_map(|at| number(at + 32, 8));
    let most = short.chain(long).max();
    match most {
        None => Err(malformed("no end record")),
        Some(count) if count > MAX_FILES as u64 => Err(PredictError::new(
            ErrorCode::TooLarge,
            format!("the model's archive has more than {MAX_FILES} entries"),
        )),
        Some(_) => Ok(()),
    }
}

fn entry(zip: &mut Zip, index: usize) -> Result<ZipFile<'_, BufReader<File>>, PredictError> {
    let entry = zip.by_index(index).map_err(malformed)?;
    if entry.encrypted() {
        return Err(PredictError::invalid("the model's archive is encrypted"));
    }
    // The type bits of a Unix mode; archivers on other systems leave them zero.
    let kind = entry.unix_mode().map_or(0, |mode| mode & 0o170_000);
    let is_plain = matches!(kind, 0 | 0o040_000 | 0o100_000);
    if entry.is_symlink() || !is_plain {
        return Err(not_plain());
    }
    Ok(entry)
}

fn name(entry: &ZipFile<'_, BufReader<File>>) -> Result<String, PredictError> {
    Ok(entry.name().map_err(malformed)?.into_owned())
}
