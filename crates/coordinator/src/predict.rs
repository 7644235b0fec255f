//! One prediction through the cluster: admit → resolve → route → call → first chunk → stream.
//!
//! [`Predict::predict`] on [`Coordinator`] returns once the first two steps have passed; the other
//! four run inside the stream that it returns. Before the first chunk, another replica may be
//! tried. After it, another replica may continue a generation whose worker is lost; all other
//! errors end the stream. The stream owns all resources of the request (permit, load of the
//! replica, exchange with the worker) and releases them when it is dropped.

use std::collections::BTreeMap;
use std::time::Instant;

use async_stream::try_stream;
use async_trait::async_trait;
use futures::StreamExt;
use volley_telemetry::StreamRecord;
use volley_types::chunk::ChunkStream;
use volley_types::registry::{ModelSource, RegistryState, no_versions};
use volley_types::{
    Continuation, Deadline, ModelName, ModelRef, ModelVersion, Predict, PredictError,
    PredictRequest, Resolved, Revision, Signature, TenantId,
};

use crate::alias::{self, Mirroring, StickinessKeys};
use crate::attempts::Target;
use crate::guard::GuardedStream;
use crate::stream_limiter::StreamPermit;
use crate::{Coordinator, errors, scaler};

#[async_trait]
impl Predict for Coordinator {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        if self.lookup_of(&request).is_none() {
            let (model, keys) = (request.model.clone(), StickinessKeys::of(&request));
            self.activate_for(&model, keys, request.deadline).await?;
        }
        // 1. Admit: acquire a permit or reject immediately.
        let permit = self
            .admit(&request.tenant)
            .inspect_err(|error| self.refused(&request.model, error))?;
        self.answer(request, Some(permit), Mirroring::Enabled)
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Predict::resolve(self, model).await?.signature)
    }

    async fn resolve(&self, model: &ModelRef) -> Result<Resolved, PredictError> {
        self.started_for(model).await;
        let registry = self.0.cluster.registry().borrow().clone();
        if registry.models.contains_key(&model.name) {
            self.activate(&model.name, None).await?;
        } else if self.name_signature(&registry, model).is_err() {
            self.activate_targets(&registry, model).await?;
        }
        if registry.stands_for_others(&model.name) {
            // The sticky value of the request selects the model.
            let signature = self.name_signature(&registry, model)?;
            return Ok(Resolved::new(model.clone(), signature));
        }
        let target = self.lookup(&registry, model)?;
        let resolved = Resolved::new(model.clone(), target.signature.clone());
        Ok(resolved.with_target(Lookup {
            revision: registry.revision,
            target,
        }))
    }

    async fn models(&self) -> Vec<ModelName> {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployed = registry
            .models
            .values()
            .filter(|model| model.deployment.is_some());
        let mut names: Vec<_> = deployed.map(|model| model.name.clone()).collect();
        names.extend(self.callable_aliases(&registry));
        names.extend(registry.pipelines.keys().cloned());
        names.sort();
        names
    }
}

/// Result of the coordinator's lookup of a model.
struct Lookup {
    /// The registry's revision at the lookup.
    revision: Revision,
    target: Target,
}

impl Coordinator {
    /// Answers an admitted request; its `permit` is kept until the stream is dropped.
    pub(crate) fn answer(
        &self,
        request: PredictRequest,
        permit: Option<StreamPermit>,
        mirroring: Mirroring,
    ) -> Result<ChunkStream, PredictError> {
        let registry = self.0.cluster.registry().borrow().clone();
        let asked = request.model.clone();
        let begun =
            alias::resolve(&registry, &asked, StickinessKeys::of(&request)).and_then(|resolved| {
                let copied = mirroring == Mirroring::Enabled && !resolved.copies.is_empty();
                let copy = copied.then(|| request.try_clone()).flatten();
                let answer = self.begin(&registry, request, resolved.model, permit)?;
                if let Some(copy) = copy {
                    self.mirror(&copy, resolved.copies);
                }
                Ok(answer)
            });
        begun.inspect_err(|error| self.refused(&asked, error))
    }

    /// Activates the models of a request that are scaled to zero. The
    /// [attempts](crate::attempts::AttemptPlan::route) of the request activate a model that is
    /// scaled to zero after this.
    pub(crate) async fn activate_for(
        &self,
        model: &ModelRef,
        keys: StickinessKeys,
        deadline: Option<Deadline>,
    ) -> Result<(), PredictError> {
        self.started_for(model).await;
        let registry = self.0.cluster.registry().borrow().clone();
        let Ok(resolved) = alias::resolve(&registry, model, keys) else {
            return Ok(());
        };
        match registry.pipelines.get(&resolved.model.name) {
            None => self.activate(&resolved.model.name, deadline).await,
            Some(pipeline) => {
                pipeline.spec.check_loaded()?;
                for model in pipeline.spec.names() {
                    // A step may be an alias. An unresolvable name is rejected when the step runs.
                    if let Ok(step) = alias::resolve(&registry, model, keys) {
                        self.activate(&step.model.name, deadline).await?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Answers with a model, or with a pipeline.
    fn begin(
        &self,
        registry: &RegistryState,
        mut request: PredictRequest,
        resolved: ModelRef,
        permit: Option<StreamPermit>,
    ) -> Result<ChunkStream, PredictError> {
        if let Some(pipeline) = registry.pipelines.get(&resolved.name) {
            if resolved.version.is_some() {
                return Err(no_versions(&resolved.name));
            }
            return self.answer_pipeline(registry, request, &pipeline.spec, permit);
        }
        // 2. Resolve: which version of the model, and whether it takes such columns.
        let target = match self.lookup_of(&request) {
            // A copy for a mirror has the lookup of another model.
            Some(target) if target.serves(&resolved) => target.clone(),
            Some(_) | None => self.lookup(registry, &resolved)?,
        };
        self.check_fits(registry, &request.model, &target.signature)?;
        request.input = target.signature.conform(request.input)?;
        request.model = ModelRef {
            name: target.model.clone(),
            version: Some(target.version),
        };
        Ok(self.stream(request, target).holding(permit))
    }

    fn stream(&self, mut request: PredictRequest, target: Target) -> ChunkStream {
        let answered_by = request.model.clone();
        request.trace = request.trace.entered();
        // Overrides the caller's value. With a seed, another replica samples the same tokens.
        request.continuation = match target.draws() {
            true => Continuation::beginning(fastrand::u64(..)),
            false => Continuation::default(),
        };
        let record = StreamRecord::begin(&self.0.metrics, &request.model.name, Instant::now())
            .with_deadline(request.deadline)
            .traced(&request.trace);
        let request_id = request.request_id.clone();
        let (deadline, schema, task) = (
            request.unkept_deadline(),
            target.signature.answer(&request.parameters),
            target.signature.task,
        );

        // The guard of the stream enforces the deadline of all attempts.
        request.caller_keeps_deadline = true;
        request.resolved = None;
        let coordinator = self.clone();
        let batches = try_stream! {
            let mut request = Some(request);
            let mut tries = request
                .as_ref()
                .map(|request| coordinator.attempts(&target, request))
                .ok_or_else(errors::spent)?;
            let answer = loop {
                // 3. Route: the next replica that was not tried yet.
                let replica = tries.route().await?;
                // 4. Call it, keeping a copy of the request where there can be one.
                let attempt = request.take().ok_or_else(errors::spent)?;
                request = attempt.try_clone();
                // Boxed separately, so that a stream does not keep its memory until the end.
                match Box::pin(tries.call(replica, attempt)).await {
                    // 5. The first chunk, or the end of an empty response: this replica is final.
                    Ok(answer) => break answer,
                    // Nothing was forwarded yet: another replica may be tried.
                    Err(error) => tries.retry(error, request.is_some())?,
                }
            };
            // 6. Stream; a generation whose worker is lost may continue on another replica.
            let mut batches = std::pin::pin!(tries.follow(answer, request));
            while let Some(batch) = batches.next().await {
                yield batch?;
            }
        };
        let batches = GuardedStream::new(Box::pin(batches), record, request_id)
            .with_deadline(deadline)
            .with_task(task);
        ChunkStream::new(schema, batches).with_answered_by(answered_by)
    }

    fn refused(&self, asked: &ModelRef, error: &PredictError) {
        // An unknown name must not become a label of metrics.
        let known = self.0.cluster.registry().borrow().has_name(&asked.name);
        let label = known.then_some(&asked.name);
        self.0.metrics.refused(label, error.code);
    }

    /// The signature of a model or a name that leads to one.
    pub(crate) fn name_signature(
        &self,
        registry: &RegistryState,
        name: &ModelRef,
    ) -> Result<Signature, PredictError> {
        match registry.aliases.get(&name.name) {
            Some(_) if name.version.is_some() => Err(no_versions(&name.name)),
            Some(alias) => self.alias_signature(registry, &alias.spec),
            None => self.end_signature(registry, name),
        }
    }

    /// The signature of a model or a pipeline.
    pub(crate) fn end_signature(
        &self,
        registry: &RegistryState,
        name: &ModelRef,
    ) -> Result<Signature, PredictError> {
        match registry.pipelines.get(&name.name) {
            Some(_) if name.version.is_some() => Err(no_versions(&name.name)),
            Some(pipeline) => self.pipeline_signature(registry, &pipeline.spec),
            None => self.lookup(registry, name).map(|target| target.signature),
        }
    }

    fn admit(&self, tenant: &TenantId) -> Result<StreamPermit, PredictError> {
        if !self.accepts() {
            return Err(errors::draining());
        }
        self.0.places.acquire(tenant)
    }

    /// The lookup that a request carries, if the registry has not changed since.
    fn lookup_of<'r>(&self, request: &'r PredictRequest) -> Option<&'r Target> {
        let lookup = request.resolved.as_ref()?.target::<Lookup>()?;
        let revision = self.0.cluster.registry().borrow().revision;
        (lookup.revision == revision).then_some(&lookup.target)
    }

    fn lookup(&self, registry: &RegistryState, model: &ModelRef) -> Result<Target, PredictError> {
        let entry = registry
            .models
            .get(&model.name)
            .ok_or_else(|| errors::unknown(&model.name))?;
        let Some(deployment) = &entry.deployment else {
            return Err(errors::not_deployed(&model.name));
        };
        let deployed = deployment.version;
        let rollout = deployment.rollout.as_ref();
        let served = |asked| asked == deployed || rollout.is_some_and(|roll| roll.from == asked);
        if model.version.is_some_and(|asked| !served(asked)) {
            return Err(errors::other_version(model, deployed));
        }
        let live = self.0.live.read();
        let version = match model.version {
            Some(asked) => asked,
            None => {
                let ready = live.ready_versions(&model.name);
                let from = rollout.map(|roll| roll.from);
                let stays = from.filter(|from| {
                    let there = ready.get(from).is_some_and(|count| 0 < *count);
                    deployment.options.keep_previous != 0 && there
                });
                stays.unwrap_or_else(|| serving(&ready, deployed, from, fastrand::f64()))
            }
        };
        let signature = live.signature(&model.name, version).or_else(|| {
            // Its replica may be removed while a request is on the way; the request then activates
            // the model.
            let goes = scaler::may_scale_to_zero(deployment);
            goes.then(|| live.last_signature(&model.name, version))?
        });
        let signature = signature.ok_or_else(|| {
            errors::no_replica(&model.name, live.failure(&model.name, version).as_deref())
        })?;
        Ok(Target {
            model: model.name.clone(),
            version,
            signature,
            keeps_prefixes: entry
                .versions
                .get(&version)
                .is_some_and(|spec| !matches!(spec.source, ModelSource::Connector(_))),
        })
    }
}

/// The version for a request without one. During a rollout, each version gets requests in
/// proportion to its ready replicas; otherwise the deployed version, or the newest loaded one until
/// that is ready. `random` is between 0 and 1.
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
