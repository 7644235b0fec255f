//! Reasoning tokens, and errors of single answers.

use std::sync::Arc;

use futures::StreamExt;
use volley_backend::Backend;
use volley_types::*;

use crate::generate::{STORY, each, endless, request, rows, storyteller, tokens};
use crate::setup;

/// A copy of the storyteller whose chat template ends with `end`.
async fn storyteller_with(end: &str) -> (tempfile::TempDir, Arc<dyn Backend>) {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(setup::model_dir("storyteller")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let path = copy.join("chat_template.jinja");
    let template = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{}{end}", template.trim_end())).unwrap();
    let model = setup::load(&copy).await.unwrap();
    (folder, model)
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_that_the_chat_template_marks_is_counted() {
    // The prompt opens the reasoning and nothing closes it, or the prompt closes it too.
    for (end, all) in [
        ("<think>\n", true),
        ("<think>\n\n</think>\n\n", false),
        ("", false),
    ] {
        let (_folder, model) = storyteller_with(end).await;
        let batches = rows(&model, STORY, &[tokens(12), endless()]).await;
        let usage = each(&batches).find_map(|row| row.usage()).unwrap();
        assert_eq!(usage.completion_tokens, 12, "{end}");
        assert_eq!(usage.reasoning_tokens, if all { 12 } else { 0 }, "{end}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_fails_beside_others_says_why_in_full() {
    let model = storyteller().await;
    let long = "word ".repeat(2_000);
    let asked = request(&[STORY, &long], &[tokens(4)]);
    let answer = model.predict(asked).await.unwrap();
    let batches: Vec<_> = answer.map(Result::unwrap).collect().await;
    let failures: Vec<_> = each(&batches)
        .filter_map(|row| Some((row.item(), row.failure()?)))
        .collect();
    let [(1, error)] = failures.as_slice() else {
        panic!("{failures:?}")
    };
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert_eq!(error.reason, Some(ErrorReason::ContextLength));
}
