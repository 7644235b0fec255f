//! Frames between a worker and the process of a model.
//!
//! A frame is a list of messages as JSON and one body, which has the buffers of all of them:
//! `u32` length of the JSON, `u32` 0, `u64` length of the body, all little endian, then the JSON,
//! then the body. Whatever is ready travels in one frame.

use arrow_buffer::{Buffer, MutableBuffer};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::column::{ALIGN, Body, Column, Declared};

/// Longest JSON of a frame, in bytes.
const MAX_JSON: usize = 16 << 20;
/// Longest body of a frame, in bytes.
const MAX_BODY: usize = 1 << 30;
const HEADER: usize = 16;

/// A message to the process of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Command {
    /// Loads the model; the first message.
    Load {
        directory: String,
        interface: String,
        model: String,
        version: u64,
        parameters: serde_json::Map<String, serde_json::Value>,
        /// Of a model of a Triton repository.
        triton: Option<TritonSource>,
    },
    /// Starts a call.
    Call {
        id: u64,
        rows: usize,
        columns: Vec<Column>,
        parameters: serde_json::Map<String, serde_json::Value>,
        request_id: String,
        /// Time that is left, in milliseconds.
        deadline_ms: Option<u64>,
        /// W3C `traceparent`.
        trace: Option<String>,
        /// Rows of the answer that may be sent before more credit comes.
        credit: u64,
        /// Whether the caller takes the answer as a whole.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        whole: bool,
    },
    /// Lets a call send so many more rows.
    Credit { id: u64, rows: u64 },
    /// Ends a call whose answer nobody reads.
    Cancel { id: u64 },
}

/// A model of a Triton repository.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TritonSource {
    /// `config.pbtxt` as JSON.
    pub(crate) config: serde_json::Map<String, serde_json::Value>,
    /// Name of the folder of the version.
    pub(crate) version: String,
    /// Number of the process among those of its replica, from 0.
    pub(crate) instance: usize,
}

/// A message from the process of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The model is loaded.
    Loaded(Box<Interface>),
    /// The model cannot be loaded; the process ends.
    Failed { message: String },
    /// Part of an answer; whole events of a model that streams events.
    Rows {
        id: u64,
        rows: usize,
        columns: Vec<Column>,
        /// The rows of each event; one event if missing.
        #[serde(default)]
        events: Option<Vec<usize>>,
        /// The credit that the part took, if that is not one for each row.
        #[serde(default)]
        credit: Option<u64>,
    },
    /// The end of an answer.
    End { id: u64 },
    /// The error that ends an answer.
    Error {
        id: u64,
        code: String,
        message: String,
    },
    /// A record of Python's `logging`.
    Log {
        level: String,
        message: String,
        #[serde(default)]
        id: Option<u64>,
    },
}

/// Description of a loaded model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Interface {
    /// Name of the programming interface: `plain`, `inferless`, …
    pub(crate) interface: String,
    pub(crate) task: PythonTask,
    #[serde(default)]
    pub(crate) inputs: Vec<Declared>,
    #[serde(default)]
    pub(crate) outputs: Vec<Declared>,
    /// Names of the parameters that a request may have.
    #[serde(default)]
    pub(crate) parameters: Vec<String>,
    /// Whether a request may have any parameter.
    #[serde(default)]
    pub(crate) any_parameter: bool,
    /// Calls that the process runs at once.
    pub(crate) concurrency: usize,
    /// Most rows of a call; requests share calls up to this.
    #[serde(default)]
    pub(crate) max_rows: Option<usize>,
    /// How long a request waits for others that share its call.
    #[serde(default)]
    pub(crate) batch_window_seconds: Option<f64>,
    /// Length of the vectors of an embedding model.
    #[serde(default)]
    pub(crate) dimensions: Option<usize>,
    #[serde(default)]
    pub(crate) description: String,
    /// Configuration for clients, in Triton's format.
    #[serde(default)]
    pub(crate) config: Option<serde_json::Value>,
    /// The route that the model declares, such as `/generate-stream`.
    #[serde(default)]
    pub(crate) route: Option<String>,
}

/// Task of a Python model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PythonTask {
    Generate,
    Embed,
    Tensors,
    Events,
}

/// Messages with their buffers.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) events: Vec<Event>,
    /// Aligned for every type of values.
    pub(crate) body: Buffer,
}

/// Writes one frame.
///
/// # Errors
/// When the socket is closed, or the frame is too long.
pub(crate) async fn write(
    to: &mut (impl AsyncWrite + Unpin),
    commands: &[Command],
    body: &Body,
) -> std::io::Result<()> {
    let json = serde_json::to_vec(commands)?;
    let length = u32::try_from(json.len()).map_err(std::io::Error::other)?;
    let mut head = Vec::with_capacity(HEADER + json.len());
    head.extend_from_slice(&length.to_le_bytes());
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&(body.len() as u64).to_le_bytes());
    head.extend_from_slice(&json);
    to.write_all(&head).await?;
    for (buffer, gap) in body.parts() {
        to.write_all(buffer).await?;
        to.write_all(&[0; ALIGN][..gap]).await?;
    }
    to.flush().await
}

/// Reads one frame; `None` at the end of the socket.
///
/// # Cancel safety
/// Not cancel safe: bytes that were read are lost.
///
/// # Errors
/// When the frame is malformed or too long, or the socket breaks inside it.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<Frame>> {
    let mut header = [0; HEADER];
    match from.read_exact(&mut header).await {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let [a, b, c, d, _, _, _, _, rest @ ..] = header;
    let json = u32::from_le_bytes([a, b, c, d]) as usize;
    let body = usize::try_from(u64::from_le_bytes(rest)).unwrap_or(usize::MAX);
    if MAX_JSON < json || MAX_BODY < body {
        return Err(std::io::Error::other(
            "a frame of the model's process is too long",
        ));
    }
    let mut text = vec![0; json];
    from.read_exact(&mut text).await?;
    let mut buffers = MutableBuffer::from_len_zeroed(body);
    from.read_exact(buffers.as_slice_mut()).await?;
    let events = serde_json::from_slice(&text)?;
    Ok(Some(Frame {
        events,
        body: buffers.into(),
    }))
}

#[cfg(test)]
mod tests;
