"""What variants of a graph cost on this CPU, and how far their numbers are from the plain one's.

    variants.py MODELS [--rounds 8]

Makes them once, in MODELS/variants, as the usual tools do: int8 with dynamic quantization (per
channel), q8 and q4 with weights in blocks of 32 (MatMulNBits), fp16. Prints Markdown: the CPU
milliseconds of a run on one thread, the median of rounds in turns, and the least cosine between a
row of its output and the plain graph's.
"""

import argparse
import logging
import os
import pathlib
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

PLAIN = {"encoder": "encoder/model.onnx", "decoder": "decoder-genai/model.onnx"}
# Of the decoder's cache, as models.py makes it.
HEADS, HEAD_SIZE = 4, 64
# Rows, tokens of each, tokens before them.
SHAPES = {
    "encoder": [(1, 8, 0), (1, 128, 0), (32, 8, 0), (32, 128, 0)],
    "decoder": [(1, 1, 8), (8, 1, 72), (32, 1, 72), (1, 256, 0)],
}


def make(kind, plain, target):
    """Paths of the variants by name."""
    paths = {name: target / f"{kind}_{name}.onnx" for name in ("int8", "q8", "q4", "fp16")}
    if all(path.is_file() for path in paths.values()):
        return {"plain": plain, **paths}
    target.mkdir(parents=True, exist_ok=True)
    quantize_dynamic(str(plain), str(paths["int8"]), weight_type=QuantType.QInt8, per_channel=True)
    for bits in (8, 4):
        blocks = MatMulNBitsQuantizer(
            onnx.load(str(plain)), bits=bits, block_size=32, is_symmetric=True, accuracy_level=4)
        blocks.process()
        blocks.model.save_model_to_file(str(paths[f"q{bits}"]), False)
    onnx.save(convert_float_to_float16(onnx.load(str(plain))), str(paths["fp16"]))
    return {"plain": plain, **paths}


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs(graph, shape):
    rows, tokens, past = shape
    given = {}
    for it in graph.get_inputs():
        if it.name == "input_ids":
            given[it.name] = np.arange(rows * tokens).reshape(rows, tokens) * 7 % 900 + 5
        elif it.name == "attention_mask":
            given[it.name] = np.ones((rows, past + tokens), np.int64)
        elif it.name == "token_type_ids":
            given[it.name] = np.zeros((rows, tokens), np.int64)
        else:
            number = np.float16 if "float16" in it.type else np.float32
            given[it.name] = np.zeros((rows, HEADS, past, HEAD_SIZE), number)
    return given


def least_cosine(found, expected):
    found, expected = (it.reshape(-1, it.shape[-1]).astype(np.float64) for it in (found, expected))
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return ((found * expected).sum(-1) / norms).min()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    for kind, plain in PLAIN.items():
        paths = make(kind, args.models / plain, args.models / "variants")
        sessions = {name: session(path) for name, path in paths.items()}
        print(f"\n| {kind}, CPU-ms of a run (least cosine) | " + " | ".join(sessions) + " |")
        print("| --- |" + " ---: |" * len(sessions))
        for shape in SHAPES[kind]:
            given = {name: inputs(it, shape) for name, it in sessions.items()}
            times, outputs = {name: [] for name in sessions}, {}
            for round in range(args.rounds + 1):
                for name, it in sessions.items():
                    started = time.process_time()
                    outputs[name] = it.run([it.get_outputs()[0].name], given[name])[0]
                    if round:
                        times[name].append((time.process_time() - started) * 1e3)
            cells = [
                f"{statistics.median(times[name]):.1f} "
                f"({least_cosine(outputs[name], outputs['plain']):.4f})" for name in sessions]
            rows, tokens, past = shape
            before = f" behind {past}" if past else ""
            print(f"| {rows} × {tokens} tokens{before} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
