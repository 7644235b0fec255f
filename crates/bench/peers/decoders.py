"""The engine beside transformers and onnxruntime-genai on one decoder, always the likeliest token.

    decoders.py MODELS --engine DECODE_RATE [--tokens 64] [--rounds 3]

Each generates as many tokens for as many sequences as it is told to, in one batch where it has
batches, with one thread, and they take turns. The engine's sequences are separate requests.
Prints Markdown: tokens per second over all sequences.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnxruntime_genai as genai
import torch
from transformers import AutoModelForCausalLM

SEQUENCES = [1, 8, 32, 64]
CONTEXTS = [8, 600]


def prompt(length):
    return " ".join(f"word{7 * index % 900}" for index in range(length))


def ids(length):
    # The tokenizer's first five tokens are special.
    return [7 * index % 900 + 5 for index in range(length)]


class Transformers:
    def __init__(self, models):
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(models / "decoder").eval()

    def rate(self, sequences, context, tokens):
        batch = torch.tensor([ids(context)] * sequences)
        started = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=tokens,
                min_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert out.shape[1] == context + tokens
        return sequences * tokens / (time.perf_counter() - started)


class GenAI:
    def __init__(self, models):
        config = genai.Config(str(models / "decoder-genai"))
        config.overlay('{"model": {"decoder": {"session_options": {"intra_op_num_threads": 1}}}}')
        self.model = genai.Model(config)

    def rate(self, sequences, context, tokens):
        if 32 < sequences:
            # It takes no larger batch.
            return float("nan")
        parameters = genai.GeneratorParams(self.model)
        length = context + tokens
        parameters.set_search_options(
            batch_size=sequences, max_length=length, min_length=length, do_sample=False)
        started = time.perf_counter()
        generator = genai.Generator(self.model, parameters)
        generator.append_tokens([ids(context)] * sequences)
        for _ in range(tokens):
            generator.generate_next_token()
        assert len(generator.get_sequence(0)) == length
        return sequences * tokens / (time.perf_counter() - started)


class Engine:
    """`decode_rate`, one process for each context; `kind` is `bare` or `engine`."""

    def __init__(self, models, program, kind):
        self.kind = kind
        self.processes = {
            context: subprocess.Popen(
                [str(program), str(models / "decoder-genai"), prompt(context)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for context in CONTEXTS
        }

    def rate(self, sequences, context, tokens):
        process = self.processes[context]
        process.stdin.write(f"{self.kind} {sequences} {tokens}\n")
        process.stdin.flush()
        return float(process.stdout.readline())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--engine", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    args.models = args.models.resolve()
    ours = Engine(args.models, args.engine, "engine")
    bare = Engine(args.models, args.engine, "bare")
    runners = {
        "bare slot loop": bare, "Volley's engine": ours,
        "onnxruntime-genai": GenAI(args.models), "transformers": Transformers(args.models),
    }
    print("| tokens/s | " + " | ".join(runners) + " | engine : bare |")
    print("| --- |" + " ---: |" * (len(runners) + 1))
    for context in CONTEXTS:
        for sequences in SEQUENCES:
            rates = {name: [] for name in runners}
            for round in range(args.rounds + 1):
                for name, runner in runners.items():
                    rate = runner.rate(sequences, context, args.tokens)
                    if round:
                        rates[name].append(rate)
            ratio = [ours / bare for ours, bare in zip(
                rates["Volley's engine"], rates["bare slot loop"])]
            cells = [f"{statistics.median(rates[name]):.0f}" for name in runners]
            cells.append(f"{statistics.median(ratio):.2f}")
            print(f"| {sequences} sequences, {context} tokens before | " + " | ".join(cells) + " |",
                  flush=True)


if __name__ == "__main__":
    main()
