"""Makes the broken and hostile models of crates/backend-onnx/tests/models/hostile, a few hundred
bytes each: what a worker must refuse, or give up, and live on.

Needs: pip install numpy onnx
Run:   python models/recipes/hostile_models.py
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2] / "crates" / "backend-onnx" / "tests" / "models" / "hostile"
FLOAT = TensorProto.FLOAT
X = helper.make_tensor_value_info("x", FLOAT, ["n", 2])
Y = helper.make_tensor_value_info("y", FLOAT, ["n", 2])


def save(name, nodes, constants=(), domains=(), functions=(), sparse=()):
    graph = helper.make_graph(nodes, name, [X], [Y], list(constants))
    graph.sparse_initializer.extend(sparse)
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid(d, 1) for d in domains]
    model = helper.make_model(
        graph, opset_imports=opsets, functions=list(functions), ir_version=8
    )
    directory = ROOT / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.onnx").write_bytes(model.SerializeToString())
    return directory


def constant(name, values, dtype=np.int64):
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def add(other):
    return helper.make_node("Add", ["x", other], ["y"])


def total(name):
    return helper.make_node("ReduceSum", [name], ["total"], keepdims=0)


def weight(dims, data=b"\0" * 8):
    tensor = TensorProto(name="w", data_type=FLOAT, dims=dims)
    tensor.raw_data = data
    return tensor


def external(name, location, offset=0, length=8):
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[1, 2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    directory = save(name, [add("w")], [tensor])
    (directory / "w.bin").write_bytes(b"\0" * 8)


def sizes():
    one = constant("one", [0.001], np.float32)
    filled = helper.make_node(
        "ConstantOfShape", ["s"], ["c"], value=helper.make_tensor("v", FLOAT, [1], [1.0])
    )
    huge = constant("s", [1 << 22, 1 << 22])
    save("fill-64-tib", [filled, total("c"), add("total")], [huge])
    save("expand-64-tib", [helper.make_node("Expand", ["one", "s"], ["c"]), total("c"), add("total")], [huge, one])
    pads = constant("p", [1 << 45, 1 << 45])
    save("pad-256-tib", [helper.make_node("Pad", ["one", "p"], ["c"]), total("c"), add("total")], [pads, one])
    repeats = constant("r", [1 << 62])
    save("tile-2-to-62", [helper.make_node("Tile", ["one", "r"], ["c"]), total("c"), add("total")], [repeats, one])
    save("dims-2-to-93", [add("w")], [weight([1 << 31, 1 << 31, 1 << 31])])
    save("dims-without-data", [add("w")], [weight([1 << 12, 2])])
    save("dims-negative", [add("w")], [weight([-5, 2])])
    values = numpy_helper.from_array(np.ones(3, dtype=np.float32), "w")
    places = constant("i", [0, 5, 1 << 40])
    save("sparse-outside", [add("w")], sparse=[helper.make_sparse_tensor(values, places, [2, 2])])


def graphs():
    save("cycle", [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Add", ["a", "x"], ["b"]), add("b")])
    save("input-missing", [add("nowhere")])
    save("operator-unknown", [helper.make_node("Strange", ["x"], ["y"], domain="elsewhere")], domains=["elsewhere"])
    own = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    again = helper.make_function("own", "Again", ["a"], ["b"], [helper.make_node("Again", ["a"], ["b"], domain="own")], own)
    save("function-calls-itself", [helper.make_node("Again", ["x"], ["y"], domain="own")], domains=["own"], functions=[again])

    scalar = lambda name, kind: helper.make_tensor_value_info(name, kind, [])
    vector = lambda name: helper.make_tensor_value_info(name, FLOAT, None)
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["still"]), helper.make_node("Add", ["v", "w"], ["sum"])],
        "body",
        [scalar("i", TensorProto.INT64), scalar("more", TensorProto.BOOL), vector("v")],
        [scalar("still", TensorProto.BOOL), vector("sum")],
    )
    loop = helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)
    constants = [constant("times", 1 << 60), constant("yes", True, bool), constant("w", [0.001], np.float32)]
    save("loop-for-ever", [loop], constants)
    # Where the number of turns should be there is nothing: ONNX Runtime reads it all the same.
    save("loop-without-count", [loop], [constant("times", []), *constants[1:]])

    # Each function calls the next one twice: they unfold to 2^30 nodes.
    functions = []
    for level in range(30):
        call = lambda a, b: helper.make_node(f"F{level + 1}", [a], [b], domain="own")
        inner = [call("a", "t"), call("t", "b")] if level < 29 else [helper.make_node("Neg", ["a"], ["b"])]
        functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], inner, own))
    save("functions-unfold", [helper.make_node("F0", ["x"], ["y"], domain="own")], domains=["own"], functions=functions)

    # A product of constants, which ONNX Runtime computes while it loads: some seconds of it.
    nodes = [helper.make_node("Expand", ["one", "s"], ["c0"])]
    nodes += [helper.make_node("MatMul", [f"c{i}", "c0"], [f"c{i + 1}"]) for i in range(80)]
    one = constant("one", [0.001], np.float32)
    save("fold-for-seconds", nodes + [total("c80"), add("total")], [constant("s", [1024, 1024]), one])


def files():
    external("external-absolute", "/etc/hostname")
    external("external-above", "../external-beyond/w.bin")
    external("external-beyond", "w.bin", offset=1 << 40)
    external("external-before", "w.bin", offset=-8)
    external("external-absent", "other.bin")
    external("external-in-memory", "*/_ORT_MEM_ADDR_/*", offset=4096)


if __name__ == "__main__":
    sizes()
    graphs()
    files()
