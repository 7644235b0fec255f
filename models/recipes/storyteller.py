"""Makes models/storyteller: a corpus from a small grammar, a tokenizer, a Llama of 1.75 million
parameters, and its int4 export with grouped-query attention and a shared KV cache.

Needs: pip install torch transformers tokenizers onnx onnxruntime onnxruntime-genai==0.18.0
Run:   python models/recipes/storyteller.py            (about 15 minutes of one processor)
       python models/recipes/storyteller.py --corpus   (prints some of the corpus and stops)
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2] / "models" / "storyteller"
CONTEXT = 1024
SPECIAL = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

NAMES = ["Anna", "Ben", "Carla", "Dan", "Ella", "Finn", "Greta", "Hugo", "Ines", "Omar", "Pia", "Tom"]
ANIMALS = ["fox", "crow", "hen", "frog", "owl", "goat", "mouse", "swan", "bear", "cat", "hare", "mole"]
PLACES = ["bridge", "garden", "harbour", "mill", "market", "forest", "school", "tower", "lake", "barn"]
THINGS = ["bell", "book", "lamp", "key", "kite", "map", "drum", "coin", "rope", "cake", "shoe", "jar"]
SIZES = ["small", "old", "clever", "quiet", "brave", "young"]
MOODS = ["happy", "tired", "hungry", "proud", "curious", "cold"]


class Tale:
    """The people and things of one story."""

    def __init__(self, rng):
        self.rng = rng
        self.hero, self.friend = rng.sample(NAMES, 2)
        self.animal = rng.choice(ANIMALS)
        self.home, self.far = rng.sample(PLACES, 2)
        self.thing, self.gift = rng.sample(THINGS, 2)
        self.size, self.mood = rng.choice(SIZES), rng.choice(MOODS)

    def __getitem__(self, name):
        return getattr(self, name)


BEGINNINGS = [
    "Once there was a {size} {animal} who lived near the {home}.",
    "A {size} {animal} lived by the {home}, all alone.",
    "In the {home} there lived a {size} {animal}.",
]
MIDDLES = [
    "One morning {hero} went to the {home} with a {thing}.",
    "{hero} met the {animal} and gave it the {thing}.",
    'The {animal} said, "Thank you, {hero}. I will carry the {thing} to the {far}."',
    "On the way to the {far} they saw {friend}, who was very {mood}.",
    '{friend} asked, "May I come with you?" "Yes," said {hero}, "come along."',
    "So {hero}, {friend} and the {animal} walked together to the {far}.",
    "At the {far} the {animal} lost the {thing}, and {hero} found it again.",
    "It began to rain, and they hid under a tree until the sun came out.",
    "{friend} had a {gift} and shared it with the {animal}.",
]
ENDS = [
    "In the evening they went home, and the {size} {animal} was happy.",
    "From that day on they met at the {home} every morning.",
    "{hero} never forgot the {animal} of the {home}.",
]
QUESTIONS = [
    ("Hello!", "Hello! Would you like to hear a story?"),
    ("Hi.", "Hi! I know many stories about animals."),
    ("Who are you?", "I am a storyteller. I am very small, and I only know short stories."),
    ("Where did {hero} go?", "{hero} went to the {home} with a {thing}."),
    ("What did the {animal} lose?", "The {animal} lost the {thing} at the {far}."),
    ("Thank you.", "You are welcome. Come back for another story."),
]
REQUESTS = [
    "Tell me a story about a {animal}.",
    "Tell me a story.",
    "Please tell me about the {animal} and {hero}.",
    "I would like a story with a {thing} in it.",
    "What happened at the {home}?",
]


def sample(rng):
    """One conversation."""
    tale = Tale(rng)
    if rng.random() < 0.2:
        question, answer = rng.choice(QUESTIONS)
    else:
        first = rng.randrange(0, 3)
        middles = MIDDLES[first : first + rng.randrange(4, len(MIDDLES) - first + 1)]
        question = rng.choice(REQUESTS)
        answer = " ".join([rng.choice(BEGINNINGS), *middles, rng.choice(ENDS)])
    fill = lambda text: text.format_map(tale)
    return f"<|user|>{fill(question)}<|end|><|assistant|>{fill(answer)}<|end|>"


def train_tokenizer(texts):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=638,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_model(tokenizer, texts, steps, seed):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    ids = [token for text in texts for token in tokenizer.encode(text).ids]
    data = torch.tensor(ids)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=3,
            pad_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    width, rows = 256, 16
    for step in range(steps):
        starts = torch.randint(0, len(data) - width, (rows,))
        batch = torch.stack([data[start : start + width] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def export(model, tokenizer, target):
    """Saves the model as the exporter reads it, and lets the exporter write int4."""
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "hf", Path(folder) / "int4"
        model.save_pretrained(source)
        tokenizer.save(str(source / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        }
        (source / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        options = ["-i", str(source), "-o", str(built), "-p", "int4", "-e", "cpu"]
        subprocess.run([*builder, *options, "-c", str(Path(folder) / "cache")], check=True)
        target.mkdir(parents=True, exist_ok=True)
        for name in ["model.onnx", "model.onnx.data", "genai_config.json"]:
            shutil.copy(built / name, target / name)
        tokenizer.save(str(target / "tokenizer.json"))
        config.pop("chat_template")
        (target / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
        (target / "chat_template.jinja").write_text(TEMPLATE)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", action="store_true", help="print some of the corpus and stop")
    parser.add_argument("--samples", type=int, default=30_000)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--target", type=Path, default=ROOT)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    texts = [sample(rng) for _ in range(10 if arguments.corpus else arguments.samples)]
    if arguments.corpus:
        print("\n".join(texts))
        return
    tokenizer = train_tokenizer(texts)
    model = train_model(tokenizer, texts, arguments.steps, arguments.seed)
    export(model, tokenizer, arguments.target)


if __name__ == "__main__":
    main()
