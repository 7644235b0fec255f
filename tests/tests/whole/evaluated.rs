//! lm-eval, the harness that models are evaluated with, against a local model's completions.

use volley_tests::judges::{python, root, steps};

use crate::clients::Up;

#[tokio::test(flavor = "multi_thread")]
async fn lm_eval_finds_the_log_likelihoods_that_the_model_itself_gives() {
    let up = Up::start().await;
    let url = format!("http://{}", up.rest);
    let mut judge = python("venv-lm-eval", "get-lm-eval", "tests/python/lm_eval");
    judge.args(["--url", &url, "--model", "storyteller", "--files"]);
    judge.arg(root().join("models/storyteller"));
    // Four ways of calling: token ids one at a time, several in one request and at once, and texts.
    assert_eq!(steps(&mut judge).await, 4);
}
