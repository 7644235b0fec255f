"""Models of Triton's Python backend for tests, and their host."""

import os
import unittest
from array import array

from support import NUMPY, HostTest, wire

HEAD = "import json\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
ADD_SUB = '''
class TritonPythonModel:
    """Adds and subtracts."""
    def initialize(self, args):
        self.args = args
        config = json.loads(args["model_config"])
        out = [pb_utils.get_output_config_by_name(config, name) for name in ("SUM", "DIFFERENCE")]
        self.types = [pb_utils.triton_string_to_numpy(one["data_type"]) for one in out]

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            results = [a + b, a - b]
            tensors = [pb_utils.Tensor(name, value.astype(type)) for name, value, type
                       in zip(("SUM", "DIFFERENCE"), results, self.types)]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def finalize(self):
        print("finalized", flush=True)
'''


def port(name, data_type="TYPE_FP32", dims=(1,), **more):
    """An entry of `input` or `output`."""
    return dict({"name": name, "data_type": data_type, "dims": list(dims)}, **more)


def config(inputs=None, outputs=None, **more):
    """A configuration, as the worker reads it from config.pbtxt."""
    return dict({"backend": "python", "input": inputs or [port("X")],
                 "output": outputs or [port("Y")]}, **more)


def add_sub(**more):
    return config([port("A", dims=(4,)), port("B", dims=(4,))],
                  [port("SUM", dims=(4,)), port("DIFFERENCE", dims=(4,))], **more)


def floats(name, values, shape=(1,)):
    """A column of fp32 with this shape of a row."""
    rows = len(values) // wire.product(shape)
    return wire.Column(name, "fp32", shape, rows, [array("f", values).tobytes()])


def texts(name, values, shape=(1,)):
    """A column of bytes with this shape of a row."""
    column = wire.text_column(name, "bytes", values)
    column.shape = shape
    column.rows = len(values) // wire.product(shape)
    return column


def rows_of(name, rows, type="fp32"):
    """A column whose rows have lengths of their own."""
    flat = [value for row in rows for value in row]
    dims = array("q", [len(row) for row in rows]).tobytes()
    if type == "bytes":
        buffers = wire.text_column(name, "bytes", flat).buffers
    else:
        buffers = [array(wire.FORMATS[type], flat).tobytes()]
    return wire.Column(name, type, (-1,), len(rows), buffers, None, dims)


@unittest.skipUnless(os.path.exists(NUMPY), "needs an interpreter with numpy: " + NUMPY)
class TritonTest(HostTest):
    """A test of models in version folders."""

    def triton(self, text, settings=None, **more):
        """A host of a model with this text of model.py and this configuration."""
        files = {"1/model__py": HEAD + text}
        files.update(more.pop("files", {}))
        given = dict({"config": settings or config(), "version": "1", "instance": 0},
                     **more.pop("triton", {}))
        return self.start(self.directory(**files), python=NUMPY, triton=given, **more)

    def loaded(self, text, settings=None, **more):
        """As `triton`, for a model that must load."""
        client = self.triton(text, settings, **more)
        self.assertIsNone(client.failed, "%s %s" % (client.failed, client.log()))
        return client

    def answer(self, client, *columns, **parameters):
        """The answer to one call."""
        self.last = getattr(self, "last", 0) + 1
        answer = client.call(self.last, list(columns), **parameters)
        client.finish(answer)
        return answer

    def values(self, client, name, *columns, **parameters):
        """The values of an output."""
        answer = self.answer(client, *columns, **parameters)
        self.assertEqual(answer.end["op"], "end", answer.end)
        return answer.values(name)
