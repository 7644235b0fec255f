"""Makes decoders that the tests serve: tiny Llamas with random weights, and what transformers itself
generates with them. plain-decoder has past keys and values in and present ones out, as Hugging Face
models are usually exported; half-decoder is what the model builder of ONNX Runtime GenAI makes for
GPUs, with a shared cache of 16 bits.

    pip install torch transformers onnx onnx-ir onnxruntime-genai
    python models/recipes/test_decoder.py
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "crates/backend-onnx/tests/models"
TARGET = MODELS / "plain-decoder"
HALF = MODELS / "half-decoder"
TOKENIZER = ROOT / "models/storyteller/tokenizer.json"
PROMPTS = ["Once upon a time", "Hello!", "Tell me a story about a fox who went to the river and"]
NEW_TOKENS = 24


class Exported(torch.nn.Module):
    """The signature of an export: flat tensors in, flat tensors out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = []
        for layer in out.past_key_values.layers:
            present += [layer.keys, layer.values]
        return (out.logits, *present)


def export(model, config, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    dtype = next(model.parameters()).dtype
    head = config.hidden_size // config.num_attention_heads
    past = [
        torch.zeros(1, config.num_key_value_heads, 3, head, dtype=dtype)
        for _ in range(2 * config.num_hidden_layers)
    ]
    names = [f"{layer}.{part}" for layer in range(config.num_hidden_layers) for part in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids"]
    inputs += [f"past_key_values.{name}" for name in names]
    outputs = ["logits"] + [f"present.{name}" for name in names]
    axes = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "total"},
        "position_ids": {0: "batch", 1: "sequence"},
        "logits": {0: "batch", 1: "sequence"},
    }
    axes |= {f"past_key_values.{name}": {0: "batch", 2: "past"} for name in names}
    axes |= {f"present.{name}": {0: "batch", 2: "total"} for name in names}
    torch.onnx.export(
        Exported(model).eval(),
        (torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 5, dtype=torch.int64),
         torch.tensor([[3, 4]]), *past),
        str(path),
        input_names=inputs,
        output_names=outputs,
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def main():
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=638,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=1,
        eos_token_id=3,
        initializer_range=0.4,
        attn_implementation="eager",
    )
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config).eval()
    TARGET.mkdir(parents=True, exist_ok=True)
    shutil.copy(TOKENIZER, TARGET / "tokenizer.json")
    (TARGET / "config.json").write_text(json.dumps(config.to_diff_dict() | {
        "architectures": config.architectures,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "max_position_embeddings": config.max_position_embeddings,
    }, indent=1, default=str) + "\n")
    (TARGET / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [3], "do_sample": False}) + "\n")

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    expect(model, tokenizer, TARGET)

    with torch.no_grad():
        export(model, config, TARGET / "onnx/model.onnx")
        export(model.half(), config, TARGET / "onnx/model_fp16.onnx")
    half(tokenizer)


def half(tokenizer):
    """GPUs' attention wants heads of 16 numbers or more."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=638, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=1, eos_token_id=3, initializer_range=0.4, tie_word_embeddings=False)).eval()
    shutil.rmtree(HALF, ignore_errors=True)
    with tempfile.TemporaryDirectory() as saved:
        model.half().save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        subprocess.run(
            [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", saved,
             "-o", str(HALF), "-p", "fp16", "-e", "cuda"], check=True)
    shutil.copy(TOKENIZER, HALF / "tokenizer.json")
    expect(model, tokenizer, HALF)


def expect(model, tokenizer, target):
    expected = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
        new = out[0, ids.shape[1]:]
        text = tokenizer.decode(new, skip_special_tokens=True)
        expected.append({"prompt": prompt, "ids": new.tolist(), "text": text})
    (target / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
