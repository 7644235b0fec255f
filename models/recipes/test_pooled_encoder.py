"""Makes a text encoder whose graph pools by itself and gives the vectors of the tokens beside, as
exporters of sentence-transformers write it: a table of random vectors and their mean.

    pip install onnx numpy
    python models/recipes/test_pooled_encoder.py
"""

import json
import pathlib
import shutil

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = pathlib.Path(__file__).resolve().parents[2] / "crates/backend-onnx/tests/models"
WIDTH = 4


def graph(size):
    table = numpy.random.default_rng(7).normal(size=(size, WIDTH)).astype(numpy.float32)
    floats, ids = TensorProto.FLOAT, TensorProto.INT64
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["token_embeddings"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=floats),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["token_embeddings", "wide"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["wide", "middle"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["sentence_embedding"]),
    ]
    shape = ["batch", "sequence"]
    return helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info(name, ids, shape) for name in ("input_ids", "attention_mask")],
        [
            helper.make_tensor_value_info("token_embeddings", floats, [*shape, WIDTH]),
            helper.make_tensor_value_info("sentence_embedding", floats, ["batch", WIDTH]),
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(numpy.array([2]), "last"),
            numpy_helper.from_array(numpy.array([1]), "middle"),
        ],
    )


source, target = ROOT / "text-embed", ROOT / "text-embed-pooled"
target.mkdir(exist_ok=True)
shutil.copy(source / "tokenizer.json", target)
size = len(json.loads((source / "tokenizer.json").read_text())["model"]["vocab"])
model = helper.make_model(graph(size), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
onnx.save(model, target / "model.onnx")
config = {"model_type": "bert", "hidden_size": WIDTH, "max_position_embeddings": 32, "pad_token_id": 0}
(target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
