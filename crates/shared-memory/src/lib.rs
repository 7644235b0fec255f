//! System shared memory: a client on the same machine passes tensors in a POSIX shared memory
//! object.
//!
//! Objects are accessed as files, with reads and writes instead of mappings. If the owner shrinks
//! an object meanwhile, the access fails with an error instead of `SIGBUS`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use volley_types::{ErrorCode, PredictError};

/// The parameter with the name of a shared memory region.
pub const REGION: &str = "shared_memory_region";
/// The parameter with the size of a tensor, in bytes.
pub const SIZE: &str = "shared_memory_byte_size";
/// The parameter with the offset of a tensor in the region, in bytes.
pub const OFFSET: &str = "shared_memory_offset";

/// The directory of POSIX shared memory objects on Linux.
const DIRECTORY: &str = "/dev/shm";
/// Maximum number of regions of a node.
const MAX_REGIONS: usize = 1_024;
/// Maximum length of a name of a region or an object, in bytes.
const MAX_NAME: usize = 255;

/// A registered region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Name of the object, as the client sent it.
    pub key: String,
    /// Start of the region in the object, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub byte_size: u64,
}

/// The location of a tensor in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Name of the region.
    pub region: String,
    /// Start in the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// The shared memory regions of this node.
#[derive(Debug)]
pub struct SharedMemory {
    /// Whether regions may be registered here.
    allowed: bool,
    /// Maximum size of all inputs of one request, and of one output, in bytes.
    most: usize,
    regions: Mutex<BTreeMap<String, (Region, Arc<File>)>>,
}

/// Reads the inputs of one request, which are bounded together.
#[derive(Debug)]
pub struct InputReader<'m> {
    memory: &'m SharedMemory,
    /// Size of all inputs so far, in bytes.
    size: u64,
}

impl InputReader<'_> {
    /// Reads the bytes of an input.
    ///
    /// # Errors
    /// `NotFound` for an unknown region; `InvalidInput` when the slice is not inside the region or
    /// the object has shrunk; `TooLarge` when all inputs together exceed the size limit.
    pub fn read(&mut self, slice: &Slice) -> Result<Bytes, PredictError> {
        let place = self.memory.find(slice)?;
        let size = self.size.saturating_add(slice.size);
        let most = self.memory.most;
        if u64::try_from(most).is_ok_and(|most| most < size) {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "the inputs in shared memory have {size} bytes together, over the limit of \
                     {most} bytes"
                ),
            ));
        }
        self.size = size;
        read(place, slice)
    }
}

impl SharedMemory {
    /// Creates an empty table. Clients may only register regions if `allowed`, and only on Linux.
    /// `most` is the maximum size of all inputs of one request, and of one output, in bytes.
    pub fn new(allowed: bool, most: usize) -> Self {
        Self {
            allowed: allowed && cfg!(target_os = "linux"),
            most,
            regions: Mutex::default(),
        }
    }

    /// Returns the region of that name, or all regions if the name is empty.
    ///
    /// # Errors
    /// `NotFound` for an unknown name.
    pub fn regions(&self, name: &str) -> Result<Vec<(String, Region)>, PredictError> {
        let regions = self.regions.lock();
        if !name.is_empty() {
            let (region, _) = regions.get(name).ok_or_else(|| unknown(name))?;
            return Ok(vec![(name.to_owned(), region.clone())]);
        }
        let told = regions.iter();
        Ok(told
            .map(|(name, (region, _))| (name.clone(), region.clone()))
            .collect())
    }

    /// Opens the object of a region and registers it.
    ///
    /// # Errors
    /// - `Unimplemented` when shared memory is off at this node
    /// - `Conflict` when the name is already registered
    /// - `Overloaded` when the node has 1,024 regions
    /// - `InvalidInput` when the name or the key is invalid, or the object is shorter than the
    ///   region
    pub fn register(&self, name: String, region: Region) -> Result<(), PredictError> {
        if !self.allowed {
            return Err(PredictError::new(
                ErrorCode::Unimplemented,
                "system shared memory is off at this node; set 'listen.shared_memory' to true, or \
                 send tensors in the request",
            ));
        }
        if name.is_empty() || MAX_NAME < name.len() || name.chars().any(char::is_control) {
            return Err(PredictError::invalid(
                "the name of a shared memory region must be 1 to 255 printable bytes",
            ));
        }
        let shown = printable(&name);
        let wrong =
            |what: &str| PredictError::invalid(format!("shared memory region '{shown}': {what}"));
        let file = open(&region.key).map_err(wrong)?;
        let length = file.metadata().map_err(|_| wrong("cannot be read"))?.len();
        let end = region.offset.checked_add(region.byte_size);
        if region.byte_size == 0 || end.is_none_or(|end| length < end) {
            return Err(wrong(&format!(
                "its offset and byte_size exceed the object, which has {length} bytes"
            )));
        }
        let mut regions = self.regions.lock();
        if regions.contains_key(&name) {
            let message = format!("shared memory region '{shown}' is already registered");
            return Err(PredictError::new(ErrorCode::Conflict, message));
        }
        if MAX_REGIONS <= regions.len() {
            let message = format!("this node already has {MAX_REGIONS} shared memory regions");
            return Err(PredictError::new(ErrorCode::Overloaded, message));
        }
        regions.insert(name, (region, Arc::new(file)));
        Ok(())
    }

    /// Removes the region of that name, or all regions if the name is empty. An unknown name is not
    /// an error.
    pub fn unregister(&self, name: &str) {
        let mut regions = self.regions.lock();
        if name.is_empty() {
            regions.clear();
        } else {
            regions.remove(name);
        }
    }

    fn find(&self, slice: &Slice) -> Result<(Arc<File>, u64), PredictError> {
        let regions = self.regions.lock();
        let (region, file) = regions
            .get(&slice.region)
            .ok_or_else(|| unknown(&slice.region))?;
        let end = slice.offset.checked_add(slice.size);
        if end.is_none_or(|end| region.byte_size < end) {
            return Err(PredictError::invalid(format!(
                "{} bytes at {} exceed the shared memory region '{}', which has {}",
                slice.size,
                slice.offset,
                printable(&slice.region),
                region.byte_size
            )));
        }
        if u64::try_from(self.most).is_ok_and(|most| most < slice.size) {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("a tensor in shared memory may have {} bytes", self.most),
            ));
        }
        Ok((file.clone(), region.offset + slice.offset))
    }

    /// A reader for the inputs of one request.
    pub fn reader(&self) -> InputReader<'_> {
        InputReader {
            memory: self,
            size: 0,
        }
    }

    /// Writes an output into its slice, which may be larger than the output.
    ///
    /// # Errors
    /// `NotFound` for an unknown region; `InvalidInput` when the slice is not inside the region, is
    /// too small, or the object has shrunk; `TooLarge` when the slice exceeds the size limit.
    pub fn write(&self, slice: &Slice, bytes: &[u8]) -> Result<(), PredictError> {
        let (file, at) = self.find(slice)?;
        if u64::try_from(bytes.len()).is_ok_and(|length| slice.size < length) {
            return Err(PredictError::invalid(format!(
                "an output has {} bytes, but its part of the shared memory region '{}' has {}",
                bytes.len(),
                printable(&slice.region),
                slice.size
            )));
        }
        let written = std::os::unix::fs::FileExt::write_all_at(&*file, bytes, at);
        written.map_err(|_| gone(&slice.region))
    }

    /// Moves inputs from shared memory into the binary data of a request: replaces their parameters
    /// in `body` and returns the binary data of all inputs, in order. `raw` is the binary data that
    /// the client sent.
    ///
    /// # Errors
    /// Those of [`InputReader::read`]; `InvalidInput` with the input's name when its parameters
    /// are invalid or its binary data is missing.
    pub fn fill(
        &self,
        body: &mut Map<String, Value>,
        mut raw: Bytes,
    ) -> Result<Bytes, PredictError> {
        let inputs = body.get_mut("inputs").and_then(Value::as_array_mut);
        let Some(inputs) = inputs.filter(|inputs| inputs.iter().any(is_shared)) else {
            return Ok(raw);
        };
        let (mut all, mut reader) = (BytesMut::new(), self.reader());
        for input in inputs {
            let name = printable(input["name"].as_str().unwrap_or_default());
            let wrong = |what: &str| PredictError::invalid(format!("input '{name}': {what}"));
            let parameters = input.get_mut("parameters").and_then(Value::as_object_mut);
            let Some(parameters) = parameters else {
                continue;
            };
            if let Some(slice) = slice(|name| parameters.get(name)).map_err(|what| wrong(&what))? {
                if parameters.contains_key("binary_data_size") {
                    return Err(wrong("is in shared memory and in the body; send it once"));
                }
                all.extend_from_slice(&reader.read(&slice)?);
                for name in [REGION, SIZE, OFFSET] {
                    parameters.remove(name);
                }
                parameters.insert("binary_data_size".to_owned(), json!(slice.size));
            } else if let Some(size) = parameters.get("binary_data_size").and_then(Value::as_u64) {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                if raw.len() < size {
                    return Err(wrong("has more binary data than the body"));
                }
                all.extend_from_slice(&raw.split_to(size));
            }
        }
        all.extend_from_slice(&raw);
        Ok(all.freeze())
    }
}

/// Reads a slice at its place in the object.
fn read((file, at): (Arc<File>, u64), slice: &Slice) -> Result<Bytes, PredictError> {
    let mut bytes = vec![0; usize::try_from(slice.size).unwrap_or(0)];
    let read = std::os::unix::fs::FileExt::read_exact_at(&*file, &mut bytes, at);
    read.map_err(|_| gone(&slice.region))?;
    Ok(bytes.into())
}

fn is_shared(input: &Value) -> bool {
    let parameters = input.get("parameters");
    parameters.is_some_and(|parameters| parameters.get(REGION).is_some())
}

/// Parses the slice in JSON parameters; `None` if they name no region.
///
/// # Errors
/// A description of the invalid or missing parameter.
pub fn slice<'v>(given: impl Fn(&str) -> Option<&'v Value>) -> Result<Option<Slice>, String> {
    let Some(region) = given(REGION) else {
        return Ok(None);
    };
    let region = region
        .as_str()
        .ok_or_else(|| format!("parameter '{REGION}' must be a text"))?;
    let number = |name: &str| match given(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .map(Some)
            .ok_or_else(|| format!("parameter '{name}' must be a number of bytes")),
    };
    Ok(Some(Slice {
        region: region.to_owned(),
        offset: number(OFFSET)?.unwrap_or(0),
        size: number(SIZE)?.ok_or_else(|| format!("parameter '{SIZE}' is missing"))?,
    }))
}

/// Opens the object of that name. Only regular files directly in the directory of POSIX objects are
/// accepted; links are rejected.
fn open(key: &str) -> Result<File, &'static str> {
    use std::os::unix::fs::MetadataExt;
    let name = key.strip_prefix('/').unwrap_or(key);
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    if name.is_empty() || name.starts_with('.') || MAX_NAME < name.len() || !name.bytes().all(plain)
    {
        return Err("its key is not the name of a POSIX shared memory object");
    }
    let path = FilePath::new(DIRECTORY).join(name);
    let missing = |_| "this POSIX shared memory object does not exist or cannot be opened";
    let before = path.symlink_metadata().map_err(missing)?;
    if !before.file_type().is_file() {
        return Err("its key does not name a POSIX shared memory object");
    }
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(missing)?;
    // The name may be replaced by a link between the check and `open`; then the inodes differ.
    let opened = file.metadata().map_err(missing)?;
    if (opened.dev(), opened.ino()) != (before.dev(), before.ino()) {
        return Err("the POSIX shared memory object was replaced during the call");
    }
    Ok(file)
}

fn unknown(name: &str) -> PredictError {
    let name = printable(name);
    let message = format!("no shared memory region '{name}' is registered at this node");
    PredictError::new(ErrorCode::NotFound, message)
}

fn gone(name: &str) -> PredictError {
    let name = printable(name);
    let message = format!("the object of the shared memory region '{name}' has shrunk");
    PredictError::invalid(message)
}

/// The error for CUDA shared memory, which is not supported.
pub fn no_cuda() -> PredictError {
    PredictError::invalid(
        "CUDA shared memory is not supported; use system shared memory, or send tensors in the \
         request",
    )
}

/// A name for a message: without control characters, at most 64 characters.
fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
