//! Generators of aliases and pipelines for the tests of records.

use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use volley_types::registry::{
    AliasMirror, AliasSpec, AliasTarget, Branch, ColumnRef, ColumnType, Ensemble, Inputs,
    PipelineSpec, PipelineStep, RegistryCommand, StepKind,
};
use volley_types::{ModelRef, ModelVersion, Revision, Task};

use crate::records::{model, parameters};

fn reference() -> impl Strategy<Value = ModelRef> {
    (model(), option::of(1_u32..)).prop_map(|(name, version)| ModelRef {
        name,
        version: version.map(ModelVersion),
    })
}

prop_compose! {
    pub(crate) fn alias()(
        name in model(),
        targets in vec((reference(), any::<u32>()), 0..4),
        mirror in option::of((reference(), any::<u32>())),
        sticky_header in option::of("[a-z-]{1,8}"),
        description in ".{0,20}",
    ) -> AliasSpec {
        let targets = targets.into_iter().map(|(model, weight)| AliasTarget { model, weight });
        AliasSpec {
            name,
            targets: targets.collect(),
            mirror: mirror.map(|(model, permille)| AliasMirror { model, permille }),
            sticky_header,
            description,
        }
    }
}

fn column() -> impl Strategy<Value = ColumnRef> {
    ("[a-z]{1,8}", "[a-z.]{1,8}").prop_map(|(step, column)| ColumnRef { step, column })
}

fn inputs() -> impl Strategy<Value = Inputs> {
    btree_map("[a-z]{1,8}", column(), 0..3)
}

fn step_kind() -> impl Strategy<Value = StepKind> {
    let name = || "[a-z]{1,8}";
    let steps = || vec("[a-z]{1,8}", 1..3);
    prop_oneof![
        (reference(), inputs(), parameters()).prop_map(|(model, inputs, parameters)| {
            StepKind::Model {
                model,
                inputs,
                parameters,
            }
        }),
        (column(), name()).prop_map(|(list, column)| StepKind::Explode { list, column }),
        (".{0,20}", inputs(), any::<bool>(), name()).prop_map(
            |(template, inputs, gather, column)| StepKind::Template {
                template,
                inputs,
                gather,
                column,
            }
        ),
        inputs().prop_map(StepKind::Select),
        (".{0,20}", inputs()).prop_map(|(expression, inputs)| {
            StepKind::Branch(Branch::When { expression, inputs })
        }),
        steps().prop_map(|steps| StepKind::Branch(Branch::Otherwise(steps))),
        steps().prop_map(StepKind::Merge),
        (any::<u32>(), column()).prop_map(|(k, by)| StepKind::TopK { k, by }),
        (column(), column(), name()).prop_map(|(left, right, column)| StepKind::Similarity {
            left,
            right,
            column,
        }),
        (".{0,20}", inputs(), name()).prop_map(|(expression, inputs, column)| {
            StepKind::Compute {
                expression,
                inputs,
                column,
            }
        }),
    ]
}

prop_compose! {
    fn step()(
        name in "[a-z]{1,8}",
        over in option::of("[a-z]{1,8}"),
        kind in step_kind(),
    ) -> PipelineStep {
        PipelineStep { name, over, kind }
    }
}

prop_compose! {
    pub(crate) fn pipeline()(
        name in model(),
        task in select(vec![Task::Generate, Task::Tensors, Task::Rerank]),
        types in btree_map("[a-z]{1,8}", select(ColumnType::ALL.to_vec()), 0..3),
        steps in vec(step(), 0..4),
        (output, description) in ("[a-z]{0,8}", ".{0,20}"),
        ensemble in option::of((".{0,20}", any::<bool>())),
    ) -> PipelineSpec {
        let ensemble = ensemble.map(|(config, loaded)| Ensemble { config, loaded });
        PipelineSpec { name, task, inputs: types, steps, output, description, ensemble }
    }
}

/// Generates a command that sets or deletes a name.
pub(crate) fn change() -> impl Strategy<Value = RegistryCommand> {
    let expected = || option::of(any::<u64>().prop_map(Revision));
    prop_oneof![
        (alias(), expected())
            .prop_map(|(alias, expected)| RegistryCommand::PutAlias { alias, expected }),
        (model(), expected())
            .prop_map(|(name, expected)| RegistryCommand::DeleteAlias { name, expected }),
        (pipeline(), expected()).prop_map(|(pipeline, expected)| {
            let pipeline = Arc::new(pipeline);
            RegistryCommand::PutPipeline { pipeline, expected }
        }),
        (model(), expected())
            .prop_map(|(name, expected)| RegistryCommand::DeletePipeline { name, expected }),
    ]
}
