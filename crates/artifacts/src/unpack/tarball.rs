//! Gzipped tar archives.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tar::{Archive, EntryType};
use volley_types::PredictError;

use super::{Survey, Writer, entry_path, malformed, not_plain};
use crate::cancel::Cancel;
use crate::failure;

/// Maximum size of a header with a long name or other attributes; it is read into memory.
const MAX_HEADER_BYTES: u64 = 64 << 10;

type Tarball = Archive<BufReader<MultiGzDecoder<BufReader<File>>>>;

/// Checks the size of every header before a long one is read into memory.
pub(super) fn measure(file: &Path, survey: &mut Survey, stop: &Cancel) -> Result<(), PredictError> {
    let mut tar = open(file)?;
    for entry in tar.entries().map_err(malformed)?.raw(true) {
        stop.check()?;
        let mut entry = entry.map_err(malformed)?;
        let header = entry.header();
        let (kind, bytes) = (header.entry_type(), header.size().map_err(malformed)?);
        survey.entry()?;
        match kind {
            EntryType::Regular | EntryType::Continuous => survey.grow(bytes)?,
            EntryType::Directory => {}
            EntryType::XHeader
            | EntryType::XGlobalHeader
            | EntryType::GNULongName
            | EntryType::GNULongLink => {
                if bytes > MAX_HEADER_BYTES {
                    return Err(malformed("a header is too long"));
                }
            }
            _ => return Err(not_plain()),
        }
        if matches!(kind, EntryType::Regular | EntryType::Continuous) {
            survey.files += 1;
        }
        // Decompression takes time, so it checks for cancellation between blocks.
        drain(&mut entry, stop)?;
    }
    Ok(())
}

pub(super) fn unpack(file: &Path, writer: &mut Writer<'_>) -> Result<(), PredictError> {
    let mut tar = open(file)?;
    for entry in tar.entries().map_err(malformed)? {
        let mut entry = entry.map_err(malformed)?;
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(malformed)?;
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => writer.file(&name, &mut entry)?,
            EntryType::Directory => writer.folder(&name)?,
            // Attributes for all following entries; a model does not need them.
            EntryType::XGlobalHeader => {
                entry_path(&name)?;
            }
            _ => return Err(not_plain()),
        }
    }
    Ok(())
}

fn open(file: &Path) -> Result<Tarball, PredictError> {
    let file = BufReader::new(File::open(file).map_err(failure::of_disk)?);
    Ok(Archive::new(BufReader::new(MultiGzDecoder::new(file))))
}

fn drain(entry: &mut impl Read, stop: &Cancel) -> Result<(), PredictError> {
    let mut block = [0; 16 << 10];
    loop {
        stop.check()?;
        match entry.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(malformed(error)),
        }
    }
}
