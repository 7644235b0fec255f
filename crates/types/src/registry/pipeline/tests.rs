use proptest::prelude::*;

use super::*;

fn column(text: &str) -> ColumnRef {
    text.parse().unwrap()
}

fn inputs(columns: &[(&str, &str)]) -> Inputs {
    let columns = columns.iter();
    columns
        .map(|(name, text)| ((*name).to_owned(), column(text)))
        .collect()
}

fn step(name: &str, kind: StepKind) -> PipelineStep {
    PipelineStep {
        name: name.to_owned(),
        over: None,
        kind,
    }
}

fn over(name: &str, rows: &str, kind: StepKind) -> PipelineStep {
    PipelineStep {
        over: Some(rows.to_owned()),
        ..step(name, kind)
    }
}

fn model(columns: &[(&str, &str)]) -> StepKind {
    StepKind::Model {
        model: "m".parse().unwrap(),
        inputs: inputs(columns),
        parameters: Parameters::default(),
    }
}

fn explode() -> StepKind {
    StepKind::Explode {
        list: column("parameters.documents"),
        column: "text".to_owned(),
    }
}

fn template(columns: &[(&str, &str)], gather: bool) -> StepKind {
    StepKind::Template {
        template: String::new(),
        inputs: inputs(columns),
        gather,
        column: "text".to_owned(),
    }
}

fn when(columns: &[(&str, &str)]) -> StepKind {
    StepKind::Branch(Branch::When {
        expression: "true".to_owned(),
        inputs: inputs(columns),
    })
}

fn rest(of: &[&str]) -> StepKind {
    StepKind::Branch(Branch::Otherwise(names(of)))
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn pipeline(steps: Vec<PipelineStep>) -> PipelineSpec {
    PipelineSpec {
        name: "p".parse().unwrap(),
        task: Task::Generate,
        inputs: BTreeMap::new(),
        output: steps
            .last()
            .map_or_else(String::new, |step| step.name.clone()),
        steps,
        description: String::new(),
        ensemble: None,
    }
}

/// Ranks the documents of the request, and answers from the best of them.
fn retrieval() -> PipelineSpec {
    let top = StepKind::TopK {
        k: 2,
        by: column("ranked.score"),
    };
    let query = [("query", "request.question"), ("text", "docs.text")];
    pipeline(vec![
        step("docs", explode()),
        step("ranked", model(&query)),
        step("best", top),
        over("prompt", "best", template(&[("text", "docs.text")], true)),
        step("answer", model(&[("prompt", "prompt.text")])),
    ])
}

#[test]
fn rows_are_followed_from_the_request_down_and_back() {
    let spec = retrieval();
    let shape = spec.check().unwrap();
    let place = |name| spec.step(name).unwrap();
    assert_eq!(shape.output, place("answer"));
    let kinds: Vec<_> = shape.domains.iter().map(|domain| domain.kind).collect();
    assert_eq!(
        kinds,
        [DomainKind::Root, DomainKind::Exploded, DomainKind::Subset]
    );
    assert_eq!(shape.gives[place("ranked")], shape.gives[place("docs")]);
    assert_eq!(shape.over[place("prompt")], shape.gives[place("best")]);
    assert_eq!(shape.gives[place("answer")], ROOT);
    assert!(shape.is_above(ROOT, shape.gives[place("best")]));
    assert!(!shape.is_above(shape.gives[place("best")], ROOT));
}

#[test]
fn branches_of_the_same_rows_are_merged() {
    let prompt = [("prompt", "request.prompt")];
    let branched = |of: &[&str]| {
        pipeline(vec![
            step("long", when(&prompt)),
            step("short", rest(&["long"])),
            over("a", "long", model(&prompt)),
            over("b", "short", model(&prompt)),
            step("answer", StepKind::Merge(names(of))),
        ])
    };
    let shape = branched(&["a", "b"]).check().unwrap();
    assert_eq!(shape.gives[4], ROOT);
    let alone = branched(&["a"]).check().unwrap_err();
    assert!(alone.message.contains("not used by another"), "{alone}");
    // Columns of different branches do not belong together.
    let mut mixed = branched(&["a", "b"]);
    mixed.steps[4].kind = template(&[("a", "a.text"), ("b", "b.text")], true);
    let mixed = mixed.check().unwrap_err();
    assert!(mixed.message.contains("do not belong together"), "{mixed}");
}

#[test]
fn what_cannot_run_is_told_by_its_step() {
    let prompt = [("prompt", "request.prompt")];
    let with = |change: &dyn Fn(&mut PipelineSpec)| {
        let mut spec = retrieval();
        change(&mut spec);
        spec.check().unwrap_err().message
    };
    let many = (0..=MAX_STEPS).map(|index| step(&format!("s{index}"), explode()));
    let many = pipeline(many.collect()).check().unwrap_err().message;
    for (message, says) in [
        (pipeline(Vec::new()).check().unwrap_err().message, "1 to 32"),
        (many, "1 to 32"),
        (
            with(&|spec| spec.output = "x".to_owned()),
            "'x' does not exist",
        ),
        (
            with(&|spec| spec.steps[0].name = "request".to_owned()),
            "neither",
        ),
        (with(&|spec| spec.steps[0].name = "a.b".to_owned()), "name"),
        (
            with(&|spec| spec.steps[1].name = "docs".to_owned()),
            "two steps",
        ),
        (
            with(&|spec| spec.steps[4].kind = model(&[("prompt", "nobody.text")])),
            "'nobody'",
        ),
        (
            with(&|spec| spec.steps[0].kind = model(&[("text", "answer.text")])),
            "depends on itself",
        ),
        (
            with(&|spec| spec.steps.push(step("more", model(&prompt)))),
            "'more' is not used by another",
        ),
        (
            with(&|spec| spec.output = "ranked".to_owned()),
            "is not used by another",
        ),
        (
            with(&|spec| {
                spec.steps.truncate(2);
                spec.output = "ranked".to_owned();
            }),
            "one row for each row",
        ),
        (
            with(&|spec| spec.task = Task::Tensors),
            "must name its inputs",
        ),
        (
            with(&|spec| spec.steps[3].kind = StepKind::Merge(names(&["docs"]))),
            "not branches",
        ),
        (with(&|spec| spec.steps[4].kind = model(&[])), "no input"),
    ] {
        assert!(message.contains(says), "{says}: {message}");
    }
}

#[test]
fn names_of_columns_and_types_are_read_as_they_are_written() {
    assert_eq!(column("a.b.c").column, "b.c");
    for wrong in ["", "a", ".a", "a."] {
        assert!(wrong.parse::<ColumnRef>().is_err(), "{wrong}");
    }
    for kind in ColumnType::ALL {
        assert_eq!(ColumnType::from_name(kind.as_str()), Some(kind));
    }
}

/// A step that uses columns of some other steps, or merges them.
fn any_step(count: usize) -> impl Strategy<Value = (StepKind, Option<usize>)> {
    let place = move || 0..count + 2;
    let name = |place: usize| match place {
        0 => REQUEST.to_owned(),
        1 => PARAMETERS.to_owned(),
        place => format!("s{}", place - 2),
    };
    let columns = prop::collection::vec(place(), 0..3).prop_map(move |places| {
        let columns = places.into_iter().enumerate();
        let columns = columns.map(|(index, place)| {
            let column = ColumnRef {
                step: name(place),
                column: "c".to_owned(),
            };
            (format!("i{index}"), column)
        });
        columns.collect::<Inputs>()
    });
    let steps = prop::collection::vec(0..count, 1..3);
    let steps = steps.prop_map(|places| {
        let names = places.into_iter().map(|place| format!("s{place}"));
        names.collect::<Vec<_>>()
    });
    let kind = prop_oneof![
        columns.clone().prop_map(StepKind::Select),
        (columns.clone(), any::<bool>()).prop_map(|(inputs, gather)| StepKind::Template {
            template: String::new(),
            inputs,
            gather,
            column: "c".to_owned(),
        }),
        columns.prop_map(|inputs| StepKind::Branch(Branch::When {
            expression: String::new(),
            inputs,
        })),
        place().prop_map(move |place| StepKind::Explode {
            list: ColumnRef {
                step: name(place),
                column: "c".to_owned(),
            },
            column: "c".to_owned(),
        }),
        steps.clone().prop_map(StepKind::Merge),
        steps.prop_map(|steps| StepKind::Branch(Branch::Otherwise(steps))),
    ];
    (kind, prop::option::weighted(0.2, 0..count))
}

fn any_pipeline() -> impl Strategy<Value = PipelineSpec> {
    (1_usize..7).prop_flat_map(|count| {
        let steps = prop::collection::vec(any_step(count), count);
        (steps, 0..count).prop_map(|(kinds, output)| {
            let steps = kinds.into_iter().enumerate();
            let steps = steps.map(|(index, (kind, over))| PipelineStep {
                name: format!("s{index}"),
                over: over.map(|place| format!("s{place}")),
                kind,
            });
            let mut spec = pipeline(steps.collect());
            spec.output = format!("s{output}");
            spec
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    /// Any graph is either rejected, or has an order in which each step finds its inputs, processes
    /// related rows, and the output has a row for each row of the request.
    #[test]
    fn any_graph_is_refused_or_can_run(spec in any_pipeline()) {
        let Ok(shape) = spec.check() else {
            return Ok(());
        };
        prop_assert_eq!(shape.order.len(), spec.steps.len());
        prop_assert_eq!(shape.order.last(), Some(&shape.output));
        prop_assert_eq!(shape.gives[shape.output], ROOT);
        let mut ran = BTreeSet::new();
        for place in &shape.order {
            let step = &spec.steps[*place];
            for needed in step.needs() {
                prop_assert!(ran.contains(needed), "{} runs before {needed}", step.name);
            }
            for column in step.columns() {
                let domain = spec.step(&column.step).map_or(ROOT, |place| shape.gives[place]);
                prop_assert!(shape.is_above(domain, shape.over[*place]));
            }
            ran.insert(step.name.as_str());
        }
    }
}
