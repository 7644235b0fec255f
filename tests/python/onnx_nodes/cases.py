"""The ONNX standard's node tests, and which of them have a form in the protocol."""

import contextlib
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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


def load(folder, every=1, only=None):
    """All cases, every n-th of them, or those whose name has `only` in it; models in `folder`."""
    from onnx.backend.test.loader import load_model_tests

    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = sorted(load_model_tests(kind="node"), key=lambda test: test.name)
    if only:
        tests = [test for test in tests if only in test.name]
    return [case(test, Path(folder)) for test in tests[::every]]


def case(test, folder):
    directory = folder / test.name
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(test.model, directory / "model.onnx")
    graph = test.model.graph
    fixed = {tensor.name for tensor in graph.initializer}
    inputs = [port(value) for value in graph.input if value.name not in fixed]
    sets = [([array(v) for v in given], [array(v) for v in wanted]) for given, wanted in test.data_sets]
    outputs = [port(value) for value in graph.output]
    return Case(test.name, directory, inputs, outputs, sets, test.rtol, test.atol)


def port(value):
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return Port(value.name, 0, None, str(kind).removesuffix("_type"))
    element = value.type.tensor_type.elem_type
    datatype = DATATYPES.get(element)
    lacking = None if datatype else TensorProto.DataType.Name(element).lower()
    return Port(value.name, element, datatype, lacking)


def array(value):
    """A test's value as an array; sequences and the like as they are."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)) or value is None:
        return value
    return np.asarray(value)
