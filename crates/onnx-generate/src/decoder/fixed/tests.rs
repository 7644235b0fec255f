use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::decoder::layout;
use crate::decoder::shared::SharedCacheDecoder;
use crate::model::ModelFiles;
use volley_onnx_runtime::{Device, OnnxConfig, Runtime, session};

/// Prefills two prompts with the demo model, and returns the logits of the following steps, which
/// cross a boundary of widths.
fn logits(fixed: bool) -> Vec<Vec<f32>> {
    let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
    let runtime = Runtime::init(&library).unwrap();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller");
    let files = ModelFiles::read(&directory, None, Some(300)).unwrap();
    let config = OnnxConfig {
        device: Device::Cpu,
        threads: 1,
        ..OnnxConfig::default()
    };
    let graph = directory.join(&files.onnx);
    let (session, place) = session::build_placed(&runtime, &graph, &config).unwrap();
    let layout = layout::check(&session, &files).unwrap();
    let mut decoder = SharedCacheDecoder::new(session, place, &files, layout, 4, fixed).unwrap();
    let prompts: [Vec<u32>; 2] = [(4..254).collect(), vec![5, 9, 7]];
    for (slot, prompt) in prompts.iter().enumerate() {
        decoder.prefill(slot, 0, prompt, |_| ()).unwrap();
    }
    let mut lengths = [prompts[0].len(), prompts[1].len()];
    let mut found = Vec::new();
    for token in 10..20 {
        let step = decoder.decode(&[token, token + 1], &lengths, <[f32]>::to_vec);
        found.push(step.unwrap());
        lengths = lengths.map(|length| length + 1);
    }
    // One generation ends.
    found.push(
        decoder
            .decode(&[3], &lengths[..1], <[f32]>::to_vec)
            .unwrap(),
    );
    found
}

/// The same code as on a GPU, except for the CUDA graph and the copies.
#[test]
fn steps_of_fixed_shape_give_what_others_give() {
    let (plain, fixed) = (logits(false), logits(true));
    assert_eq!(plain.len(), fixed.len());
    for (step, (plain, fixed)) in plain.iter().zip(&fixed).enumerate() {
        assert_eq!(plain.len(), fixed.len());
        for (one, other) in plain.iter().zip(fixed) {
            let near = (one - other).abs() <= 1e-4 * (1.0 + one.abs());
            assert!(near, "step {step}: {one} and {other}");
        }
    }
}

#[test]
fn rows_grow_through_few_widths_and_fit_each() {
    for context in [100, 256, 1_000, 1_024, 4_096] {
        let mut widths = BTreeSet::new();
        for longest in 0..context {
            let width = width(longest, context);
            assert!(
                longest < width && width <= context,
                "{longest} of {context}"
            );
            widths.insert(width);
        }
        assert!(widths.len() <= 5, "{widths:?}");
    }
}

#[test]
fn every_step_has_a_graph_of_its_own() {
    let mut seen = BTreeSet::new();
    for rows in 1..=64 {
        for width in [256, 512, 1_024, 2_048, 3_000, 4_096, 1 << 20] {
            assert!(seen.insert(graph(rows, width)), "{rows} × {width}");
        }
    }
    assert!(!seen.contains(&0), "0 is a graph that nobody asked for");
}
