//! Generators of tasks for the tests of records.

use std::collections::BTreeMap;

use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;
use volley_types::registry::{RegistryCommand, TaskRecord, TaskState};
use volley_types::{NodeId, TenantId};

use crate::records::model;

fn task_state() -> impl Strategy<Value = TaskState> {
    prop_oneof![
        Just(TaskState::Running),
        Just(TaskState::Completed),
        ".{0,9}".prop_map(TaskState::Failed),
        Just(TaskState::Cancelled),
    ]
}

prop_compose! {
    fn record()(
        node in any::<u64>(),
        model in model(),
        tenant in option::of("[a-z]{1,8}"),
        (created_ms, updated_ms, forget_ms) in any::<(u64, u64, u64)>(),
        state in task_state(),
    ) -> TaskRecord {
        TaskRecord {
            node: NodeId(node),
            model,
            tenant: tenant.map(|tenant| TenantId::new(tenant).unwrap()),
            created_ms,
            updated_ms,
            state,
            forget_ms,
        }
    }
}

pub(crate) fn all() -> impl Strategy<Value = BTreeMap<String, TaskRecord>> {
    btree_map(".{0,9}", record(), 0..4)
}

pub(crate) fn change() -> impl Strategy<Value = RegistryCommand> {
    prop_oneof![
        (".{0,9}", record()).prop_map(|(id, record)| RegistryCommand::PutTask { id, record }),
        (".{0,9}", record()).prop_map(|(id, record)| RegistryCommand::BeginTask { id, record }),
        ".{0,9}".prop_map(RegistryCommand::ForgetTask),
    ]
}
