//! Lines about each request and its response, for `volley dev`.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow_array::RecordBatch;
use arrow_cast::display::array_value_to_string;
use async_trait::async_trait;
use futures::StreamExt;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress, WrappedBackend};
use volley_types::registry::{Assignment, BackendName};
use volley_types::{
    ChunkStream, GenerationRow, Input, ModelName, ModelRef, Predict, PredictError, PredictRequest,
    Signature,
};

use crate::terminal::Terminal;

/// Characters of a value.
const LONGEST_VALUE: usize = 60;
/// Characters of a line.
const LONGEST_LINE: usize = 200;

/// Wraps loaders so that the requests of their replicas are printed.
pub(crate) fn loaders(loaders: Vec<Arc<dyn BackendLoader>>) -> Vec<Arc<dyn BackendLoader>> {
    let printed = loaders.into_iter();
    let printed = printed.map(|inner| Arc::new(PrintingLoader(inner)) as Arc<dyn BackendLoader>);
    printed.collect()
}

struct PrintingLoader(Arc<dyn BackendLoader>);

#[async_trait]
impl BackendLoader for PrintingLoader {
    fn name(&self) -> BackendName {
        self.0.name()
    }

    async fn prepare(
        &self,
        assignment: &Assignment,
        progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        self.0.prepare(assignment, progress).await
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        self.0.estimate(assignment).await
    }

    fn stops_when_dropped(&self, assignment: &Assignment) -> bool {
        self.0.stops_when_dropped(assignment)
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let backend = self.0.load(assignment).await?;
        let printed = Arc::new(RequestPrinter {
            inner: backend.clone(),
            requests: AtomicU64::new(1),
        });
        Ok(Arc::new(WrappedBackend::through(backend, printed)))
    }
}

struct RequestPrinter {
    inner: Arc<dyn Predict>,
    requests: AtomicU64,
}

#[async_trait]
impl Predict for RequestPrinter {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut asked = match request.input.try_clone().map(|input| input.into_inner()) {
            Some(Input::Batch(rows)) => row(&rows),
            Some(Input::Stream { .. }) | None => "a stream of rows".to_owned(),
        };
        for (name, value) in request.parameters.iter() {
            let value = shortened(&format!("{value:?}"), LONGEST_VALUE);
            // Writing to a string does not fail.
            let _ = write!(asked, " {name}={value}");
        }
        print(&format!("-> {number} {asked}"));
        let mut response = Response::new(number);
        match self.inner.predict(request).await {
            Ok(stream) => Ok(stream.map_batches(|batches| {
                batches
                    .map(Some)
                    .chain(futures::stream::once(async { None }))
                    .filter_map(move |item| {
                        response.take(item.as_ref());
                        std::future::ready(item)
                    })
            })),
            Err(error) => {
                response.take(Some(&Err(error.clone())));
                Err(error)
            }
        }
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.inner.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        self.inner.models().await
    }
}

/// A response while it is delivered. Printed at its end, or when its reader leaves.
struct Response {
    number: u64,
    since: Instant,
    text: String,
    rows: usize,
    is_printed: bool,
}

impl Response {
    fn new(number: u64) -> Self {
        Self {
            number,
            since: Instant::now(),
            text: String::new(),
            rows: 0,
            is_printed: false,
        }
    }

    /// Takes the next batch; `None` is the end.
    fn take(&mut self, item: Option<&Result<RecordBatch, PredictError>>) {
        match item {
            Some(Ok(batch)) => self.add(batch),
            Some(Err(error)) => self.print(&format!("error: {}", error.message)),
            None => self.print(""),
        }
    }

    fn add(&mut self, batch: &RecordBatch) {
        let generated = GenerationRow::rows(batch).map(|rows| {
            let texts = rows.filter_map(|row| row.text());
            texts.collect::<String>()
        });
        match generated {
            Ok(_) if LONGEST_LINE < self.text.len() => {}
            Ok(text) => self.text.push_str(&text),
            Err(_) if self.rows == 0 => self.text = row(batch),
            Err(_) => {}
        }
        self.rows += batch.num_rows();
    }

    fn print(&mut self, end: &str) {
        if std::mem::replace(&mut self.is_printed, true) {
            return;
        }
        let text = match self.text.is_empty() {
            true => String::new(),
            false => format!(" {}", shortened(&self.text, LONGEST_LINE)),
        };
        let end = match end.is_empty() {
            true => String::new(),
            false => format!(" {end}"),
        };
        let milliseconds = self.since.elapsed().as_secs_f64() * 1_000.0;
        print(&format!(
            "<- {} in {milliseconds:.1} ms{text}{end}",
            self.number
        ));
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.print("(the caller left)");
    }
}

/// The first row of a batch, by column, and the number of the others.
fn row(batch: &RecordBatch) -> String {
    let schema = batch.schema();
    let mut text = String::new();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if column.is_empty() || column.is_null(0) {
            continue;
        }
        let value = array_value_to_string(column, 0).unwrap_or_else(|_| "?".to_owned());
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{space}{}={}",
            field.name(),
            shortened(&value, LONGEST_VALUE)
        );
    }
    match batch.num_rows() {
        1 => text,
        rows => format!("{text} ({rows} rows)"),
    }
}

/// A text on one line, cut after `most` characters.
fn shortened(text: &str, most: usize) -> String {
    let line: String = text
        .chars()
        .take(most)
        .map(|one| if one.is_control() { ' ' } else { one })
        .collect();
    match text.chars().nth(most) {
        Some(_) => format!("{line}…"),
        None => line,
    }
}

fn print(line: &str) {
    // Nobody reads standard output any more.
    let _ = Terminal::stdout().line(line);
}

#[cfg(test)]
mod tests;
