"""lm-eval against a server of completions: every log-likelihood is the one that ONNX Runtime
computes from the model's files. Prints a line for each way of calling."""

import argparse
import json
import os
import re
import tempfile
from pathlib import Path

for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ[name] = "1"
os.environ.setdefault("HF_HOME", tempfile.mkdtemp())
os.environ.setdefault("OPENAI_API_KEY", "unused")

import lm_eval
import numpy
import onnxruntime
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

HERE = Path(__file__).parent
TASKS = ["choices", "endings", "rolling"]
BEGINNING = "Once there was a small fox who lived near the bridge."
CONTEXT = 1024
# Of a sum over some dozens of tokens: the servers' graphs are quantised.
TOLERANCE = 0.02


class Model:
    """The model, run by hand: a whole text in one run."""

    def __init__(self, files):
        self.tokenizer = AutoTokenizer.from_pretrained(files)
        self.session = onnxruntime.InferenceSession(files / "model.onnx")
        self.end = self.tokenizer.eos_token_id
        config = json.loads((files / "genai_config.json").read_text())["model"]["decoder"]
        self.past = (1, config["num_key_value_heads"], 0, config["head_size"])

    def logprobs(self, tokens):
        feeds = {}
        for port in self.session.get_inputs():
            kind = {"tensor(float)": numpy.float32, "tensor(float16)": numpy.float16}
            if port.name == "input_ids":
                feeds[port.name] = numpy.array([tokens], dtype=numpy.int64)
            elif port.name == "attention_mask":
                feeds[port.name] = numpy.ones((1, len(tokens)), dtype=numpy.int64)
            else:
                feeds[port.name] = numpy.zeros(self.past, dtype=kind[port.type])
        [logits] = self.session.run(["logits"], feeds)
        logits = logits[0].astype(numpy.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        return logits - numpy.log(numpy.exp(logits).sum(axis=-1, keepdims=True))

    def likelihood(self, tokens, start):
        """How likely the tokens from `start` on are, whether each is the likeliest, and whether the
        text would end behind them."""
        scores = self.logprobs(tokens)
        places = range(start, len(tokens))
        total = sum(scores[place - 1][tokens[place]] for place in places)
        greedy = all(scores[place - 1].argmax() == tokens[place] for place in places)
        return total, greedy, scores[-1].argmax() == self.end

    def story(self):
        """A whole story, up to its end."""
        tokens = self.tokenizer(BEGINNING, add_special_tokens=False).input_ids
        while tokens[-1] != self.end and len(tokens) < 400:
            tokens.append(int(self.logprobs(tokens)[-1].argmax()))
        assert tokens[-1] == self.end, "the story has an end"
        return self.tokenizer.decode(tokens[:-1])

    def of_pair(self, context, continuation):
        """As lm-eval cuts a pair into tokens."""
        spaces = len(context) - len(context.rstrip())
        if spaces:
            continuation = context[-spaces:] + continuation
            context = context[:-spaces]
        encode = lambda text: self.tokenizer(text, add_special_tokens=False).input_ids
        whole = encode(context + continuation)
        return self.likelihood(whole, len(encode(context)))

    def of_text(self, text):
        """As lm-eval rolls over a text: behind a prefix token, and every token counts."""
        prefix = self.tokenizer.bos_token_id
        prefix = self.end if prefix is None else prefix
        tokens = self.tokenizer(text, add_special_tokens=False).input_ids
        return self.likelihood([prefix, *tokens], 1)


def write_tasks(folder, story):
    """The tasks, with contexts of every length up to a whole story."""
    sentences = re.split(r"(?<=[.!?\"]) (?=[A-Z\"])", story)
    assert len(sentences) > 3, sentences
    rows = []
    for count in range(1, len(sentences)):
        context = " ".join(sentences[:count])
        true = " " + sentences[count]
        others = [" " + sentences[count - 1], " The the fox fox.", " é…"]
        rows.append({"context": context, "choices": [true, *others]})
    # The whole rest is behind one context: an end follows it.
    rest = " " + " ".join(sentences[1:])
    rows.append({"context": sentences[0], "choices": [rest, " No.", " Yes.", " A"]})
    data = folder / "stories.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in TASKS:
        text = (HERE / f"{task}.yaml").read_text()
        (folder / f"{task}.yaml").write_text(text.replace("stories.jsonl", str(data)))


def flat(answer):
    """An answer without the lists of one that lm-eval keeps it in."""
    while isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    return tuple(answer) if isinstance(answer, (list, tuple)) else (answer,)


def check(model, samples):
    """Compares each log-likelihood; how many there were, and how many were followed by an end."""
    compared = ends = 0
    for sample in samples["volley_choices"] + samples["volley_endings"]:
        answers = [flat(answer) for answer in sample["resps"]]
        for pair, (got, got_greedy) in zip(sample["arguments"], answers, strict=True):
            context, continuation = pair
            want, greedy, end = model.of_pair(context, continuation)
            assert abs(got - want) < TOLERANCE, (context, continuation, got, want)
            assert got_greedy == greedy, (context, continuation, got_greedy, greedy)
            compared, ends = compared + 1, ends + int(end)
    for sample in samples["volley_rolling"]:
        [(text,)] = sample["arguments"]
        [got] = flat(sample["resps"])
        want, _, end = model.of_text(text)
        assert abs(got - want) < TOLERANCE, (text, got, want)
        compared, ends = compared + 1, ends + int(end)
    return compared, ends


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--files", type=Path, required=True)
    arguments = parser.parse_args()
    model = Model(arguments.files)
    folder = Path(tempfile.mkdtemp())
    write_tasks(folder, model.story())
    ways = {
        "tokens": {},
        "tokens, four at a time": {"batch_size": 4},
        "tokens, four at once": {"num_concurrent": 4},
        "texts": {"tokenized_requests": False},
    }
    for way, more in ways.items():
        answer = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={
                "model": arguments.model,
                "base_url": f"{arguments.url}/v1/completions",
                "tokenizer": str(arguments.files),
                "tokenizer_backend": "huggingface",
                "max_length": CONTEXT,
                "max_retries": 1,
                **more,
            },
            tasks=[f"volley_{task}" for task in TASKS],
            task_manager=TaskManager(include_path=str(folder), include_defaults=False),
            log_samples=True,
            bootstrap_iters=0,
        )
        compared, ends = check(model, answer["samples"])
        assert ends > 0, "an end of the text is behind one of the continuations"
        print(f"{way}: {compared} log-likelihoods are the model's, {ends} before an end")


if __name__ == "__main__":
    main()
