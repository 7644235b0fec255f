"""The work that every encoder server does, as their users write it: tokenize, run, pool."""

import os
import pathlib

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

DIRECTORY = pathlib.Path(os.environ.get("PEERS_MODEL", "."))
THREADS = int(os.environ.get("PEERS_THREADS", "1"))


class Encoder:
    def __init__(self):
        options = ort.SessionOptions()
        options.intra_op_num_threads = THREADS
        # As Volley has them: threads that spin on take the core that the load generator needs.
        options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self.session = ort.InferenceSession(
            str(DIRECTORY / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self.tokenizer = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(512)

    def __call__(self, texts):
        """Vectors of length 1, `[len(texts), 384]`."""
        encoded = self.tokenizer.encode_batch(texts)
        ids = np.array([one.ids for one in encoded], dtype=np.int64)
        mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
        (hidden,) = self.session.run(
            None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
        weights = mask[:, :, None].astype(np.float32)
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
