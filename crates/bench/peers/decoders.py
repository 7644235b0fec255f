"""The engine beside transformers and onnxruntime-genai on one decoder, always the likeliest token.

    decoders.py MODELS --engine DECODE_RATE [--tokens 64] [--rounds 3] [--only Volley]
                [--sequences 1,8,32,64] [--contexts 8,600] [--parts rates,churn,gaps]
                [--threads 1] [--cpu]

`--only Volley` leaves the peers out. `--parts` chooses among the tables: those three, and `crowd`.
With `--cpu`, rates are tokens in a second of CPU time, of all threads of a process: for machines
that others use too.

Each generates as many tokens for as many sequences as it is told to, in one batch where it has
batches, with as many threads as `--threads` says, and they take turns. The engine's sequences are
separate requests. Prints Markdown: tokens per second over all sequences; the same while sequences
come and go; the milliseconds between two rows of a reader while long prompts arrive; and the rate
of two decoders on the same cores (`crowd`).
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import threading
import time

SEQUENCES = [1, 8, 32, 64]
CONTEXTS = [8, 600]
PARTS = ["rates", "churn", "gaps"]
ALL_PARTS = [*PARTS, "crowd"]


def prompt(length):
    return " ".join(f"word{7 * index % 900}" for index in range(length))


def ids(length):
    # The tokenizer's first five tokens are special.
    return [7 * index % 900 + 5 for index in range(length)]


class Transformers:
    def __init__(self, models, threads):
        import torch
        from transformers import AutoModelForCausalLM
        self.torch = torch
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(models / "decoder").eval()

    def rate(self, sequences, context, tokens):
        torch = self.torch
        batch = torch.tensor([ids(context)] * sequences)
        started = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=tokens,
                min_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert out.shape[1] == context + tokens
        return sequences * tokens / (time.perf_counter() - started)

    def cpu(self, _):
        return time.process_time()


class GenAI:
    def __init__(self, models, threads):
        import onnxruntime_genai as genai
        self.genai = genai
        config = genai.Config(str(models / "decoder-genai"))
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self.model = genai.Model(config)

    def rate(self, sequences, context, tokens):
        if 32 < sequences:
            # It takes no larger batch.
            return float("nan")
        genai = self.genai
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

    def cpu(self, _):
        return time.process_time()


class Engine:
    """`decode_rate`, one process for each context; `kind` is `bare` or `engine`."""

    def __init__(self, models, program, kind, contexts, threads):
        self.kind = kind
        self.processes = {
            context: subprocess.Popen(
                [str(program), str(models / "decoder-genai"), prompt(context), str(threads)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for context in contexts
        }

    def rate(self, sequences, context, tokens):
        return self.ask(context, f"{self.kind} {sequences} {tokens}")[0]

    def cpu(self, context):
        tasks = pathlib.Path(f"/proc/{self.processes[context].pid}/task")
        nanoseconds = 0
        for task in tasks.iterdir():
            try:
                nanoseconds += int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:
                # A thread that has ended since.
                pass
        return nanoseconds / 1e9

    def ask(self, context, line):
        process = self.processes[context]
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return [float(number) for number in process.stdout.readline().split()]


def come_and_go(ours, bare, args):
    """The same rates, but each sequence is followed by another of another length at once."""
    print("\n| tokens/s while sequences come and go | bare slot loop, all together | engine | "
          "engine : bare | ms between rows, median | 99th percentile | longest |")
    print("| --- |" + " ---: |" * 6)
    for context in args.contexts:
        for sequences in args.sequences:
            turns = [one_turn(ours, bare, args, context, sequences) for _ in range(args.rounds)]
            together, rate, ratio, median, p99, longest = map(statistics.median, zip(*turns))
            print(f"| {sequences} sequences, {context} tokens before | {together:.0f} | {rate:.0f} | "
                  f"{ratio:.2f} | {median:.1f} | {p99:.1f} | {longest:.0f} |", flush=True)


def one_turn(ours, bare, args, context, sequences):
    """The bare loop's rate, the engine's, their ratio, and milliseconds between the engine's rows."""
    together = bare.rate(sequences, context, args.tokens)
    seconds = max(5, int(3 * sequences * args.tokens / together))
    rate, *gaps = ours.ask(context, f"churn {sequences} {args.tokens} {seconds}")
    return together, rate, rate / together, *gaps


def long_prompts(ours, args):
    """What readers wait for between two rows while prompts of the longest context arrive."""
    context = max(args.contexts)
    print(f"\n| ms between two rows, prompts of {context} tokens arrive | median | "
          "99th percentile | longest |")
    print("| --- |" + " ---: |" * 3)
    for sequences in [it for it in args.sequences if it < 64]:
        for arrivals in (0, 4):
            numbers = ours.ask(context, f"gaps {sequences} 128 {arrivals}")
            cells = " | ".join(f"{number:.1f}" for number in numbers)
            print(f"| {sequences} readers, {arrivals} prompts | {cells} |", flush=True)


def crowd(ours, others, args):
    """Two decoders that generate at once, in turns with one of them alone."""
    print("\n| tokens/s | one decoder | two at once, both together | two : one |")
    print("| --- |" + " ---: |" * 3)
    for context in args.contexts:
        for sequences in args.sequences:
            turns = []
            for _ in range(args.rounds + 1):
                alone = ours.rate(sequences, context, args.tokens)
                together = []

                def add(engine):
                    together.append(engine.rate(sequences, context, args.tokens))

                both = [threading.Thread(target=add, args=[it]) for it in (ours, others)]
                for thread in both:
                    thread.start()
                for thread in both:
                    thread.join()
                turns.append((alone, sum(together), sum(together) / alone))
            one, two, ratio = map(statistics.median, zip(*turns[1:]))
            print(f"| {sequences} sequences each, {context} tokens before | {one:.0f} | {two:.0f} | "
                  f"{ratio:.2f} |", flush=True)


def rates(runners, args):
    """Tokens per second, the median of rounds in turns; the first one of each warms up."""
    unit = "tokens per CPU-second" if args.cpu else "tokens/s"
    print(f"| {unit} | " + " | ".join(runners) + " | engine : bare |")
    print("| --- |" + " ---: |" * (len(runners) + 1))
    for context in args.contexts:
        for sequences in args.sequences:
            found = {name: [] for name in runners}
            for round in range(args.rounds + 1):
                for name, runner in runners.items():
                    before = runner.cpu(context)
                    rate = runner.rate(sequences, context, args.tokens)
                    if args.cpu and rate == rate:
                        rate = sequences * args.tokens / (runner.cpu(context) - before)
                    if round:
                        found[name].append(rate)
            ratio = [ours / bare for ours, bare in zip(
                found["Volley's engine"], found["bare slot loop"])]
            cells = [f"{statistics.median(found[name]):.0f}" for name in runners]
            cells.append(f"{statistics.median(ratio):.2f}")
            print(f"| {sequences} sequences, {context} tokens before | " + " | ".join(cells) + " |",
                  flush=True)


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--engine", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["Volley"])
    parser.add_argument("--sequences", type=numbers, default=SEQUENCES)
    parser.add_argument("--contexts", type=numbers, default=CONTEXTS)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(ALL_PARTS):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(ALL_PARTS)}")
    os.environ.setdefault("OMP_NUM_THREADS", str(args.threads))
    args.models = args.models.resolve()

    def engine(kind):
        return Engine(args.models, args.engine, kind, args.contexts, args.threads)

    ours = engine("engine")
    bare = engine("bare")
    if "rates" in args.parts:
        runners = {"bare slot loop": bare, "Volley's engine": ours}
        if not args.only:
            runners["onnxruntime-genai"] = GenAI(args.models, args.threads)
            runners["transformers"] = Transformers(args.models, args.threads)
        rates(runners, args)
    if "churn" in args.parts:
        come_and_go(ours, bare, args)
    if "gaps" in args.parts:
        long_prompts(ours, args)
    if "crowd" in args.parts:
        crowd(ours, engine("engine"), args)


if __name__ == "__main__":
    main()
