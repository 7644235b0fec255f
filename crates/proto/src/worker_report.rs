//! Conversions of `WorkerReport` and `Assignments` ⇄ [`volley_types::worker`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_schema::{Schema, SchemaRef};
use volley_types::registry::ReplicaState;
use volley_types::{
    Assignments, FetchProgress, GpuReport, Incarnation, ModelName, ModelVersion, PredictError,
    ReplicaReport, Revision, Signature, Task, WorkerId, WorkerReport,
};

use crate::registry_records::{assignment_from_wire, assignment_to_wire};
use crate::worker::v1 as wire;

/// Maximum size of a schema message that is decoded, in bytes.
const MAX_SCHEMA_BYTES: usize = 1 << 20;

/// Converts a heartbeat to the wire.
#[must_use]
pub fn report_to_wire(report: &WorkerReport) -> wire::WorkerReport {
    wire::WorkerReport {
        worker_id: report.id.to_string(),
        incarnation: report.incarnation.0,
        flight_address: report.address.clone(),
        labels: report.labels.clone().into_iter().collect(),
        replicas: report.replicas.iter().map(replica_to_wire).collect(),
        draining: report.draining,
        uptime_ms: report.uptime_ms,
        partial: false,
        load: Some(wire::Load {
            active: report.active,
            queued: report.queued,
            memory_bytes: report.memory_bytes,
            memory_budget_bytes: report.memory_budget_bytes,
            gpus: report.gpus.iter().map(gpu_to_wire).collect(),
        }),
    }
}

fn gpu_to_wire(gpu: &GpuReport) -> wire::Gpu {
    wire::Gpu {
        index: gpu.index,
        name: gpu.name.clone(),
        used_bytes: gpu.used_bytes,
        total_bytes: gpu.total_bytes,
        utilization_percent: gpu.utilization_percent,
    }
}

fn gpu_from_wire(gpu: wire::Gpu) -> GpuReport {
    GpuReport {
        index: gpu.index,
        name: gpu.name,
        used_bytes: gpu.used_bytes,
        total_bytes: gpu.total_bytes,
        utilization_percent: gpu.utilization_percent.min(100),
    }
}

fn replica_to_wire(replica: &ReplicaReport) -> wire::Replica {
    let (state, reason) = match &replica.state {
        ReplicaState::Loading => (wire::ReplicaState::Loading, String::new()),
        ReplicaState::Ready => (wire::ReplicaState::Ready, String::new()),
        ReplicaState::Draining => (wire::ReplicaState::Draining, String::new()),
        ReplicaState::Failed(reason) => (wire::ReplicaState::Failed, reason.clone()),
    };
    let signature = replica.signature.as_ref();
    let schema = |of: fn(&Signature) -> &SchemaRef| {
        signature.map_or_else(prost::bytes::Bytes::new, |signature| {
            schema_to_wire(of(signature))
        })
    };
    wire::Replica {
        model: replica.model.to_string(),
        version: replica.version.0,
        state: state.into(),
        reason,
        active: replica.active,
        queued: replica.queued,
        capacity: replica.capacity,
        queue_wait_ms: replica.queue_wait_ms,
        idle_since_ms: replica.idle_since_ms,
        fetch: replica.fetch.map(|fetch| wire::Fetch {
            bytes: fetch.bytes,
            total_bytes: fetch.total_bytes,
        }),
        task: signature.map_or(String::new(), |signature| signature.wire_task().to_owned()),
        input_schema: schema(|signature| &signature.input).into(),
        output_schema: schema(|signature| &signature.output).into(),
        evicted: replica.evicted,
        memory_bytes: replica.memory_bytes,
    }
}

fn schema_to_wire(schema: &Schema) -> prost::bytes::Bytes {
    let message = IpcSchemaEncoder::new().schema_to_fb(schema);
    prost::bytes::Bytes::copy_from_slice(message.finished_data())
}

fn schema_from_wire(bytes: &[u8]) -> Result<SchemaRef, PredictError> {
    let malformed = || PredictError::invalid("a replica's schema is malformed");
    if bytes.is_empty() || MAX_SCHEMA_BYTES < bytes.len() {
        return Err(malformed());
    }
    // The decoder panics on some malformed messages that pass its own verification.
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        arrow_ipc::root_as_schema(bytes).map(arrow_ipc::convert::fb_to_schema)
    }));
    match decoded {
        Ok(Ok(schema)) => Ok(Arc::new(schema)),
        Ok(Err(_)) | Err(_) => Err(malformed()),
    }
}

/// Converts a full heartbeat from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn report_from_wire(report: wire::WorkerReport) -> Result<WorkerReport, PredictError> {
    let load = report.load.unwrap_or_default();
    let replicas = report.replicas.into_iter().map(replica_from_wire);
    Ok(WorkerReport {
        id: WorkerId::new(report.worker_id)?,
        incarnation: Incarnation(report.incarnation),
        address: report.flight_address,
        labels: report.labels.into_iter().collect(),
        replicas: replicas.collect::<Result<_, _>>()?,
        draining: report.draining,
        active: load.active,
        queued: load.queued,
        memory_bytes: load.memory_bytes,
        memory_budget_bytes: load.memory_budget_bytes,
        uptime_ms: report.uptime_ms,
        gpus: load.gpus.into_iter().map(gpu_from_wire).collect(),
    })
}

fn replica_from_wire(replica: wire::Replica) -> Result<ReplicaReport, PredictError> {
    let state = match replica.state() {
        wire::ReplicaState::Loading => ReplicaState::Loading,
        wire::ReplicaState::Ready => ReplicaState::Ready,
        wire::ReplicaState::Draining => ReplicaState::Draining,
        wire::ReplicaState::Failed => ReplicaState::Failed(replica.reason.clone()),
        wire::ReplicaState::Unspecified => {
            return Err(PredictError::invalid("a replica's state is unknown"));
        }
    };
    let signature = match replica.task.as_str() {
        "" => None,
        name => Some(Signature::from_wire(
            Task::from_name(name)
                .ok_or_else(|| PredictError::invalid("a replica's task is unknown"))?,
            schema_from_wire(&replica.input_schema)?,
            schema_from_wire(&replica.output_schema)?,
        )),
    };
    Ok(ReplicaReport {
        model: ModelName::new(replica.model)?,
        version: ModelVersion(replica.version),
        state,
        active: replica.active,
        queued: replica.queued,
        capacity: replica.capacity,
        queue_wait_ms: replica.queue_wait_ms,
        idle_since_ms: replica.idle_since_ms,
        fetch: replica.fetch.map(|fetch| FetchProgress {
            bytes: fetch.bytes,
            total_bytes: fetch.total_bytes,
        }),
        signature,
        evicted: replica.evicted,
        memory_bytes: replica.memory_bytes,
    })
}

/// Converts assignments to the wire.
#[must_use]
pub fn orders_to_wire(orders: &Assignments) -> wire::Assignments {
    wire::Assignments {
        revision: orders.revision.0,
        assignments: orders.assignments.iter().map(assignment_to_wire).collect(),
        coordinators: orders.coordinators.clone(),
        overcommit: orders.overcommit.iter().map(ToString::to_string).collect(),
        takes_partial: true,
        membership: None,
    }
}

/// Converts assignments from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn orders_from_wire(wire: wire::Assignments) -> Result<Assignments, PredictError> {
    let assignments = wire.assignments.into_iter().map(assignment_from_wire);
    let overcommit = wire.overcommit.into_iter().map(ModelName::new);
    Ok(Assignments {
        revision: Revision(wire.revision),
        assignments: assignments.collect::<Result<_, _>>()?,
        coordinators: wire.coordinators,
        overcommit: overcommit.collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_heartbeat_survives_the_wire() {
        let replica = ReplicaReport {
            model: ModelName::new("m").unwrap(),
            version: ModelVersion(2),
            state: ReplicaState::Failed("no such file".to_owned()),
            active: 1,
            queued: 2,
            capacity: 3,
            queue_wait_ms: 9,
            idle_since_ms: 11,
            fetch: Some(FetchProgress {
                bytes: 7,
                total_bytes: 8,
            }),
            signature: Some(Signature::generation()),
            evicted: true,
            memory_bytes: 7,
        };
        let report = WorkerReport {
            id: WorkerId::new("w").unwrap(),
            incarnation: Incarnation(9),
            address: "host:1".to_owned(),
            labels: BTreeMap::from([("zone".to_owned(), "a".to_owned())]),
            replicas: vec![replica],
            draining: true,
            active: 4,
            queued: 5,
            memory_bytes: 6,
            memory_budget_bytes: 8,
            uptime_ms: 10,
            gpus: vec![GpuReport {
                index: 1,
                name: "GPU".to_owned(),
                used_bytes: 11,
                total_bytes: 12,
                utilization_percent: 13,
            }],
        };
        let wire = report_to_wire(&report);
        assert_eq!(report_from_wire(wire.clone()).unwrap(), report);
        for index in 0..wire.replicas[0].input_schema.len() {
            let mut mutated = wire.clone();
            mutated.replicas[0].input_schema[index] ^= 0xff;
            // Rejected, or decoded as another schema; never a panic.
            let _ = report_from_wire(mutated);
        }
    }
}
