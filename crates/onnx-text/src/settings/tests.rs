use super::*;

fn read(files: &[(&str, &str)]) -> Result<EncoderSettings, PredictError> {
    read_with(files, &RegisteredConfig::default())
}

fn read_with(
    files: &[(&str, &str)],
    registered: &RegisteredConfig,
) -> Result<EncoderSettings, PredictError> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    EncoderSettings::read(directory.path(), registered)
}

#[test]
fn positions_begin_behind_the_padding_where_the_architecture_has_it_so() {
    let config = r#"{"model_type":"xlm-roberta","pad_token_id":1,"max_position_embeddings":514}"#;
    let settings = read(&[("config.json", config)]).unwrap();
    assert_eq!((settings.first_position, settings.max_length), (2, 512));
    let longer = read(&[("config.json", config), ("model.toml", "max_length = 513")]);
    assert!(longer.unwrap_err().message.contains("512 tokens"));
}

#[test]
fn a_sentence_transformer_is_understood() {
    let settings = read(&[
        ("config.json", r#"{"architectures":["BertModel"],"max_position_embeddings":512,"hidden_size":8}"#),
        ("modules.json", r#"[{"type":"sentence_transformers.models.Transformer"},{"type":"sentence_transformers.models.Pooling"}]"#),
        ("1_Pooling/config.json", r#"{"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false}"#),
        ("sentence_bert_config.json", r#"{"max_seq_length":256}"#),
        ("tokenizer_config.json", r#"{"model_max_length":1000000000000000019884624838656}"#),
        ("config_sentence_transformers.json", r#"{"prompts":{"query":"query: ","document":"passage: "}}"#),
    ])
    .unwrap();
    assert_eq!(settings.task, Task::Embed);
    assert_eq!(settings.pooling, Pooling::Cls);
    assert!(!settings.normalize, "it has no such module");
    assert_eq!(settings.max_length, 256);
    assert_eq!(settings.query_prefix, "query: ");
    assert_eq!(settings.passage_prefix, "passage: ");
}

#[test]
fn architectures_tell_the_task_and_model_toml_has_the_last_word() {
    let config = |architecture: &str, labels: &str| {
        format!(r#"{{"architectures":["{architecture}"],"id2label":{labels}}}"#)
    };
    let task = |config: &str| read(&[("config.json", config)]).unwrap().task;
    let one = r#"{"0":"LABEL_0"}"#;
    let two = r#"{"1":"good","0":"bad"}"#;
    assert_eq!(
        task(&config("BertForSequenceClassification", one)),
        Task::Rerank
    );
    let classifier = config("BertForSequenceClassification", two);
    assert_eq!(task(&classifier), Task::Classify);
    assert_eq!(
        task(&config("BertForTokenClassification", two)),
        Task::ClassifyTokens
    );
    assert_eq!(task(&config("BertForMaskedLM", "{}")), Task::EncodeSparse);
    let settings = read(&[("config.json", &classifier)]).unwrap();
    assert_eq!(settings.labels, ["bad", "good"]);
    assert_eq!(settings.activation, Activation::Softmax);
    let own = "task = \"rerank\"\nactivation = \"none\"\nmax_length = 9\nmax_batch_tokens = 7";
    let settings = read(&[("config.json", &classifier), ("model.toml", own)]).unwrap();
    assert_eq!((settings.task, settings.max_length), (Task::Rerank, 9));
    assert_eq!(
        (
            settings.activation,
            settings
                .budget(ExecutionDevice::Host, &SessionPool::ONE)
                .tokens,
        ),
        (Activation::None, 7)
    );
}

#[test]
fn an_embedding_model_that_was_first_trained_on_words_embeds() {
    let words = r#"{"architectures":["MPNetForMaskedLM"]}"#;
    let mut settings = read(&[("config.json", words)]).unwrap();
    assert_eq!(settings.task, Task::EncodeSparse);
    settings.suit(&["logits"]);
    assert_eq!(settings.task, Task::EncodeSparse);
    settings.suit(&["last_hidden_state"]);
    assert_eq!(settings.task, Task::Embed);
    let modules = |kind: &str| format!(r#"[{{"type":"sentence_transformers.models.{kind}"}}]"#);
    for (kind, task) in [
        ("Pooling", Task::Embed),
        ("SpladePooling", Task::EncodeSparse),
    ] {
        let settings = read(&[("config.json", words), ("modules.json", &modules(kind))]);
        assert_eq!(settings.unwrap().task, task);
    }
    let dense = read(&[("modules.json", &modules("Dense"))]).unwrap();
    assert_eq!(dense.beyond.as_deref(), Some("Dense"));
}

#[test]
fn a_ranker_scores_as_its_files_say_and_nameless_labels_get_names() {
    let ranker = |more: &str| {
        let config = format!(
            r#"{{"architectures":["BertForSequenceClassification"],"id2label":{{"0":"LABEL_0"}}{more}}}"#
        );
        read(&[("config.json", &config)]).map(|settings| settings.activation)
    };
    assert_eq!(ranker("").unwrap(), Activation::Sigmoid);
    let newer = r#","sentence_transformers":{"activation_fn":"torch.nn.modules.linear.Identity"}"#;
    assert_eq!(ranker(newer).unwrap(), Activation::None);
    let older = r#","sbert_ce_default_activation_function":"torch.nn.modules.linear.Identity""#;
    assert_eq!(ranker(older).unwrap(), Activation::None);
    let unknown = r#","sentence_transformers":{"activation_fn":"my.Own"}"#;
    assert!(ranker(unknown).unwrap_err().message.contains("activation"));

    let config = r#"{"architectures":["BertForSequenceClassification"]}"#;
    let mut settings = read(&[("config.json", config)]).unwrap();
    settings.name_labels(2);
    assert_eq!(settings.labels, ["LABEL_0", "LABEL_1"]);
}

#[test]
fn every_way_of_pooling_has_its_names() {
    for (text, pooling) in [
        (
            r#"{"pooling_mode_weightedmean_tokens":true}"#,
            Pooling::WeightedMean,
        ),
        (r#"{"pooling_mode":"weightedmean"}"#, Pooling::WeightedMean),
        (
            r#"{"pooling_mode_mean_sqrt_len_tokens":true}"#,
            Pooling::MeanSqrtLen,
        ),
        (
            r#"{"pooling_mode":"mean_sqrt_len_tokens"}"#,
            Pooling::MeanSqrtLen,
        ),
        (r#"{"pooling_mode_lasttoken":true}"#, Pooling::Last),
    ] {
        let settings = read(&[("1_Pooling/config.json", text)]).unwrap();
        assert_eq!(settings.pooling, pooling, "{text}");
    }
    let settings = read(&[("model.toml", "pooling = \"weighted_mean\"")]).unwrap();
    assert_eq!(settings.pooling, Pooling::WeightedMean);
}

#[test]
fn what_is_misspelt_is_refused() {
    let pooling = "1_Pooling/config.json";
    for (name, text) in [
        (pooling, r#"{"pooling_mode":"strange"}"#),
        (
            pooling,
            r#"{"pooling_mode_cls_token":true,"pooling_mode_max_tokens":true}"#,
        ),
        ("model.toml", "poling = \"mean\""),
        ("model.toml", "task = \"generate\""),
        ("model.toml", "pooling = \"sum\""),
        ("config.json", "{"),
    ] {
        let error = read(&[(name, text)]).unwrap_err();
        assert!(error.message.contains(name), "{}", error.message);
    }
}

#[test]
fn what_was_registered_wins_over_every_file() {
    let registered = |config: serde_json::Value| RegisteredConfig {
        task: Some(Task::Embed),
        config: Some(serde_json::from_value(config).unwrap()),
        triton: None,
    };
    let all =
        r#"{"architectures":["BertForMaskedLM"],"hidden_size":8,"max_position_embeddings":64}"#;
    let config = registered(serde_json::json!({
        "model_type": "bert", "framework_type": "huggingface_transformers",
        "embedding_dimension": 8, "pooling_mode": "CLS", "normalize_result": true,
        "query_prefix": "query: ", "passage_prefix": "", "all_config": all,
    }));
    let files = [
        (
            "config.json",
            r#"{"architectures":["BertForSequenceClassification"],"hidden_size":4}"#,
        ),
        (
            "model.toml",
            "task = \"rerank\"\npooling = \"max\"\nnormalize = false\npassage_prefix = \"p: \"",
        ),
    ];
    for files in [&files[..], &[]] {
        let settings = read_with(files, &config).unwrap();
        assert_eq!(
            (settings.task, settings.pooling),
            (Task::Embed, Pooling::Cls)
        );
        assert!(settings.normalize);
        assert_eq!((settings.max_length, settings.hidden_size), (64, Some(8)));
        assert_eq!(settings.query_prefix, "query: ");
        assert_eq!(settings.passage_prefix, "");
        settings.check_width(8).unwrap();
        let refused = settings.check_width(4).unwrap_err();
        assert!(
            refused.message.contains("embedding_dimension"),
            "{refused:?}"
        );
    }
    // Not normalized by default, as in OpenSearch.
    let plain = registered(serde_json::json!({ "pooling_mode": "mean" }));
    assert!(!read_with(&[], &plain).unwrap().normalize);
    assert!(read(&[]).unwrap().normalize);
    let strange = registered(serde_json::json!({ "pooling_mode": "strange" }));
    let refused = read_with(&[], &strange).unwrap_err();
    assert!(refused.message.contains("pooling_mode"), "{refused:?}");
    let broken = registered(serde_json::json!({ "all_config": "{" }));
    assert!(
        read_with(&[], &broken)
            .unwrap_err()
            .message
            .contains("all_config")
    );
}
