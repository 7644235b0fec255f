//! A function's call: a value for each row of arguments, batch by batch, in order.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::{Stream, StreamExt, stream};
use volley_proto::predict_command::PredictHead;
use volley_types::{Input, Predict, PredictError, RequestId};

use super::{Exchange, within_exchange};
use crate::egress::{Encoder, RESPONSE_MESSAGE_BYTES};
use crate::server::incoming::ExchangeInput;
use crate::udf::caller::Engine;
use crate::udf::function::{Function, FunctionCall};
use crate::udf::gather::Gather;

/// Maximum number of concurrent pieces of one call.
const PIECES_AT_ONCE: usize = 4;

impl Exchange {
    /// Sends the result's schema immediately. `schema` is the request's schema, if it has been read
    /// already. DuckDB reads exactly one message for each message that it sends; other clients read
    /// as many rows as they send.
    pub(super) async fn answer_function(
        &self,
        head: PredictHead,
        function: Function,
        mut incoming: ExchangeInput,
        schema: Option<SchemaRef>,
        engine: Engine,
    ) -> Result<(), PredictError> {
        let mut encoder = Encoder::new(RESPONSE_MESSAGE_BYTES);
        self.send(encoder.schema(&function.result)).await?;
        let schema = match schema {
            Some(schema) => schema,
            None => match incoming.schema().await? {
                Some(schema) => schema,
                None => return Ok(()),
            },
        };
        function.check(&schema)?;

        let work = Work {
            predict: self.predict.clone(),
            head,
            function: Arc::new(function),
        };
        let mut results = Box::pin(work.results(incoming.batches(), engine));
        let mut messages = Vec::new();
        while let Some(result) = results.next().await {
            let result = result?;
            match engine {
                Engine::ArrowUdf | Engine::Databend if result.num_rows() > 0 => {
                    encoder.batch(&result, &mut messages)?;
                }
                Engine::ArrowUdf | Engine::Databend | Engine::Airport => {
                    messages.push(encoder.whole(&result)?);
                }
            }
            for message in messages.drain(..) {
                self.send(message).await?;
            }
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Work {
    predict: Arc<dyn Predict>,
    head: PredictHead,
    function: Arc<Function>,
}

impl Work {
    /// One result for each piece, in order. Dropping the stream cancels all of them.
    fn results(
        self,
        batches: impl Stream<Item = Result<RecordBatch, PredictError>> + Send,
        engine: Engine,
    ) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
        let rows_at_once = match engine {
            Engine::ArrowUdf | Engine::Databend => self.function.rows_at_once,
            Engine::Airport => usize::MAX,
        };
        batches
            .map(move |batch| match batch {
                Ok(batch) => pieces(&batch, rows_at_once).into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            })
            .flat_map(stream::iter)
            .map(move |piece| {
                let work = self.clone();
                async move { work.result(piece?).await }
            })
            .buffered(PIECES_AT_ONCE)
    }

    /// The results of one piece of a batch.
    async fn result(self, args: RecordBatch) -> Result<RecordBatch, PredictError> {
        if let Some(result) = self.function.built_in_result(&args)? {
            return Ok(result);
        }
        let asked = self.function.ask(&args)?;
        let values = self.values(&asked).await?;
        self.function.result(&values, &asked)
    }

    async fn values(&self, asked: &FunctionCall) -> Result<arrow_array::ArrayRef, PredictError> {
        let kind = self.function.result_type();
        let (Some(answer), Some(input)) = (self.function.answer(), &asked.input) else {
            return Ok(arrow_array::new_empty_array(kind));
        };
        let mut gather = Gather::new(answer, input.num_rows());
        let head = PredictHead {
            request_id: RequestId::random(),
            ..self.head.clone()
        };
        let request = within_exchange(head, Input::Batch(input.clone()));
        let mut chunks = self.predict.predict(request).await?;
        while let Some(batch) = chunks.next().await {
            gather.add(batch?)?;
        }
        gather.finish(kind)
    }
}

/// Splits `batch` into pieces of at most `rows`; a batch without rows is one piece.
fn pieces(batch: &RecordBatch, rows: usize) -> Vec<RecordBatch> {
    if batch.num_rows() <= rows {
        return vec![batch.clone()];
    }
    let starts = (0..batch.num_rows()).step_by(rows);
    let piece = |start: usize| batch.slice(start, rows.min(batch.num_rows() - start));
    starts.map(piece).collect()
}
