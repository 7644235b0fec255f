//! Writes `crates/proto/src/generated` from `/proto`. Run by `just codegen`; CI fails when the result
//! differs from what is committed.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto_dir = crate_dir.join("../../proto");
    let files = ["predict", "registry", "raft", "streams", "worker"]
        .map(|name| proto_dir.join(format!("volley/{name}/v1/{name}.proto")));
    let descriptors = protox::compile(files, [&proto_dir])?;
    let out_dir = crate_dir.join("../proto/src/generated");
    std::fs::create_dir_all(&out_dir)?;
    tonic_prost_build::configure()
        .build_transport(true)
        .btree_map(".")
        .out_dir(out_dir)
        .compile_fds(descriptors)?;
    Ok(())
}
