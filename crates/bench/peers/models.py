"""Makes the models that are measured, with random weights: speed does not depend on them.

    models.py DIRECTORY

DIRECTORY/encoder: a text encoder of MiniLM's shape (6 layers of 384), for every encoder server;
DIRECTORY/encoder-tiny: one of 2 layers of 128, for bulk.
DIRECTORY/decoder: a Llama of 8 layers of 512 as transformers saves it; DIRECTORY/decoder-genai: the
same weights as the model builder of ONNX Runtime GenAI exports them, 32 bits, for the CPU.
"""

import json
import pathlib
import shutil
import subprocess
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast

WORDS = 8_000
LONGEST = 512


def words():
    """Every word is a token, so that texts have as many tokens as they are to have."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return special + [f"word{index}" for index in range(WORDS - len(special))]


def tokenizer(ends):
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words())}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(words()[:5])
    if ends:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


class Encoder(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids, attention_mask, token_type_ids)[0]


def encoder(target, layers, size):
    config = BertConfig(
        vocab_size=WORDS, hidden_size=size, num_hidden_layers=layers,
        num_attention_heads=size // 32, intermediate_size=4 * size, max_position_embeddings=LONGEST, attn_implementation="eager")
    model = BertModel(config, add_pooling_layer=False).eval()
    target.mkdir(parents=True, exist_ok=True)
    tokenizer(True).save(str(target / "tokenizer.json"))
    (target / "config.json").write_text(json.dumps({
        "architectures": ["BertModel"], "model_type": "bert", "hidden_size": size,
        "max_position_embeddings": LONGEST, "pad_token_id": 0}))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "sequence"} for name in [*names, "last_hidden_state"]}
    example = torch.ones(2, 5, dtype=torch.int64)
    torch.onnx.export(
        Encoder(model), (example, example, torch.zeros_like(example)), str(target / "model.onnx"),
        input_names=names, output_names=["last_hidden_state"], dynamic_axes=axes,
        opset_version=17, dynamo=False)


def decoder(target, exported):
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=1024,
        bos_token_id=2, eos_token_id=3, pad_token_id=0, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(exported, ignore_errors=True)
    model.save_pretrained(target)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(False), unk_token="[UNK]", pad_token="[PAD]",
        bos_token="[CLS]", eos_token="[SEP]")
    fast.save_pretrained(target)
    subprocess.run(
        [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(target),
         "-o", str(exported), "-p", "fp32", "-e", "cpu"], check=True)
    # The exporter may leave the tokenizer out.
    shutil.copy(target / "tokenizer.json", exported / "tokenizer.json")


def main():
    torch.manual_seed(3)
    target = pathlib.Path(sys.argv[1])
    with torch.no_grad():
        encoder(target / "encoder", 6, 384)
        encoder(target / "encoder-tiny", 2, 128)
        decoder(target / "decoder", target / "decoder-genai")


if __name__ == "__main__":
    main()
