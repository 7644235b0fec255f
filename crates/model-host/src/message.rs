//! The two messages before the socket carries Flight: the load command and its result.
//!
//! The functions are not cancel safe: dropping a future may leave a partial message in the socket,
//! which must then be closed.

use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use volley_proto::predict_command::{error_from_wire, error_to_wire};
use volley_proto::registry_records::{assignment_from_wire, assignment_to_wire};
use volley_proto::{predict, registry};
use volley_types::PredictError;
use volley_types::registry::Assignment;

/// Maximum size of a message in bytes.
const MAX_BYTES: usize = 16 << 20;

/// The load command to a child.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChildCommand {
    pub(crate) settings: WorkerSettings,
    pub(crate) assignment: Assignment,
}

/// The settings of a worker for all of its models, and the number of the load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerSettings {
    /// Maximum bytes of private memory of the process.
    pub(crate) memory_limit: Option<u64>,
    /// Sequence number of the load on this worker, from 0. Models that are distributed in turn use
    /// it.
    pub(crate) turn: u64,
    /// Configuration of the loader. This crate does not interpret it.
    pub(crate) loader: serde_json::Value,
}

/// Report of a process about the model that it has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Maximum number of concurrent streams.
    pub capacity: usize,
    /// Memory of the model in bytes, as far as known.
    pub memory_bytes: u64,
}

#[derive(Serialize, Deserialize)]
enum ChildAnswer {
    Loaded(LoadReport),
    /// An encoded `ErrorDetail`, the message, and the cause chain for the log.
    Failed(Vec<u8>, String, String),
}

impl ChildCommand {
    pub(crate) async fn send(&self, to: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        let assignment = assignment_to_wire(&self.assignment).encode_to_vec();
        write(to, &serde_json::to_vec(&self.settings)?).await?;
        write(to, &assignment).await
    }

    pub(crate) async fn receive(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Self> {
        let settings = serde_json::from_slice(&read(from).await?)?;
        let assignment = registry::v1::Assignment::decode(&*read(from).await?)?;
        let assignment = assignment_from_wire(assignment).map_err(std::io::Error::other)?;
        Ok(Self {
            settings,
            assignment,
        })
    }
}

/// Sends the result of a load.
pub(crate) async fn answer(
    outcome: &Result<LoadReport, PredictError>,
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    let answer = match outcome {
        Ok(told) => ChildAnswer::Loaded(*told),
        Err(error) => ChildAnswer::Failed(
            error_to_wire(error, None).encode_to_vec(),
            error.message.clone(),
            error.chain(),
        ),
    };
    write(to, &serde_json::to_vec(&answer)?).await
}

/// Receives the result of a load.
pub(crate) async fn outcome(
    from: &mut (impl AsyncRead + Unpin),
) -> std::io::Result<Result<LoadReport, PredictError>> {
    Ok(match serde_json::from_slice(&read(from).await?)? {
        ChildAnswer::Loaded(told) => Ok(told),
        ChildAnswer::Failed(detail, message, chain) => {
            let detail = predict::v1::ErrorDetail::decode(&*detail)?;
            let error = error_from_wire(&detail, message);
            let error = error.ok_or_else(|| std::io::Error::other("an unknown code"))?;
            Err(error.with_source(chain))
        }
    })
}

async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
    to.write_u32(length).await?;
    to.write_all(bytes).await?;
    to.flush().await
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await? as usize;
    if MAX_BYTES < length {
        return Err(std::io::Error::other("a message is too long"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use volley_types::registry::{BackendName, ModelSource, ModelVersionSpec};
    use volley_types::{ErrorCode, ErrorOrigin, ModelName, ModelVersion, ParamValue};

    use super::*;

    #[tokio::test]
    async fn orders_and_outcomes_arrive_as_they_were_sent() {
        let task = ("task".to_owned(), ParamValue::Text("embed".to_owned()));
        let order = ChildCommand {
            settings: WorkerSettings {
                memory_limit: Some(7),
                turn: 3,
                loader: serde_json::json!({"slots": 4}),
            },
            assignment: Assignment {
                model: ModelName::new("m").unwrap(),
                spec: ModelVersionSpec {
                    version: ModelVersion(2),
                    backend: BackendName::ONNX,
                    source: ModelSource::Path("/models/m".to_owned()),
                    parameters: [task].into_iter().collect(),
                    description: String::new(),
                    created_ms: 5,
                },
                connector: None,
            },
        };
        let (mut one, mut other) = tokio::io::duplex(64);
        let sent = async { order.send(&mut one).await.unwrap() };
        let (received, ()) = tokio::join!(ChildCommand::receive(&mut other), sent);
        assert_eq!(received.unwrap(), order);

        let told = LoadReport {
            capacity: 4,
            memory_bytes: 1 << 40,
        };
        let refused = PredictError::invalid("no model")
            .with_origin(ErrorOrigin::Model)
            .with_source("for the log");
        for sent in [Ok(told), Err(refused)] {
            let give = async { answer(&sent, &mut one).await.unwrap() };
            let (received, ()) = tokio::join!(outcome(&mut other), give);
            match (received.unwrap(), sent) {
                (Ok(received), Ok(sent)) => assert_eq!(received, sent),
                (Err(received), Err(sent)) => {
                    assert_eq!(received.code, ErrorCode::InvalidInput);
                    assert_eq!(received.to_string(), sent.to_string());
                    assert_eq!(received.origin, ErrorOrigin::Model);
                    assert!(received.chain().contains("for the log"));
                }
                _ => panic!("an outcome became another"),
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_a_broken_child_says_is_an_error_or_an_outcome(
            length in any::<Option<u32>>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let length = length.unwrap_or(bytes.len() as u32).to_be_bytes();
            let said = [&length, bytes.as_slice()].concat();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _ = runtime.block_on(outcome(&mut &*said));
            let _ = runtime.block_on(ChildCommand::receive(&mut &*said));
        }
    }
}
