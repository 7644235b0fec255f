//! Many concurrent generations on one thread with four slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use volley_types::*;

use crate::generate::{STORY, Story, endless, read, request, storyteller, tell, tokens};
use crate::setup;

const LIMIT: Duration = Duration::from_secs(60);

fn sampled(seed: i64, count: i64) -> [(&'static str, ParamValue); 5] {
    [
        tokens(count),
        ("seed", ParamValue::Int(seed)),
        ("temperature", ParamValue::Float(1.0)),
        ("top_p", ParamValue::Float(0.95)),
        ("repetition_penalty", ParamValue::Float(1.1)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_joins_the_running_decode() {
    let model = storyteller().await;
    let mut first = model
        .predict(request(&[STORY], &[tokens(900), endless()]))
        .await
        .unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let count = told.clone();
    let reader = tokio::spawn(async move {
        let mut story = Story::default();
        while let Some(batch) = first.next().await {
            story.add(&batch.unwrap());
            count.store(story.rows, Ordering::Relaxed);
        }
        story
    });
    while told.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let second = tell(&model, "Hello!", &[tokens(5)]).await.unwrap();
    assert_eq!(second.usage.unwrap().completion_tokens, 5);
    let so_far = told.load(Ordering::Relaxed);
    assert!(so_far < 900, "the first was still running");
    let first = tokio::time::timeout(LIMIT, reader).await.unwrap().unwrap();
    assert_eq!(first.usage.unwrap().completion_tokens, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_story_is_the_same_alone_and_in_a_crowd_that_comes_and_goes() {
    let model = storyteller().await;
    let prompts: Vec<String> = ["fox", "crow", "goat", "owl", "bear", "hen", "duck", "cat"]
        .iter()
        .map(|animal| format!("Tell me a story about a {animal}."))
        .collect();
    let parameters = |index: usize| match index % 2 {
        0 => vec![tokens(40 + 20 * index as i64), endless()],
        _ => sampled(index as i64, 40 + 20 * index as i64).to_vec(),
    };
    let mut alone = Vec::new();
    for (index, prompt) in prompts.iter().enumerate() {
        alone.push(
            tell(&model, prompt, &parameters(index))
                .await
                .unwrap()
                .text(),
        );
    }
    // Some readers leave in the middle, others sleep until the end, so that slots move and pause.
    let leaver = async {
        for rows in [3, 30, 80] {
            let long = request(&[STORY], &[tokens(500), endless()]);
            let mut chunks = model.predict(long).await.unwrap();
            for _ in 0..rows {
                // A slow reader gets many rows at once, and may reach the end.
                if chunks.next().await.transpose().unwrap().is_none() {
                    break;
                }
            }
        }
    };
    let sleepy = request(&[STORY], &[tokens(300), endless()]);
    let mut sleeper = model.predict(sleepy).await.unwrap();
    sleeper.next().await.unwrap().unwrap();
    let tellers = prompts.iter().enumerate();
    let tellers = tellers.map(|(index, prompt)| {
        let (model, parameters) = (&model, parameters(index));
        async move { tell(model, prompt, &parameters).await.unwrap().text() }
    });
    let crowd = async { futures::join!(join_all(tellers), leaver) };
    let (crowd, ()) = tokio::time::timeout(LIMIT, crowd).await.unwrap();
    assert_eq!(crowd, alone);
    let mut rest = String::new();
    while let Some(batch) = sleeper.next().await {
        for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
            rest.push_str(row.text().unwrap_or_default());
        }
    }
    let whole = tell(&model, STORY, &[tokens(300), endless()])
        .await
        .unwrap();
    assert!(whole.text().ends_with(&rest), "the sleeper missed nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_leaves_frees_the_slot_at_once() {
    let model = storyteller().await;
    let long = [tokens(1_000), endless()];
    let mut readers = Vec::new();
    for _ in 0..setup::config().slots {
        let mut chunks = model.predict(request(&[STORY], &long)).await.unwrap();
        chunks.next().await.unwrap().unwrap();
        readers.push(chunks);
    }
    let mut waiting = model.predict(request(&["Hello!"], &[])).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), waiting.next()).await;
    assert!(early.is_err(), "all slots are taken by readers who sleep");
    readers.pop();
    let left = Instant::now();
    waiting.next().await.unwrap().unwrap();
    assert!(
        left.elapsed() < Duration::from_secs(10),
        "{:?}",
        left.elapsed()
    );
    drop(readers);
    let short = [tokens(20)];
    let stories = (0..setup::config().slots).map(|_| tell(&model, STORY, &short));
    let told = tokio::time::timeout(LIMIT, join_all(stories))
        .await
        .unwrap();
    assert!(told.into_iter().all(|story| story.unwrap().last));
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_who_sleep_hold_up_nobody_and_miss_nothing() {
    let model = storyteller().await;
    let long = [tokens(400), endless()];
    let mut sleepers = Vec::new();
    for _ in 1..setup::config().slots {
        let mut sleeper = model.predict(request(&[STORY], &long)).await.unwrap();
        let mut story = Story::default();
        story.add(&sleeper.next().await.unwrap().unwrap());
        sleepers.push((sleeper, story));
    }
    let awake = tokio::time::timeout(LIMIT, tell(&model, STORY, &long)).await;
    let awake = awake.unwrap().unwrap();
    assert_eq!(awake.usage.unwrap().completion_tokens, 400);
    for (mut sleeper, mut story) in sleepers {
        while let Some(batch) = sleeper.next().await {
            story.add(&batch.unwrap());
        }
        assert_eq!(story.usage.unwrap().completion_tokens, 400);
        assert_eq!(first(&story), first(&awake));
    }
}

/// The first story in a text. After it the model repeats itself, and two tokens have nearly equal
/// logits, so that the number of rows of a step decides between them.
fn first(story: &Story) -> String {
    let text = story.text();
    let (first, _) = text.split_once("Tell me").expect("more than one story");
    first.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn more_items_than_slots_take_turns() {
    let model = storyteller().await;
    let prompts = vec![STORY; 3 * setup::config().slots];
    let chunks = model
        .predict(request(&prompts, &[tokens(30)]))
        .await
        .unwrap();
    let story = tokio::time::timeout(LIMIT, read(chunks))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        story.usage.unwrap().completion_tokens as usize,
        30 * prompts.len()
    );
}

/// Short prompts of one request wait together, and are prefilled in one run.
#[tokio::test(flavor = "multi_thread")]
async fn prompts_that_are_read_together_are_answered_as_each_alone() {
    let prompts = [
        "Tell me a story about a fox.",
        "Hello!",
        "Who is it?",
        "Tell me a long story about an owl and a crow.",
        "Once upon a time",
        "And then?",
        "Tell me a story about a goat.",
        "Why?",
    ];
    for prefix_reuse in [true, false] {
        let config = volley_backend_onnx::OnnxConfig {
            slots: 8,
            prefix_reuse,
            ..setup::config()
        };
        let directory = setup::model_dir("storyteller");
        let model = setup::load_with(&directory, config).await.unwrap();
        let mut alone = Vec::new();
        for prompt in prompts {
            alone.push(tell(&model, prompt, &[tokens(30)]).await.unwrap().text());
        }
        for round in 0..3 {
            let answer = model.predict(request(&prompts, &[tokens(30)]));
            let mut answer = answer.await.unwrap();
            let mut together = vec![String::new(); prompts.len()];
            while let Some(batch) = answer.next().await {
                for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
                    together[row.item() as usize].push_str(row.text().unwrap_or_default());
                }
            }
            assert_eq!(
                together, alone,
                "round {round}, prefix reuse {prefix_reuse}"
            );
        }
    }
}
