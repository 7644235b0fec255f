//! Tests a connector on this worker before a model uses it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use async_trait::async_trait;
use futures::StreamExt;
use volley_backend::BackendLoader;
use volley_remote_http::naming::named;
use volley_types::registry::{
    Assignment, BackendName, ConnectorSpec, ModelSource, ModelVersionSpec,
};
use volley_types::signature::{PROMPT, QUERY, TEXT};
use volley_types::{
    CheckConnector, Deadline, ErrorCode, GenerationRow, Input, ModelName, ModelRef, ModelVersion,
    ParamValue, Parameters, Predict, PredictError, PredictRequest, Task,
};

use crate::RemoteLoader;
use crate::account::Account;
use crate::servers::Servers;

/// Time limit of the test.
const PATIENCE: Duration = Duration::from_secs(25);
/// The test input and its token limit.
const WORD: &str = "Hi";
const MAX_TOKENS: &str = "max_tokens";
const TOKENS: i64 = 16;

#[async_trait]
impl CheckConnector for RemoteLoader {
    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<(), PredictError> {
        let account = Account::of(connector, self.metrics.clone())?;
        let servers = Servers::new(connector, account, &self.opener, |url| self.checked(url));
        let servers = servers.map_err(|error| named(error, connector))?;
        servers.credentials().await?;
        if !test {
            return Ok(());
        }
        let model = ModelName::new("connector-check")?;
        let spec = ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::REMOTE,
            source: ModelSource::Connector(connector.id.clone()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        };
        let mut once = connector.clone();
        once.policy.max_retries = 0;
        let assignment = Assignment {
            model: model.clone(),
            spec,
            connector: Some(once),
        };
        let backend = self.load(&assignment).await?;
        let asked = ask(backend.as_ref(), model);
        let late = |_| {
            let error = PredictError::new(
                ErrorCode::DeadlineExceeded,
                "the server did not answer the test in time",
            );
            named(error, connector)
        };
        tokio::time::timeout(PATIENCE, asked).await.map_err(late)?
    }
}

/// Makes one short request.
async fn ask(backend: &dyn Predict, model: ModelName) -> Result<(), PredictError> {
    let model = ModelRef::deployed(model);
    let task = backend.signature(&model).await?.task;
    let names: &[&str] = match task {
        Task::Generate => &[PROMPT],
        Task::Rerank => &[QUERY, TEXT],
        _ => &[TEXT],
    };
    let column = |name: &&str| {
        let words: ArrayRef = Arc::new(StringArray::from(vec![WORD]));
        ((*name).to_owned(), words)
    };
    let rows = RecordBatch::try_from_iter(names.iter().map(column));
    let rows = rows.map_err(|error| PredictError::internal("no request could be made", error))?;
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.whole = true;
    request.deadline = Some(Deadline::after(Instant::now(), PATIENCE));
    if task == Task::Generate {
        let most = ParamValue::Int(TOKENS);
        request.parameters.set(MAX_TOKENS, most)?;
    }
    let mut chunks = backend.predict(request).await?;
    while let Some(batch) = chunks.next().await.transpose()? {
        if task == Task::Generate
            && let Some(error) = GenerationRow::rows(&batch)?.find_map(|row| row.failure())
        {
            return Err(error);
        }
    }
    Ok(())
}
