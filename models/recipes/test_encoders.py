"""Makes the text encoders that the tests serve: tiny BERTs with random weights, in the layouts
that sentence-transformers and exporters write, and what transformers gives for some texts.

    pip install torch transformers tokenizers onnx
    python models/recipes/test_encoders.py
"""

import json
import pathlib

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

ROOT = pathlib.Path(__file__).resolve().parents[2] / "crates/backend-onnx/tests/models"
WORDS = (
    "a the fox crow hen river bridge story book ran read met saw lived near to of and with is "
    "in who what where query passage old small brown quick red zoe rome paris lee ##s ##ed ##ing"
).split()
TEXTS = [
    "The quick brown fox ran to the river.",
    "Who lived near the bridge?",
    "crow",
    "Zoe Lee lived in Rome and read a book with the old hen in Paris " * 3,
]
LENGTH = 32


def tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pieces = special + list(".,?!:") + letters + ["##" + c for c in letters] + WORDS
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(special)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return made, len(vocab)


def config(size, **more):
    return BertConfig(
        vocab_size=size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        initializer_range=0.5,
        attn_implementation="eager",
        **more,
    )


class Exported(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )[0]


def save(name, model, output, tokens, more=()):
    target = ROOT / name
    target.mkdir(parents=True, exist_ok=True)
    tokens.save(str(target / "tokenizer.json"))
    described = {
        "architectures": [type(model).__name__],
        "model_type": "bert",
        "hidden_size": 16,
        "max_position_embeddings": LENGTH,
        "pad_token_id": 0,
        "id2label": {str(k): v for k, v in model.config.id2label.items()},
    }
    if isinstance(model, (BertModel, BertForMaskedLM)):
        described.pop("id2label")
    (target / "config.json").write_text(json.dumps(described, indent=1) + "\n")
    for file, text in dict(more).items():
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {each: {0: "batch", 1: "sequence"} for each in names}
    axes[output] = {0: "batch"}
    if output != "logits" or not isinstance(model, BertForSequenceClassification):
        axes[output][1] = "sequence"
    example = torch.ones(2, 5, dtype=torch.int64)
    with torch.no_grad():
        torch.onnx.export(
            Exported(model).eval(),
            (example, example, torch.zeros_like(example)),
            str(target / "model.onnx"),
            input_names=names,
            output_names=[output],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )


def outputs(model, tokens, rows):
    tokens.enable_truncation(LENGTH)
    found = []
    for row in rows:
        encoded = tokens.encode(*row) if isinstance(row, tuple) else tokens.encode(row)
        one = lambda values: torch.tensor([values])
        with torch.no_grad():
            out = model(
                input_ids=one(encoded.ids),
                attention_mask=one(encoded.attention_mask),
                token_type_ids=one(encoded.type_ids),
            )[0][0]
        found.append((encoded, out))
    tokens.no_truncation()
    return found


def expect(name, rows):
    (ROOT / name / "expected.json").write_text(json.dumps(rows, ensure_ascii=False) + "\n")


def main():
    torch.manual_seed(11)
    tokens, size = tokenizer()
    unit = torch.nn.functional.normalize

    model = BertModel(config(size), add_pooling_layer=False).eval()
    save("text-embed", model, "last_hidden_state", tokens, {
        "modules.json": json.dumps([
            {"idx": 0, "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "type": "sentence_transformers.models.Normalize"},
        ]),
        "1_Pooling/config.json": json.dumps({"pooling_mode_mean_tokens": True}),
        "config_sentence_transformers.json": json.dumps(
            {"prompts": {"query": "query: ", "passage": "passage: "}}),
    })
    plain = outputs(model, tokens, TEXTS)
    asked = outputs(model, tokens, ["query: " + text for text in TEXTS])
    mean = lambda found: unit(found[1].mean(0), dim=0).tolist()
    short = lambda found: unit(found[1].mean(0)[:4], dim=0).tolist()
    expect("text-embed", [
        {"text": text, "plain": mean(a), "query": mean(b), "short": short(a), "tokens": len(a[0].ids)}
        for text, a, b in zip(TEXTS, plain, asked)
    ])

    model = BertForSequenceClassification(config(size, num_labels=1)).eval()
    save("text-rerank", model, "logits", tokens)
    rows = [("Who lived near the bridge?", text) for text in TEXTS]
    expect("text-rerank", [
        {"query": row[0], "text": row[1], "score": torch.sigmoid(out[0]).item()}
        for row, (_, out) in zip(rows, outputs(model, tokens, rows))
    ])

    named = {0: "bad", 1: "good", 2: "odd"}
    model = BertForSequenceClassification(config(size, num_labels=3, id2label=named)).eval()
    save("text-classify", model, "logits", tokens)
    expect("text-classify", [
        {"text": text, "scores": {named[i]: s for i, s in enumerate(torch.softmax(out, 0).tolist())}}
        for text, (_, out) in zip(TEXTS, outputs(model, tokens, TEXTS))
    ])

    named = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    model = BertForTokenClassification(config(size, num_labels=4, id2label=named)).eval()
    save("text-tokens", model, "logits", tokens)
    rows = []
    for text, (encoded, out) in zip(TEXTS, outputs(model, tokens, TEXTS)):
        best = out.argmax(1).tolist()
        inside = [
            [start, end, named[label]]
            for (start, end), label, special in zip(encoded.offsets, best, encoded.special_tokens_mask)
            if not special and named[label] != "O"
        ]
        rows.append({"text": text, "inside": inside})
    expect("text-tokens", rows)

    model = BertForMaskedLM(config(size)).eval()
    save("text-sparse", model, "logits", tokens)
    rows = []
    for text, (_, out) in zip(TEXTS, outputs(model, tokens, TEXTS)):
        weights = torch.log1p(torch.relu(out)).max(0).values
        terms = {tokens.id_to_token(i): w for i, w in enumerate(weights.tolist()) if 0 < w}
        rows.append({"text": text, "terms": terms})
    expect("text-sparse", rows)


if __name__ == "__main__":
    main()
