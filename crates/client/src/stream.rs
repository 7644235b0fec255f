//! A streamed generation, read from server-sent events.

use std::pin::Pin;
use std::task::{Context, Poll};

use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures::{Stream, StreamExt};
use reqwest::Response;
use serde::Deserialize;

use crate::ClientError;

type Events = Pin<Box<dyn Stream<Item = Result<Event, EventStreamError<reqwest::Error>>> + Send>>;

/// The texts of a generation, in order. The stream ends with `None` only after the terminal event.
/// A broken connection or an error event yields an error. Dropping the stream cancels the
/// generation.
pub struct TextStream {
    events: Events,
    ended: bool,
}

impl std::fmt::Debug for TextStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextStream")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Data {
    Results {
        inference_results: Vec<Outputs>,
    },
    Failed {
        error: String,
        #[serde(default)]
        status: u16,
        #[serde(default)]
        code: String,
    },
}

#[derive(Deserialize)]
struct Outputs {
    output: Vec<Output>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    data_as_map: Chunk,
}

#[derive(Deserialize)]
struct Chunk {
    content: String,
    is_last: bool,
}

impl TextStream {
    pub(crate) fn new(response: Response) -> Self {
        Self {
            events: Box::pin(response.bytes_stream().eventsource()),
            ended: false,
        }
    }

    fn read(&mut self, event: &Event) -> Result<String, ClientError> {
        match serde_json::from_str(&event.data) {
            Ok(Data::Results { inference_results }) => {
                let mut text = String::new();
                for output in inference_results
                    .into_iter()
                    .flat_map(|outputs| outputs.output)
                {
                    text.push_str(&output.data_as_map.content);
                    self.ended |= output.data_as_map.is_last;
                }
                Ok(text)
            }
            Ok(Data::Failed {
                error,
                status,
                code,
            }) => Err(ClientError::Refused {
                status,
                code,
                reason: error,
                retry_after: None,
            }),
            Err(_) => Err(ClientError::Incomplete),
        }
    }
}

impl Stream for TextStream {
    type Item = Result<String, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            let result = match std::task::ready!(self.events.poll_next_unpin(cx)) {
                Some(Ok(event)) => self.read(&event),
                Some(Err(EventStreamError::Transport(error))) => Err(ClientError::Broken(error)),
                Some(Err(_)) | None => Err(ClientError::Incomplete),
            };
            match result {
                Ok(text) if text.is_empty() => {}
                Ok(text) => return Poll::Ready(Some(Ok(text))),
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}
