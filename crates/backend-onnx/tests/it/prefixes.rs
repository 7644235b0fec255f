//! Prompts reuse the KV cache of earlier prompts with the same prefix.

use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::join_all;
use volley_backend::Backend;
use volley_backend_onnx::OnnxConfig;

use crate::generate::{Story, endless, request, storyteller, tell, tokens};
use crate::setup;

/// A prompt of several hundred tokens that shares everything but its end with the others.
fn prompt(question: &str) -> String {
    let instructions = "Tell me a story about a fox, a crow and a goat. ".repeat(14);
    format!("{instructions}{question}")
}

async fn without_reuse(directory: &Path) -> Arc<dyn Backend> {
    let config = OnnxConfig {
        prefix_reuse: false,
        ..setup::config()
    };
    setup::load_with(directory, config).await.unwrap()
}

fn cached(story: &Story) -> u32 {
    story.usage.unwrap().cached_tokens
}

/// Asks one question after the other, and returns each answer with and without reuse.
async fn both(directory: &Path, questions: &[&str]) -> Vec<(Story, Story)> {
    let (model, alone) = (
        setup::load(directory).await.unwrap(),
        without_reuse(directory).await,
    );
    let mut stories = Vec::new();
    for question in questions {
        let (prompt, parameters) = (prompt(question), [tokens(12), endless()]);
        let first = tell(&model, &prompt, &parameters).await.unwrap();
        let second = tell(&alone, &prompt, &parameters).await.unwrap();
        stories.push((first, second));
    }
    stories
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_takes_over_what_it_shares_and_the_answer_is_the_same() {
    let questions = ["Is it red?", "Is it old and grey?", "Is it red?", "Now!"];
    let stories = both(&setup::model_dir("storyteller"), &questions).await;
    for (index, (story, alone)) in stories.iter().enumerate() {
        assert_eq!(story.ids, alone.ids, "token for token");
        assert_eq!(cached(alone), 0);
        let (cached, all) = (cached(story), story.usage.unwrap().prompt_tokens);
        let expected = if index == 0 { 0..1 } else { all - 100..all };
        assert!(expected.contains(&cached), "{cached} of {all}");
        assert_eq!(cached % 64, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_cache_is_cut_and_shared_too() {
    let directory = setup::test_model("plain-decoder");
    let (model, alone) = (
        setup::load(&directory).await.unwrap(),
        without_reuse(&directory).await,
    );
    let begins = "a b c d e f g h i j k l m n o p q r s t u v w x y z ".repeat(2);
    for (index, end) in ["one", "two", "one more"].into_iter().enumerate() {
        let (prompt, parameters) = (format!("{begins}{end}"), [tokens(6), endless()]);
        let story = tell(&model, &prompt, &parameters).await.unwrap();
        let expected = tell(&alone, &prompt, &parameters).await.unwrap();
        assert_eq!(story.ids, expected.ids, "token for token");
        assert_eq!(cached(&story) != 0, index != 0, "{:?}", story.usage);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_and_running_neighbours_share_one_reading() {
    let model = storyteller().await;
    let long = prompt("Go on.");
    let mut running = model
        .predict(request(&[&long], &[tokens(300), endless()]))
        .await
        .unwrap();
    running.next().await.unwrap().unwrap();
    // Four slots, one of them busy: these requests use the other three in turn.
    let alone = without_reuse(&setup::model_dir("storyteller")).await;
    let stories = (0..9).map(|index| {
        let prompt = prompt(&format!("And the {index}th?"));
        let (model, alone) = (&model, &alone);
        async move {
            let parameters = [tokens(10 + index), endless()];
            let story = tell(model, &prompt, &parameters).await.unwrap();
            assert!(0 < cached(&story), "{:?}", story.usage);
            (story, tell(alone, &prompt, &parameters).await.unwrap())
        }
    });
    for (story, alone) in join_all(stories).await {
        assert_eq!(story.ids, alone.ids, "token for token");
    }
    drop(running);
}
