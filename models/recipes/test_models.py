"""Makes the small models of crates/backend-onnx/tests/models: one for each element type and a
few odd shapes.

Needs: pip install numpy onnx
Run:   python models/recipes/test_models.py
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2] / "crates" / "backend-onnx" / "tests" / "models"

TYPES = {
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
    "string": TensorProto.STRING,
    "bfloat16": TensorProto.BFLOAT16,
}


def save(name, nodes, inputs, outputs, constants=(), external=False, checked=True):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        name,
        [info(n, t, s) for n, t, s in inputs],
        [info(n, t, s) for n, t, s in outputs],
        list(constants),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if checked:
        onnx.checker.check_model(model)
    directory = ROOT / name
    directory.mkdir(parents=True, exist_ok=True)
    if external:
        (directory / "model.onnx.data").unlink(missing_ok=True)
        onnx.save(
            model,
            directory / "model.onnx",
            save_as_external_data=True,
            location="model.onnx.data",
            size_threshold=0,
        )
    else:
        onnx.save(model, directory / "model.onnx")


def main():
    for name, kind in TYPES.items():
        same = helper.make_node("Identity", ["x"], ["y"])
        save(f"identity-{name}", [same], [("x", kind, ["n", 2])], [("y", kind, ["n", 2])])
    # A shape that changes from row to row: sums each row, and gives it back reversed in shape.
    save(
        "ragged",
        [
            helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
            helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        ],
        [("x", TensorProto.FLOAT, ["n", "a", "b"])],
        [("sum", TensorProto.FLOAT, ["n"]), ("turned", TensorProto.FLOAT, ["n", "b", "a"])],
        [numpy_helper.from_array(np.array([1, 2], np.int64), "axes")],
    )
    # No batch dimension: one row is one run.
    save(
        "unbatched",
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        [("a", TensorProto.FLOAT, [2, 3]), ("b", TensorProto.FLOAT, [3, 2])],
        [("y", TensorProto.FLOAT, [2, 2])],
    )
    # Two inputs of shapes that only the graph can tell to be wrong.
    save(
        "picky",
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [("a", TensorProto.FLOAT, ["n", "w"]), ("b", TensorProto.FLOAT, ["n", "w"])],
        [("y", TensorProto.FLOAT, ["n", "w"])],
    )
    # Declares rows of two numbers and then wants five rows or none: its own defect.
    save(
        "defective",
        [
            helper.make_node("Reshape", ["x", "five"], ["r"]),
            helper.make_node("Reshape", ["r", "pairs"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 2])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(np.array([5, -1], np.int64), "five"),
            numpy_helper.from_array(np.array([-1, 2], np.int64), "pairs"),
        ],
    )
    # Gives as many numbers as it is told to: one row is one run.
    save(
        "hungry",
        [helper.make_node("Expand", ["one", "shape"], ["y"])],
        [("shape", TensorProto.INT64, [2])],
        [("y", TensorProto.FLOAT, ["a", "b"])],
        [numpy_helper.from_array(np.array([1], np.float32), "one")],
    )
    # Normalises text by the rules of a place that no machine knows.
    save(
        "foreign",
        [
            helper.make_node(
                "StringNormalizer",
                ["x"],
                ["y"],
                case_change_action="LOWER",
                locale="xx_YY",
            )
        ],
        [("x", TensorProto.STRING, ["n"])],
        [("y", TensorProto.STRING, ["n"])],
    )
    # Tells each row how many rows ran together. A row of 13 fails all that run with it.
    save(
        "together",
        [
            helper.make_node("Shape", ["x"], ["count"]),
            helper.make_node("Expand", ["count", "count"], ["rows"]),
            helper.make_node("Equal", ["x", "thirteen"], ["bad"]),
            helper.make_node("Where", ["bad", "one", "zero"], ["place"]),
            helper.make_node("Gather", ["only", "place"], ["y"]),
        ],
        [("x", TensorProto.INT64, ["n"])],
        [("rows", TensorProto.INT64, ["n"]), ("y", TensorProto.INT64, ["n"])],
        [
            numpy_helper.from_array(np.array(13, np.int64), "thirteen"),
            numpy_helper.from_array(np.array(1, np.int64), "one"),
            numpy_helper.from_array(np.array(0, np.int64), "zero"),
            numpy_helper.from_array(np.array([7], np.int64), "only"),
        ],
    )
    # A sum that goes on from request to request: the state of a sequence, which begins anew where
    # it is told to. Gives the sequence's id back.
    column = ["n", 1]
    save(
        "summing",
        [
            helper.make_node("Sub", ["one", "START"], ["goes_on"]),
            helper.make_node("Mul", ["before", "goes_on"], ["kept"]),
            helper.make_node("Add", ["x", "kept"], ["sum"]),
            helper.make_node("Identity", ["sum"], ["after"]),
            helper.make_node("Identity", ["ID"], ["id"]),
        ],
        [
            ("x", TensorProto.FLOAT, column),
            ("START", TensorProto.FLOAT, column),
            ("ID", TensorProto.UINT64, column),
            ("before", TensorProto.FLOAT, column),
        ],
        [
            ("sum", TensorProto.FLOAT, column),
            ("after", TensorProto.FLOAT, column),
            ("id", TensorProto.UINT64, column),
        ],
        [numpy_helper.from_array(np.array([[1]], np.float32), "one")],
    )
    # A first dimension that is dynamic and no batch.
    save(
        "nobatch",
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)],
        [("x", TensorProto.FLOAT, ["n", 2])],
        [("y", TensorProto.FLOAT, ["m", 2])],
    )
    # Weights in a file beside the graph.
    save(
        "external",
        [helper.make_node("Add", ["x", "weights"], ["y"])],
        [("x", TensorProto.FLOAT, ["n", 2])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.array([10, 20], np.float32), "weights")],
        external=True,
    )
    # Runs for a long time: a loop of many large products, to be stopped in the middle.
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["m", "weights"], ["m_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("m", TensorProto.FLOAT, ["n", 64]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("m_out", TensorProto.FLOAT, ["n", 64]),
        ],
    )
    save(
        "slow",
        [helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)],
        [("x", TensorProto.FLOAT, ["n", 64])],
        [("y", TensorProto.FLOAT, ["n", 64])],
        [
            numpy_helper.from_array(np.array(10_000_000, np.int64), "times"),
            numpy_helper.from_array(np.array(True), "yes"),
            numpy_helper.from_array(np.eye(64, dtype=np.float32), "weights"),
        ],
    )
    # A processor cannot divide the least number by -1.
    save(
        "dividing",
        [helper.make_node("Div", ["x", "z"], ["y"])],
        [("x", TensorProto.INT64, ["n"]), ("z", TensorProto.INT64, ["n"])],
        [("y", TensorProto.INT64, ["n"])],
    )
    # One operator takes much more memory than its tensors: a container, and copies of a text.
    save(
        "unique",
        [
            helper.make_node("Range", ["zero", "count", "one"], ["numbers"]),
            helper.make_node("Unique", ["numbers"], ["different"]),
            helper.make_node("ReduceSum", ["different"], ["y"], keepdims=0),
        ],
        [("count", TensorProto.INT64, [])],
        [("y", TensorProto.INT64, [])],
        [
            numpy_helper.from_array(np.array(0, np.int64), "zero"),
            numpy_helper.from_array(np.array(1, np.int64), "one"),
        ],
    )
    save(
        "repeating",
        [
            helper.make_node("Expand", ["text", "count"], ["copies"]),
            helper.make_node("Size", ["copies"], ["y"]),
        ],
        [("text", TensorProto.STRING, [1]), ("count", TensorProto.INT64, [1])],
        [("y", TensorProto.INT64, [])],
    )
    # Nothing says how many dimensions y has.
    save(
        "rankless",
        [helper.make_node("ConstantOfShape", ["x"], ["y"])],
        [("x", TensorProto.INT64, ["r"])],
        [("y", TensorProto.FLOAT, None)],
        checked=False,
    )
    # Counts to x, for as long as that takes.
    count = helper.make_graph(
        [
            helper.make_node("Add", ["so_far", "one"], ["so_far_out"]),
            helper.make_node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("so_far", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("so_far_out", TensorProto.INT64, []),
        ],
    )
    save(
        "counting",
        [
            helper.make_node("Squeeze", ["x"], ["times"]),
            helper.make_node("Loop", ["times", "yes", "zero"], ["counted"], body=count),
            helper.make_node("Unsqueeze", ["counted", "axes"], ["y"]),
        ],
        [("x", TensorProto.INT64, [1])],
        [("y", TensorProto.INT64, [1])],
        [
            numpy_helper.from_array(np.array(True), "yes"),
            numpy_helper.from_array(np.array(0, np.int64), "zero"),
            numpy_helper.from_array(np.array(1, np.int64), "one"),
            numpy_helper.from_array(np.array([0], np.int64), "axes"),
        ],
    )


if __name__ == "__main__":
    main()
