//! Generates `crates/proto/src/generated` from `/proto`. Run by `just codegen`. CI fails if the
//! result differs from the committed code.

use std::path::{Path, PathBuf};

type GenerateResult = Result<(), Box<dyn std::error::Error>>;

fn main() -> GenerateResult {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto_dir = crate_dir.join("../../proto");
    let out_dir = crate_dir.join("../proto/src/generated");
    let ours = [
        "predict", "quota", "registry", "raft", "streams", "tasks", "worker",
    ];
    let ours = ours.map(|name| proto_dir.join(format!("volley/{name}/v1/{name}.proto")));
    generate(&proto_dir, &ours, &out_dir, None)?;
    // Two flavors have a service of the same name, so each is compiled separately. The shared
    // messages are generated once, with Triton's flavor.
    let flavor = |name: &str| [proto_dir.join(format!("inference/{name}.proto"))];
    generate(&proto_dir, &flavor("triton"), &out_dir.join("triton"), None)?;
    let shared = Some("crate::inference::triton");
    generate(
        &proto_dir,
        &flavor("mlserver"),
        &out_dir.join("mlserver"),
        shared,
    )
}

fn generate(
    root: &Path,
    files: &[PathBuf],
    out_dir: &Path,
    messages: Option<&str>,
) -> GenerateResult {
    let descriptors = protox::compile(files, [root])?;
    std::fs::create_dir_all(out_dir)?;
    let mut builder = tonic_prost_build::configure()
        .build_transport(true)
        .btree_map(".")
        .bytes(".inference")
        .out_dir(out_dir);
    if let Some(path) = messages {
        builder = builder.extern_path(".inference", path);
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
