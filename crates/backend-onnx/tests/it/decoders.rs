//! Decoders in the usual export format: past keys and values as inputs, present ones as outputs.

use std::path::Path;

use futures::future::join_all;
use serde::Deserialize;
use volley_backend_onnx::OnnxConfig;
use volley_onnx_generate::bare::BareModel;
use volley_types::*;

use crate::generate::{Story, endless, read, request, tell, tokens};
use crate::setup;

/// The greedy generation of `transformers` with the same weights.
#[derive(Deserialize)]
struct Expected {
    prompt: String,
    ids: Vec<u32>,
    text: String,
}

fn expected() -> Vec<Expected> {
    expected_of("plain-decoder")
}

fn expected_of(model: &str) -> Vec<Expected> {
    let path = setup::test_model(model).join("expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Normalizes incomplete characters of a random model: a stream marks them one by one, a whole text
/// marks them together.
fn legible(text: &str) -> String {
    text.replace(char::REPLACEMENT_CHARACTER, "")
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_those_of_transformers_alone_and_in_company() {
    let directory = setup::test_model("plain-decoder");
    let config = OnnxConfig {
        slots: 2,
        ..setup::config()
    };
    let model = setup::load_with(&directory, config).await.unwrap();
    let expected = expected();
    for case in &expected {
        let bare = BareModel::load(&setup::runtime(), &directory, &case.prompt, config);
        let (_, ids) = bare.unwrap().run(2, case.ids.len()).unwrap();
        assert_eq!(ids, [case.ids.clone(), case.ids.clone()], "token for token");
    }
    // Three generations of different lengths in two slots: slots are freed, moved and reused.
    let lengths = [24, 5, 17];
    let stories = expected.iter().zip(lengths).map(|(case, length)| {
        let model = &model;
        async move {
            let story = tell(model, &case.prompt, &[tokens(length), endless()]).await;
            story.unwrap()
        }
    });
    let stories: Vec<Story> = join_all(stories).await;
    for ((story, case), length) in stories.iter().zip(&expected).zip(lengths) {
        let text = legible(&case.text);
        assert!(
            text.starts_with(&legible(&story.text())),
            "{}",
            story.text()
        );
        let length = u32::try_from(length).unwrap();
        assert_eq!(story.usage.unwrap().completion_tokens, length);
    }
    assert_eq!(legible(&stories[0].text()), legible(&expected[0].text));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_cache_of_half_precision_gives_the_tokens_of_transformers_too() {
    let directory = setup::test_model("half-decoder");
    let model = setup::load(&directory).await.unwrap();
    let cases = expected_of("half-decoder");
    let stories = cases.iter().map(|case| async {
        let count = i64::try_from(case.ids.len()).unwrap();
        let story = tell(&model, &case.prompt, &[tokens(count), endless()]).await;
        story.unwrap()
    });
    for (story, case) in join_all(stories).await.iter().zip(&cases) {
        assert_eq!(legible(&story.text()), legible(&case.text));
        let bare = BareModel::load(&setup::runtime(), &directory, &case.prompt, setup::config());
        let (_, ids) = bare.unwrap().run(2, case.ids.len()).unwrap();
        assert_eq!(ids, [case.ids.clone(), case.ids.clone()], "token for token");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn model_toml_has_the_last_word_and_a_wrong_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copied");
    let source = setup::test_model("plain-decoder");
    for name in [
        "config.json",
        "tokenizer.json",
        "onnx/model.onnx",
        "onnx/model_fp16.onnx",
    ] {
        let target = copy.join(name);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(source.join(name), target).unwrap();
    }
    let say = |text: &str| std::fs::write(copy.join("model.toml"), text).unwrap();
    say("variant = 'fp16'\nmax_context = 32\n[parameters]\nmax_tokens = 3\n");
    let model = setup::load(&copy).await.unwrap();
    let story = tell(&model, "Hello!", &[endless()]).await.unwrap();
    assert_eq!(story.usage.unwrap().completion_tokens, 3);
    let long = tell(&model, "Hello!", &[tokens(99), endless()]).await;
    let usage = long.unwrap().usage.unwrap();
    assert_eq!(usage.prompt_tokens + usage.completion_tokens, 32);
    say("pooling = 'mean'\n");
    let error = setup::load(&copy).await.err().unwrap();
    assert!(
        error
            .message
            .contains("'pooling' is not a key of a decoder")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variant_with_half_precision_is_served_and_an_unknown_one_refused() {
    let directory = setup::test_model("plain-decoder");
    let variant = |name: &str| {
        let name = ParamValue::Text(name.to_owned());
        [("variant".to_owned(), name)].into_iter().collect()
    };
    let load = |name| setup::load_as(&directory, setup::config(), variant(name));
    let half = load("fp16").await.unwrap();
    let prompt = &expected()[0].prompt;
    let story = tell(&half, prompt, &[tokens(8), endless()]).await.unwrap();
    assert_eq!(story.usage.unwrap().completion_tokens, 8);
    let error = load("int3").await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("variant"), "{}", error.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_context_ends_a_generation_and_several_prompts_are_items() {
    let directory = setup::test_model("plain-decoder");
    let model = setup::load(&directory).await.unwrap();
    let long = tell(&model, "Hello!", &[tokens(127), endless()])
        .await
        .unwrap();
    assert_eq!(long.finish, Some(FinishReason::Length));
    let usage = long.usage.unwrap();
    assert_eq!(usage.prompt_tokens + usage.completion_tokens, 128);
    let both = request(&["Hello!", "Once"], &[tokens(3), endless()]);
    let both = read(model.predict(both).await.unwrap()).await.unwrap();
    assert_eq!(both.usage.unwrap().completion_tokens, 6);
}

/// The token ids of each case's answer must equal those of `transformers`.
async fn tells_as_expected(name: &str) {
    let directory = setup::test_model(name);
    let config = OnnxConfig {
        slots: 2,
        ..setup::config()
    };
    let model = setup::load_with(&directory, config).await.unwrap();
    let cases = expected_of(name);
    let raw = ("raw", ParamValue::Bool(true));
    let stories = cases.iter().map(|case| {
        let (model, raw) = (&model, raw.clone());
        async move {
            let count = i64::try_from(case.ids.len()).unwrap();
            tell(model, &case.prompt, &[tokens(count), endless(), raw]).await
        }
    });
    for (story, case) in join_all(stories).await.into_iter().zip(&cases) {
        assert_eq!(
            legible(&story.unwrap().text()),
            legible(&case.text),
            "{name}"
        );
    }
    // A continued prompt starts with the earlier answer.
    let long = format!("{} ", cases[2].prompt).repeat(5);
    let parameters = [tokens(5), endless()];
    let twice = [&long, &long].map(|prompt| tell(&model, prompt, &parameters));
    let twice = join_all(twice).await.into_iter().map(Result::unwrap);
    let texts: Vec<String> = twice.map(|story| story.text()).collect();
    assert_eq!(texts[0], texts[1], "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_graphs_that_were_merged_into_one_are_served() {
    tells_as_expected("merged-decoder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_that_reads_one_token_behind_a_past_reads_whole_prompts() {
    tells_as_expected("once-decoder").await;
    let taken_over = taken_over(&setup::test_model("once-decoder")).await;
    assert_eq!(taken_over, 0, "nothing is taken over");
}

/// Number of reused tokens when a long prompt is read for the second time.
async fn taken_over(directory: &Path) -> u32 {
    let model = setup::load(directory).await.unwrap();
    let long = "Once upon a time ".repeat(8);
    let mut cached = 0;
    for _ in 0..2 {
        let story = tell(&model, &long, &[tokens(2), endless()]).await.unwrap();
        let usage = story.usage.unwrap();
        assert!(64 < usage.prompt_tokens, "{usage:?}");
        cached = usage.cached_tokens;
    }
    cached
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_graphs_one_reads_prompts_and_the_other_goes_on() {
    tells_as_expected("paired-decoder").await;
    let directory = setup::test_model("paired-decoder");
    for case in expected_of("paired-decoder") {
        let bare = BareModel::load(&setup::runtime(), &directory, &case.prompt, setup::config());
        let (_, ids) = bare.unwrap().run(2, case.ids.len()).unwrap();
        assert_eq!(ids, [case.ids.clone(), case.ids.clone()], "token for token");
    }
    // The other graph treats all tokens as the last one, so it must not get two.
    assert_eq!(taken_over(&directory).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_graphs_the_one_for_prompts_is_dropped_where_the_other_reads_them_too() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copied");
    std::fs::create_dir_all(copy.join("onnx")).unwrap();
    let (paired, plain) = ("paired-decoder", "plain-decoder");
    for (model, name, target) in [
        (paired, "config.json", "config.json"),
        (paired, "tokenizer.json", "tokenizer.json"),
        (paired, "onnx/decoder_model.onnx", "onnx/decoder_model.onnx"),
        (
            plain,
            "onnx/model.onnx",
            "onnx/decoder_with_past_model.onnx",
        ),
    ] {
        std::fs::copy(setup::test_model(model).join(name), copy.join(target)).unwrap();
    }
    let memory = async |directory: &Path| setup::load(directory).await.unwrap().memory_bytes();
    let (both, one) = (
        memory(&setup::test_model(paired)).await,
        memory(&copy).await,
    );
    let weights = std::fs::metadata(copy.join("onnx/decoder_model.onnx")).unwrap();
    assert!(weights.len() <= both - one, "{both} and {one}");
    assert_eq!(memory(&setup::test_model(plain)).await, one);
    assert_eq!(taken_over(&copy).await, 64, "it reads on behind a past");
    let model = setup::load(&copy).await.unwrap();
    let case = &expected()[0];
    let count = i64::try_from(case.ids.len()).unwrap();
    let story = tell(&model, &case.prompt, &[tokens(count), endless()]).await;
    assert_eq!(legible(&story.unwrap().text()), legible(&case.text));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_cache_is_told_positions_where_the_graph_wants_them() {
    tells_as_expected("positioned-decoder").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_chat_templates_the_usual_one_is_taken_and_the_one_for_tools_with_tools() {
    let model = setup::load(&setup::test_model("merged-decoder"))
        .await
        .unwrap();
    let count = async |parameters: &[(&str, ParamValue)]| {
        let counting = ("count_tokens", ParamValue::Bool(true));
        let parameters = [parameters, &[counting]].concat();
        tell(&model, "Hello!", &parameters)
            .await
            .unwrap()
            .usage
            .unwrap()
            .prompt_tokens
    };
    let tools = r#"[{"type": "function", "function": {"name": "river", "parameters": {}}}]"#;
    let plain = count(&[]).await;
    let with_tools = count(&[("tools", ParamValue::Json(tools.to_owned()))]).await;
    assert!(plain < with_tools, "{plain} and {with_tools}");
}
