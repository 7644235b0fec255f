"""Makes decoders as older exporters wrote them, out of those that test_decoder.py makes: their
answers are the same, so what transformers generates is the judge of these too.

merged-decoder: one graph for prompts and steps, as Optimum merged two of them, with the switch
`use_cache_branch`, and the scalar `num_logits_to_keep` of exports for browsers; its tokenizer
brings several chat templates by name. once-decoder: the same, but a run with a past reads a single
token, as graphs do that were traced with one. paired-decoder: a graph for prompts that knows no
past, and one behind a past that takes all of a run's tokens for its last one, without a word.
positioned-decoder: a shared cache, and positions, which turn the tokens into others where they are
wrong.

    pip install onnx numpy
    python models/recipes/test_exports.py
"""

import json
import pathlib
import shutil

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MODELS = pathlib.Path(__file__).resolve().parents[2] / "crates/backend-onnx/tests/models"


def constant(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def take_inputs(graph, renamed):
    """Has the graph's nodes read what `renamed` says in place of its inputs."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)


def branches(past, kind, shape):
    """With the switch, the past; without it, the past's first 0 positions."""
    whole = helper.make_graph(
        [helper.make_node("Identity", [past], [f"{past}.whole"])], "whole", [],
        [helper.make_tensor_value_info(f"{past}.whole", kind, shape)])
    none = helper.make_graph(
        [helper.make_node("Slice", [past, "zero", "zero", "two"], [f"{past}.none"])], "none", [],
        [helper.make_tensor_value_info(f"{past}.none", kind, shape)])
    return helper.make_node(
        "If", ["use_cache_branch"], [f"{past}.used"], then_branch=whole, else_branch=none)


def merged(target, once):
    model = onnx.load(MODELS / "plain-decoder/onnx/model.onnx")
    graph = model.graph
    first, renamed = [], {}
    for value in graph.input:
        if value.name.startswith("past_key_values"):
            kind = value.type.tensor_type
            first.append(branches(value.name, kind.elem_type, [None] * len(kind.shape.dim)))
            renamed[value.name] = f"{value.name}.used"
    for output in graph.output:
        if output.name == "logits":
            output.name = "logits.kept"
    for node in graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = "logits.all" if name == "logits" else name
    if once:
        # With a past, the tokens are folded into one, which fails where there are more.
        folded = helper.make_graph(
            [helper.make_node("Reshape", ["input_ids", "one_by_one"], ["ids.folded"])], "folded",
            [], [helper.make_tensor_value_info("ids.folded", TensorProto.INT64, [None, None])])
        plain = helper.make_graph(
            [helper.make_node("Identity", ["input_ids"], ["ids.plain"])], "plain", [],
            [helper.make_tensor_value_info("ids.plain", TensorProto.INT64, [None, None])])
        first.append(helper.make_node(
            "If", ["use_cache_branch"], ["ids.used"], then_branch=folded, else_branch=plain))
        renamed["input_ids"] = "ids.used"
        graph.initializer.append(constant("one_by_one", [1, 1]))
    take_inputs(graph, renamed)
    # The last so many positions of the logits; 0 are all.
    last = [
        helper.make_node("Shape", ["logits.all"], ["logits.shape"]),
        helper.make_node("Gather", ["logits.shape", "one"], ["logits.there"]),
        helper.make_node("Unsqueeze", ["num_logits_to_keep", "zero"], ["logits.wanted"]),
        helper.make_node("Equal", ["logits.wanted", "zero"], ["logits.unasked"]),
        helper.make_node(
            "Where", ["logits.unasked", "logits.there", "logits.wanted"], ["logits.count"]),
        helper.make_node("Neg", ["logits.count"], ["logits.from"]),
        helper.make_node("Slice", ["logits.all", "logits.from", "end", "one"], ["logits"]),
    ]
    nodes = first + list(graph.node) + last
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend([
        constant("zero", [0]), constant("one", [1]), constant("two", [2]),
        constant("end", [np.iinfo(np.int64).max])])
    for output in graph.output:
        output.name = "logits" if output.name == "logits.kept" else output.name
    graph.input.extend([
        helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]),
        helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, [])])
    onnx.checker.check_model(model)
    (target / "onnx").mkdir(parents=True, exist_ok=True)
    onnx.save(model, target / "onnx/decoder_model_merged.onnx")
    for name in ["config.json", "generation_config.json", "tokenizer.json", "expected.json"]:
        shutil.copy(MODELS / "plain-decoder" / name, target / name)


def paired(target):
    (target / "onnx").mkdir(parents=True, exist_ok=True)
    for name in ["config.json", "generation_config.json", "tokenizer.json", "expected.json"]:
        shutil.copy(MODELS / "plain-decoder" / name, target / name)
    prompts = onnx.load(MODELS / "plain-decoder/onnx/model.onnx")
    graph = prompts.graph
    pasts = [value for value in graph.input if value.name.startswith("past_key_values")]
    for past in pasts:
        heads, size = [past.type.tensor_type.shape.dim[axis].dim_value for axis in (1, 3)]
        empty = np.zeros((1, heads, 0, size), np.float32)
        graph.initializer.append(numpy_helper.from_array(empty, past.name))
        graph.input.remove(past)
    onnx.checker.check_model(prompts)
    onnx.save(prompts, target / "onnx/decoder_model.onnx")
    steps = onnx.load(MODELS / "plain-decoder/onnx/model.onnx")
    graph = steps.graph
    take_inputs(graph, {"input_ids": "ids.one"})
    first = [
        helper.make_node("Slice", ["input_ids", "ids.from", "ids.end", "ids.axis"], ["ids.last"]),
        helper.make_node("Shape", ["input_ids"], ["ids.shape"]),
        helper.make_node("Expand", ["ids.last", "ids.shape"], ["ids.one"]),
    ]
    nodes = first + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend([
        constant("ids.from", [-1]), constant("ids.end", [np.iinfo(np.int64).max]),
        constant("ids.axis", [1])])
    onnx.checker.check_model(steps)
    onnx.save(steps, target / "onnx/decoder_with_past_model.onnx")


def templates(target):
    each = "{% for message in messages %}{{ message.content }}{% endfor %}"
    named = [
        {"name": "tool_use", "template": each + "{% for tool in tools %} {{ tool.function.name }}{% endfor %}"},
        {"name": "default", "template": each},
        {"name": "rag", "template": "{{ raise_exception('no documents') }}"},
    ]
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}, indent=1) + "\n")


def positioned(target):
    source = MODELS / "half-decoder"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    model = onnx.load(source / "model.onnx", load_external_data=False)
    graph = model.graph
    take_inputs(graph, {"input_ids": "ids.right"})
    # A row's last positions, counted by the ones of its mask.
    first = [
        helper.make_node("CumSum", ["attention_mask", "axis"], ["places.all"]),
        helper.make_node("Sub", ["places.all", "one"], ["places"]),
        helper.make_node("Shape", ["input_ids"], ["ids.shape"]),
        helper.make_node("Gather", ["ids.shape", "one"], ["ids.count"]),
        helper.make_node("Neg", ["ids.count"], ["places.from"]),
        helper.make_node("Slice", ["places", "places.from", "end", "one"], ["places.last"]),
        helper.make_node("Equal", ["places.last", "position_ids"], ["places.right"]),
        helper.make_node("Where", ["places.right", "input_ids", "zero"], ["ids.right"]),
    ]
    nodes = first + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend([
        constant("axis", 1), constant("zero", [0]), constant("one", [1]),
        constant("end", [np.iinfo(np.int64).max])])
    graph.input.append(
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"]))
    onnx.save(model, target / "model.onnx")


def main():
    merged(MODELS / "merged-decoder", once=False)
    templates(MODELS / "merged-decoder")
    merged(MODELS / "once-decoder", once=True)
    paired(MODELS / "paired-decoder")
    positioned(MODELS / "positioned-decoder")


if __name__ == "__main__":
    main()
