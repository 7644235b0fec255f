use super::*;

pub(super) fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    directory
}

fn kind(files: &[(&str, &str)]) -> Result<Layout, String> {
    let directory = directory(files);
    let found = recognise(directory.path(), &RegisteredConfig::default(), None);
    found.map(|(_, kind)| kind).map_err(|error| error.message)
}

#[test]
fn directories_are_told_by_their_files() {
    let llama = r#"{"architectures":["LlamaForCausalLM"]}"#;
    let bert = r#"{"architectures":["BertModel"]}"#;
    let graph = |name: &str| Ok(Layout::Graph(PathBuf::from(name)));
    assert_eq!(kind(&[("genai_config.json", "{}")]), Ok(Layout::Decoder));
    let decoder = [
        ("config.json", llama),
        ("tokenizer.json", ""),
        ("onnx/model.onnx", ""),
    ];
    assert_eq!(kind(&decoder), Ok(Layout::Decoder));
    let encoder = [
        ("config.json", bert),
        ("tokenizer.json", ""),
        ("model.onnx", ""),
    ];
    assert_eq!(kind(&encoder), Ok(Layout::Encoder));
    for own in [("modules.json", "[]"), ("model.toml", "task = \"embed\"")] {
        let files = [decoder.as_slice(), &[own]].concat();
        assert_eq!(kind(&files), Ok(Layout::Encoder), "{own:?}");
    }
    assert_eq!(kind(&[("model.onnx", "")]), graph("model.onnx"));
    assert_eq!(kind(&[("net.onnx", "")]), graph("net.onnx"));
    assert!(
        kind(&[("a.onnx", ""), ("b.onnx", "")])
            .unwrap_err()
            .contains("several")
    );
    assert!(
        kind(&[("readme.txt", "")])
            .unwrap_err()
            .contains("no .onnx")
    );
}

#[test]
fn what_was_registered_stands_in_for_files_that_are_missing() {
    let zip = directory(&[("all-MiniLM.onnx", ""), ("tokenizer.json", "")]);
    let found = |registered: &RegisteredConfig| recognise(zip.path(), registered, None).unwrap().1;
    let graph = Layout::Graph(PathBuf::from("all-MiniLM.onnx"));
    assert_eq!(found(&RegisteredConfig::default()), graph);
    let llama = r#"{"architectures":["LlamaForCausalLM"]}"#;
    for (all_config, task, layout) in [
        (None, None, Layout::Encoder),
        (Some(llama), None, Layout::Decoder),
        (
            Some(llama),
            Some(volley_types::Task::Embed),
            Layout::Encoder,
        ),
    ] {
        let config = crate::registered::ModelConfig {
            all_config: all_config.map(str::to_owned),
            ..Default::default()
        };
        let registered = RegisteredConfig {
            task,
            config: Some(config),
            triton: None,
        };
        assert_eq!(found(&registered), layout);
    }
}

#[test]
fn of_numbered_versions_the_newest_is_taken_and_a_file_is_itself() {
    let versions = directory(&[
        ("2/model.onnx", ""),
        ("10/model.onnx", ""),
        ("config.pbtxt", ""),
    ]);
    let (found, _) = recognise(versions.path(), &RegisteredConfig::default(), None).unwrap();
    assert_eq!(found, versions.path().join("10"));
    let (found, kind) = recognise(
        &versions.path().join("2/model.onnx"),
        &RegisteredConfig::default(),
        None,
    )
    .unwrap();
    assert_eq!(found, versions.path().join("2"));
    assert_eq!(kind, Layout::Graph(PathBuf::from("model.onnx")));
    assert!(
        recognise(
            &versions.path().join("config.pbtxt"),
            &RegisteredConfig::default(),
            None,
        )
        .is_err()
    );
}

#[test]
fn a_graph_that_the_configuration_names_must_exist() {
    let found = |name: &str| {
        let config = format!("default_model_filename: '{name}'");
        let files = [
            ("config.pbtxt", config.as_str()),
            ("1/model.onnx", ""),
            ("1/ten.onnx", ""),
            ("other.onnx.txt", ""),
        ];
        let folder = directory(&files);
        let declared = TritonConfig::read(folder.path()).unwrap();
        let found = recognise(
            folder.path(),
            &RegisteredConfig::default(),
            declared.as_ref(),
        );
        found.map(|(_, kind)| kind).map_err(|error| error.message)
    };
    let graph = |name: &str| Ok(Layout::Graph(PathBuf::from(name)));
    assert_eq!(found("ten.onnx"), graph("ten.onnx"));
    assert_eq!(found(""), graph("model.onnx"));
    for wrong in ["tenn.onnx", "../other.onnx.txt", "../1/ten.onnx", ".."] {
        let message = found(wrong).unwrap_err();
        assert!(message.contains("default_model_filename"), "{message}");
        assert!(message.contains(wrong), "{message}");
    }
}

#[test]
fn a_variant_is_taken_by_its_name_and_never_leaves_the_directory() {
    let export = directory(&[("onnx/model_q4.onnx", ""), ("onnx/model_fp16.onnx", "")]);
    let graph = |variant| graph(export.path(), variant);
    assert_eq!(graph(None).unwrap(), Path::new("onnx/model_q4.onnx"));
    assert_eq!(
        graph(Some("fp16")).unwrap(),
        Path::new("onnx/model_fp16.onnx")
    );
    assert_eq!(
        gpu_variant(export.path(), ModelKind::Decoder).as_deref(),
        Some("fp16")
    );
    assert!(graph(Some("int8")).is_err());
    assert!(graph(Some("../q4")).is_err());
}

#[test]
fn merged_decoders_and_the_only_graph_of_the_folder_are_found() {
    let taken = |names: &[&str], variant| {
        let files: Vec<_> = names.iter().map(|name| (*name, "")).collect();
        let found = graph(directory(&files).path(), variant).ok()?;
        Some(found.to_string_lossy().into_owned())
    };
    let merged = [
        "onnx/decoder_model.onnx",
        "onnx/decoder_with_past_model.onnx",
        "onnx/decoder_model_merged.onnx",
        "onnx/decoder_model_merged_quantized.onnx",
    ];
    assert_eq!(taken(&merged, None).as_deref(), Some(merged[2]));
    assert_eq!(
        taken(&merged, Some("quantized")).as_deref(),
        Some(merged[3])
    );
    assert_eq!(taken(&merged[..2], None), None, "two halves of a decoder");
    let only = ["onnx/model_O2.onnx"];
    assert_eq!(taken(&only, None).as_deref(), Some(only[0]));
    assert_eq!(
        taken(&["onnx/model.onnx", "net.onnx"], None).as_deref(),
        Some("onnx/model.onnx")
    );
}

#[test]
fn a_folder_with_a_graph_is_a_version_of_its_name() {
    let newest = |files: &[&str]| {
        let files: Vec<_> = files.iter().map(|name| (*name, "")).collect();
        let folder = directory(&files);
        let found = recognise(folder.path(), &RegisteredConfig::default(), None).ok()?;
        let name = found.0.strip_prefix(folder.path()).unwrap().to_owned();
        Some(name.to_string_lossy().into_owned())
    };
    let version = |name: &str| Some(name.to_owned());
    assert_eq!(newest(&["blue/model.onnx"]), version("blue"));
    assert_eq!(newest(&["v1.0/net.onnx", "docs/a.txt"]), version("v1.0"));
    assert_eq!(newest(&["v1.0/model.onnx", "2/model.onnx"]), version("2"));
    // Other forms of one model are no versions.
    for mark in ["config.json", "tokenizer.json", "onnx/model.onnx"] {
        assert_ne!(
            newest(&["int8/model.onnx", mark]),
            version("int8"),
            "{mark}"
        );
    }
    assert_eq!(newest(&[".git/model.onnx"]), None);
}

#[test]
fn a_decoder_in_two_graphs_is_taken_where_both_are_there() {
    let taken = |names: &[&str], variant| {
        let files: Vec<_> = names.iter().map(|name| (*name, "")).collect();
        let found = decoder_graphs(directory(&files).path(), variant).ok()?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Some((text(found.steps), found.prompts.map(text)))
    };
    let two = [
        "onnx/decoder_model.onnx",
        "onnx/decoder_with_past_model.onnx",
        "onnx/decoder_model_int8.onnx",
        "onnx/decoder_with_past_model_int8.onnx",
    ];
    let both = |steps: &str, prompts: &str| Some((steps.to_owned(), Some(prompts.to_owned())));
    assert_eq!(taken(&two, None), both(two[1], two[0]));
    assert_eq!(taken(&two, Some("int8")), both(two[3], two[2]));
    assert_eq!(taken(&two[..3], Some("int8")), None, "one of two");
    let alone = Some(("decoder_model.onnx".to_owned(), None));
    assert_eq!(taken(&["decoder_model.onnx", two[1]], None), alone, "apart");
    let merged = [two[0], two[1], "onnx/decoder_model_merged.onnx"];
    assert_eq!(taken(&merged, None), Some((merged[2].to_owned(), None)));
}

#[test]
fn files_of_other_formats_are_refused_with_the_command_that_exports_them() {
    let llama = r#"{"architectures":["LlamaForCausalLM"],"vocab_size":9}"#;
    let bert = r#"{"architectures":["BertModel"],"vocab_size":9}"#;
    let judge = r#"{"architectures":["BertForSequenceClassification"],"vocab_size":9}"#;
    for (files, texts) in [
        (
            &[
                ("config.json", llama),
                ("tokenizer.json", ""),
                ("model.safetensors", ""),
            ][..],
            [
                "safetensors",
                "optimum-cli export onnx",
                "--task text-generation-with-past",
            ],
        ),
        (
            &[
                ("config.json", judge),
                ("vocab.txt", ""),
                ("pytorch_model.bin", ""),
            ],
            [
                "PyTorch",
                "optimum-cli export onnx",
                "--task text-classification",
            ],
        ),
        (
            &[("model-00001-of-2.safetensors", ""), ("config.json", "{}")],
            ["safetensors", "optimum-cli export onnx", "DIRECTORY OUTPUT"],
        ),
        (
            &[("model.safetensors", ""), ("config.json", bert)],
            [
                "safetensors",
                "optimum-cli export onnx",
                "--task feature-extraction",
            ],
        ),
        (
            &[("x/model.safetensors", "")],
            ["in the folder 'x'", "config.json", "DIRECTORY OUTPUT"],
        ),
        (
            &[
                ("adapter_model.safetensors", ""),
                ("adapter_config.json", ""),
            ],
            ["PEFT adapter", "merge_and_unload", "base model"],
        ),
        (
            &[("model.cloudpickle", "")],
            ["pickle", "skl2onnx", "joblib"],
        ),
        (
            &[("tiny.Q4_0.gguf", "")],
            ["GGUF", "onnxruntime_genai.models.builder", ".gguf"],
        ),
        (
            &[("openvino_model.xml", ""), ("openvino_model.bin", "")],
            ["OpenVINO", "optimum-cli export onnx", "MODEL"],
        ),
        (&[("model.pkl", "")], ["pickle", "skl2onnx", "joblib"]),
        (&[("1/model.joblib", "")], ["pickle", "skl2onnx", "joblib"]),
    ] {
        let folder = directory(files);
        // The graph of a text model is only looked up when the model is loaded.
        let found = recognise(folder.path(), &RegisteredConfig::default(), None);
        let found = found.and_then(|(directory, _)| graph(&directory, None));
        let message = found.unwrap_err().message;
        for text in texts {
            assert!(message.contains(text), "{files:?}: {message}");
        }
    }
    let folder = directory(&[("a.gguf", "")]);
    let file = recognise(
        &folder.path().join("a.gguf"),
        &RegisteredConfig::default(),
        None,
    );
    assert!(file.unwrap_err().message.contains("GGUF"));
}

#[test]
fn a_model_of_text_without_its_tokenizer_is_no_graph() {
    let bert = r#"{"architectures":["BertModel"],"vocab_size":30522}"#;
    let llama = r#"{"architectures":["LlamaForCausalLM"],"vocab_size":9}"#;
    let with = |config, others: &[(&'static str, &'static str)]| {
        let files = [&[("config.json", config), ("model.onnx", "")], others].concat();
        kind(&files)
    };
    assert_eq!(with(bert, &[("vocab.txt", "")]), Ok(Layout::Encoder));
    for (config, others, text) in [
        (bert, &[][..], "neither tokenizer.json nor vocab.txt"),
        (bert, &[("spiece.model", "")], "beside spiece.model"),
        (llama, &[("vocab.txt", "")], "AutoTokenizer"),
    ] {
        let message = with(config, others).unwrap_err();
        assert!(message.contains(text), "{message}");
    }
    let tensors = ("model.toml", "task = \"tensors\"");
    let graph = Ok(Layout::Graph(PathBuf::from("model.onnx")));
    assert_eq!(with(bert, &[tensors]), graph);
    // An image model has no vocabulary.
    let sees = r#"{"architectures":["ViTModel"],"image_size":224}"#;
    assert_eq!(with(sees, &[]), graph);
}
