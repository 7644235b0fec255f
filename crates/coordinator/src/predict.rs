//! One prediction through the cluster: admit → resolve → route → call → first chunk → stream.
//!
//! [`Predict::predict`] on [`Coordinator`] returns once the first two steps have passed; the
//! other four run inside the stream that it returns. Until the first chunk has come, nothing
//! was promised to the caller, and another replica may be tried; after it, errors end the
//! stream. All that the request holds (its permit, its place in the load of a replica, the
//! exchange with the worker) lives in the stream and goes when it is dropped.

use std::collections::BTreeMap;
use std::time::Instant;

use async_stream::try_stream;
use async_trait::async_trait;
use futures::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use volley_telemetry::{StreamRecord, recorded};
use volley_types::chunk::ChunkStream;
use volley_types::registry::BackendKind;
use volley_types::{
    ModelName, ModelRef, ModelVersion, Predict, PredictError, PredictRequest, Signature,
};

use crate::tries::Target;
use crate::{Coordinator, guard, refusal};

#[async_trait]
impl Predict for Coordinator {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.wake(&request.model).await?;
        let (permit, target) = self.accept(&request)?;
        request.model.version = Some(target.version);
        let record = StreamRecord::begin(&self.0.metrics, &request.model.name, Instant::now());
        let (deadline, schema, task) = (
            request.deadline,
            target.signature.output.clone(),
            target.signature.task,
        );

        let coordinator = self.clone();
        let batches = try_stream! {
            let mut request = Some(request);
            let mut tries = request
                .as_ref()
                .map(|request| coordinator.tries(&target, request))
                .ok_or_else(refusal::spent)?;
            let mut answer = loop {
                // 3. Route: the next replica that was not tried yet.
                let replica = tries.route()?;
                // 4. Call it, keeping a copy of the request where there can be one.
                let attempt = request.take().ok_or_else(refusal::spent)?;
                request = attempt.try_clone();
                match tries.call(replica, attempt).await {
                    // 5. The first chunk, or the end of an empty answer: this replica it is.
                    Ok(answer) => break answer,
                    // Nothing was sent on yet: another replica may be tried.
                    Err(error) => tries.retry(error, request.is_some())?,
                }
            };
            // 6. Stream.
            if let Some(first) = answer.first.take() {
                yield first;
                let mut rest = std::pin::pin!(answer.rest());
                while let Some(batch) = rest.next().await {
                    yield batch?;
                }
            }
        };
        let batches = guard::deadline(deadline, batches);
        let batches = guard::terminated(task, batches);
        let batches = recorded(record, batches);
        Ok(ChunkStream::new(schema, batches).holding(permit))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.wake(model).await?;
        self.resolve(model).map(|target| target.signature)
    }

    async fn models(&self) -> Vec<ModelName> {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployed = registry
            .models
            .values()
            .filter(|model| model.deployment.is_some());
        deployed.map(|model| model.name.clone()).collect()
    }
}

impl Coordinator {
    fn accept(
        &self,
        request: &PredictRequest,
    ) -> Result<(OwnedSemaphorePermit, Target), PredictError> {
        let accepted = (|| {
            // 1. Admit: a free place, or refuse at once.
            let permit = self.admit()?;
            // 2. Resolve: which version, and whether it takes such columns.
            let target = self.resolve(&request.model)?;
            target.signature.check_input(&request.input.schema())?;
            Ok((permit, target))
        })();
        accepted.inspect_err(|error: &PredictError| {
            let registered = self
                .0
                .cluster
                .registry()
                .borrow()
                .models
                .contains_key(&request.model.name);
            let label = registered.then_some(&request.model.name);
            self.0.metrics.refused(label, error.code);
        })
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, PredictError> {
        if !self.accepts() {
            return Err(refusal::draining());
        }
        self.0
            .permits
            .clone()
            .try_acquire_owned()
            .map_err(|_| refusal::full(self.0.config.max_streams))
    }

    fn resolve(&self, model: &ModelRef) -> Result<Target, PredictError> {
        let registry = self.0.cluster.registry().borrow().clone();
        let entry = registry
            .models
            .get(&model.name)
            .ok_or_else(|| refusal::unknown(&model.name))?;
        let Some(deployment) = &entry.deployment else {
            return Err(refusal::not_deployed(&model.name));
        };
        let deployed = deployment.version;
        let rollout = deployment.rollout.as_ref();
        let served = |asked| asked == deployed || rollout.is_some_and(|roll| roll.from == asked);
        if model.version.is_some_and(|asked| !served(asked)) {
            return Err(refusal::other_version(model, deployed));
        }
        let live = self.0.live.read();
        let version = match model.version {
            Some(asked) => asked,
            None => {
                let ready = live.ready_versions(&model.name);
                serving(
                    &ready,
                    deployed,
                    rollout.map(|roll| roll.from),
                    fastrand::f64(),
                )
            }
        };
        let signature = live.signature(&model.name, version);
        let signature = signature.ok_or_else(|| refusal::no_replica(&model.name))?;
        Ok(Target {
            model: model.name.clone(),
            version,
            signature,
            keeps_prefixes: entry
                .versions
                .get(&version)
                .is_some_and(|spec| spec.backend != BackendKind::Remote),
        })
    }
}

/// The version for a request that asks for none. While one replaces the other, each gets its part
/// of the requests by its ready replicas; else the deployed one, and until that is loaded the
/// newest that is. `random` is between 0 and 1.
fn serving(
    ready: &BTreeMap<ModelVersion, usize>,
    deployed: ModelVersion,
    from: Option<ModelVersion>,
    random: f64,
) -> ModelVersion {
    let count = |version: ModelVersion| ready.get(&version).copied().unwrap_or(0);
    let (new, old) = (count(deployed), from.map_or(0, count));
    match (new, from) {
        (_, Some(from)) if 0 < old && new as f64 <= random * (new + old) as f64 => from,
        (0, _) => ready.keys().next_back().copied().unwrap_or(deployed),
        _ => deployed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_a_roll_serve_by_their_replicas_and_else_the_deployed_one_does() {
        let ready = |counts: &[(u32, usize)]| {
            let counts = counts
                .iter()
                .map(|(version, count)| (ModelVersion(*version), *count));
            counts.collect::<BTreeMap<_, _>>()
        };
        let (one, two) = (ModelVersion(1), ModelVersion(2));
        let rolling = ready(&[(1, 3), (2, 1)]);
        assert_eq!(serving(&rolling, two, Some(one), 0.2), two);
        assert_eq!(serving(&rolling, two, Some(one), 0.3), one);
        assert_eq!(serving(&ready(&[(1, 3)]), two, Some(one), 0.0), one);
        assert_eq!(serving(&ready(&[(2, 3)]), two, Some(one), 0.9), two);
        assert_eq!(serving(&rolling, two, None, 0.9), two);
        assert_eq!(serving(&ready(&[(1, 3)]), two, None, 0.9), one);
        assert_eq!(serving(&ready(&[]), two, None, 0.9), two);
    }
}
