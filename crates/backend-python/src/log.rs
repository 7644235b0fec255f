//! The log of a Python model: records of `logging`, and the lines of its standard output and error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::io::AsyncRead;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use volley_types::{ModelName, ModelVersion};

/// Longest line in bytes; the rest of a longer one is dropped, and the log has a note of it.
const MAX_LINE: usize = 8 << 10;
/// Lines per second that are logged; further ones are counted.
const MAX_PER_SECOND: u32 = 1_000;

/// Writes what a model prints and logs to the worker's log, with the model's name.
#[derive(Clone)]
pub(crate) struct ModelLog(Arc<Inner>);

struct Inner {
    model: ModelName,
    version: ModelVersion,
    window: Mutex<Window>,
}

/// Lines of the current second.
struct Window {
    since: Instant,
    lines: u32,
}

/// Whether a line is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admitted {
    Yes,
    /// After so many lines that were not.
    After(u32),
    No,
}

impl Window {
    fn admit(&mut self, now: Instant) -> Admitted {
        if Duration::from_secs(1) <= now.duration_since(self.since) {
            let dropped = self.lines.saturating_sub(MAX_PER_SECOND);
            *self = Self {
                since: now,
                lines: 1,
            };
            return match dropped {
                0 => Admitted::Yes,
                dropped => Admitted::After(dropped),
            };
        }
        self.lines = self.lines.saturating_add(1);
        match self.lines <= MAX_PER_SECOND {
            true => Admitted::Yes,
            false => Admitted::No,
        }
    }
}

impl ModelLog {
    pub(crate) fn new(model: ModelName, version: ModelVersion) -> Self {
        let window = Mutex::new(Window {
            since: Instant::now(),
            lines: 0,
        });
        Self(Arc::new(Inner {
            model,
            version,
            window,
        }))
    }

    /// Logs a record of Python's `logging`.
    pub(crate) fn record(&self, level: &str, message: &str) {
        let (model, version) = (&self.0.model, &self.0.version);
        if !self.admit() {
            return;
        }
        match level {
            "debug" => tracing::debug!(%model, %version, text = message, "model log"),
            "warning" => tracing::warn!(%model, %version, text = message, "model log"),
            "error" => tracing::error!(%model, %version, text = message, "model log"),
            _ => tracing::info!(%model, %version, text = message, "model log"),
        }
    }

    fn admit(&self) -> bool {
        let admitted = self.0.window.lock().admit(Instant::now());
        if let Admitted::After(dropped) = admitted {
            let (model, version) = (&self.0.model, &self.0.version);
            tracing::warn!(%model, %version, dropped, "model printed too many lines");
        }
        admitted != Admitted::No
    }

    /// Logs each line of `output` until its end, in a task of its own.
    pub(crate) fn copy(&self, name: &'static str, output: impl AsyncRead + Send + Unpin + 'static) {
        let log = self.clone();
        tokio::spawn(async move {
            let mut lines = FramedRead::new(output, LinesCodec::new_with_max_length(MAX_LINE));
            // The codec ends the stream once after a line that is too long, and goes on then.
            let mut is_cut = false;
            loop {
                match lines.next().await {
                    Some(Ok(line)) => log.line(name, &line),
                    Some(Err(LinesCodecError::MaxLineLengthExceeded)) => {
                        log.line(name, "(a line of more than 8 KiB is left out)");
                        is_cut = true;
                        continue;
                    }
                    None if is_cut => {}
                    Some(Err(LinesCodecError::Io(_))) | None => return,
                }
                is_cut = false;
            }
        });
    }

    fn line(&self, name: &'static str, line: &str) {
        let (model, version) = (&self.0.model, &self.0.version);
        if self.admit() {
            tracing::info!(%model, %version, output = name, text = line, "model output");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_of_a_second_are_counted() {
        let start = Instant::now();
        let mut window = Window {
            since: start,
            lines: 0,
        };
        for _ in 0..MAX_PER_SECOND {
            assert_eq!(window.admit(start), Admitted::Yes);
        }
        for _ in 0..7 {
            assert_eq!(window.admit(start), Admitted::No);
        }
        let later = start + Duration::from_secs(1);
        assert_eq!(window.admit(later), Admitted::After(7));
        assert_eq!(window.admit(later), Admitted::Yes);
    }
}
