"""The ONNX standard's node tests, and which of them have a form in the protocol."""

from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, numpy_helper

# The protocol's name of each element type that ONNX and Arrow share.
DATATYPES = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.STRING: "BYTES",
}


@dataclass
class Port:
    """An input or output: its name and the protocol's datatype, or why it has none."""

    name: str
    element: int
    datatype: str | None
    lacking: str | None


@dataclass
class Case:
    """One test: a model in a directory of its own, and sets of inputs and expected outputs."""

    name: str
    directory: Path
    inputs: list[Port]
    outputs: list[Port]
    sets: list[tuple[list, list]]
    rtol: float
    atol: float

    def lacking(self):
        """The first type that has no form in Arrow, if any."""
        ports = self.inputs + self.outputs
        return next((port.lacking for port in ports if port.lacking), None)


def load(every=1, only=None):
    """All cases, every n-th of them, or those whose name has `only` in it."""
    from onnx.backend.test.loader import load_model_tests

    tests = sorted(load_model_tests(kind="node"), key=lambda test: test.name)
    if only:
        tests = [test for test in tests if only in test.name]
    return [case(test) for test in tests[::every]]


def case(test):
    directory = Path(test.model_dir)
    graph = onnx.load(directory / "model.onnx", load_external_data=False).graph
    fixed = {tensor.name for tensor in graph.initializer}
    inputs = [port(value) for value in graph.input if value.name not in fixed]
    outputs = [port(value) for value in graph.output]
    folders = sorted(directory.glob("test_data_set_*"))
    sets = [(arrays(folder, "input", inputs), arrays(folder, "output", outputs)) for folder in folders]
    return Case(test.name, directory, inputs, outputs, sets, test.rtol, test.atol)


def arrays(folder, kind, ports):
    """The values of `ports` in a set; None where they are no tensors of types that are served."""
    return [
        array(folder / f"{kind}_{index}.pb") if port.datatype else None
        for index, port in enumerate(ports)
    ]


def array(path):
    return numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))


def port(value):
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Port(value.name, 0, None, str(kind).removesuffix("_type"))
    element = value.type.tensor_type.elem_type
    datatype = DATATYPES.get(element)
    lacking = None if datatype else TensorProto.DataType.Name(element).lower()
    return Port(value.name, element, datatype, lacking)
