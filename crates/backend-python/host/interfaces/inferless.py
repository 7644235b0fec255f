"""Inferless' models: `app.py` with a class `InferlessPythonModel`, and `input_schema.py`.

INPUT_SCHEMA tells the inputs. BYTES are texts, as in Inferless. A shape [1] is one value; other
fixed shapes are lists of that shape; [-1] is a list of any length. JSON and OBJECT are additions:
a dict. OUTPUT_SCHEMA, of the same form, is an addition too; without it the model runs once with
the examples of its inputs to learn its outputs.

A streaming model (IS_STREAMING_OUTPUT, or `infer` with a stream_output_handler) streams text or
events of columns (`inferless_stream`).
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import types
from typing import Any, Dict, List, NamedTuple

from ..answers import AnswerError, check_names, input_values, of_values
from ..context import InvalidInput
from ..wire import Column, Field
from . import inferless_typed
from .base import LoadError, Model, Source
from .plain import load_module

TYPES = {
    "STRING": "utf8", "BYTES": "utf8", "BOOL": "bool", "INT8": "int8", "INT16": "int16",
    "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32",
    "UINT64": "uint64", "FP16": "fp16", "FP32": "fp32", "FP64": "fp64", "JSON": "json",
    "OBJECT": "json",
}


class Input(NamedTuple):
    """An entry of INPUT_SCHEMA."""

    field: Field
    #: Whether it is a STRING of shape [1].
    is_text: bool
    example: Any


def load(source: Source) -> Model:
    """Loads the model of a directory."""
    file = str(source.parameters.get("file", "app.py"))
    for name in source.parameters:
        if name not in ("file", "class"):
            raise LoadError("an Inferless model has no setting '%s'" % name)
    inferless_typed.install_shim()
    module = load_module(source.directory, file)
    name = str(source.parameters.get("class", "InferlessPythonModel"))
    model_class = getattr(module, name, None) or inferless_typed.find_class(module)
    if model_class is None:
        raise LoadError("%s has no class %s" % (file, name))
    infer = inferless_typed.role(model_class, "infer") or "infer"
    instance = model_class()
    wanted = inferless_typed.request_class(getattr(instance, infer))
    # The schema first: a mistake there is found before a long load.
    schema = None if wanted else load_schema(source.directory, os.path.dirname(file))
    start = getattr(instance, inferless_typed.role(model_class, "load") or "initialize", None)
    if start is not None:
        start()
    if wanted is not None:
        model = inferless_typed.Typed(getattr(instance, infer), wanted,
                                      Inferless(instance, []).unload)
        model.description = inspect.cleandoc(model_class.__doc__ or "")
        return model
    return load_untyped(instance, schema)


def load_untyped(instance: Any, schema: types.ModuleType) -> Model:
    """The model of an instance whose `infer` takes a dict."""
    inputs = [read_entry("INPUT_SCHEMA", *entry) for entry in schema.INPUT_SCHEMA.items()]
    has_handler = "stream_output_handler" in inspect.signature(instance.infer).parameters
    if getattr(schema, "IS_STREAMING_OUTPUT", has_handler):
        if not has_handler:
            raise LoadError("IS_STREAMING_OUTPUT is set and infer has no stream_output_handler; "
                            "write: def infer(self, inputs, stream_output_handler)")
        from . import inferless_stream
        return inferless_stream.load(instance, inputs, getattr(schema, "OUTPUT_SCHEMA", None))
    model = Whole(instance, inputs, int(getattr(schema, "BATCH_SIZE", 1) or 1))
    window = getattr(schema, "BATCH_WINDOW", None)
    if window is not None:
        # In milliseconds.
        model.batch_window = float(window) / 1_000
    declared = getattr(schema, "OUTPUT_SCHEMA", None)
    if declared is not None:
        entries = [read_entry("OUTPUT_SCHEMA", *entry) for entry in declared.items()]
        model.outputs = [entry.field for entry in entries]
    else:
        model.learn_outputs()
    return model


def load_schema(directory: str, folder: str) -> types.ModuleType:
    """Runs `input_schema.py`."""
    path = os.path.join(directory, folder, "input_schema.py")
    if not os.path.isfile(path):
        raise LoadError("the model has no input_schema.py; it tells the inputs: INPUT_SCHEMA = "
                        "{\"prompt\": {\"datatype\": \"STRING\", \"required\": True, "
                        "\"shape\": [1], \"example\": [\"hi\"]}}")
    spec = importlib.util.spec_from_file_location("input_schema", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not isinstance(getattr(module, "INPUT_SCHEMA", None), dict):
        raise LoadError("input_schema.py has no dict INPUT_SCHEMA")
    return module


def read_entry(schema: str, name: str, entry: Dict[str, Any]) -> Input:
    """An entry of a schema."""
    datatype = str(entry.get("datatype", "")).upper()
    type = TYPES.get(datatype)
    if type is None:
        raise LoadError("'%s' of %s has the datatype %s; there are %s"
                        % (name, schema, datatype or "none", ", ".join(TYPES)))
    shape = list(entry.get("shape") or [1])
    is_nullable = not entry.get("required", True)
    example = entry.get("example")
    if shape == [1] or type == "json":
        if shape == [1] and isinstance(example, list) and len(example) == 1:
            example = example[0]
        if type.startswith(("int", "uint")) and not fits(type, example):
            # Published schemas say INT8 with an example of 768.
            type = "int64"
        field = Field(name, type, (), is_nullable)
    elif -1 in shape or type == "utf8":
        field = Field(name, "json", (), is_nullable)
    else:
        field = Field(name, type, tuple(shape), is_nullable)
    return Input(field, datatype == "STRING" and shape == [1], example)


def fits(type: str, example: Any) -> bool:
    """Whether an example is in the range of a type of integers."""
    if not isinstance(example, int):
        return True
    bits = int(type.lstrip("uint"))
    if type.startswith("u"):
        return 0 <= example < 1 << bits
    return -(1 << bits - 1) <= example < 1 << bits - 1


class Inferless(Model):
    """The common part of both kinds."""

    interface = "inferless"

    def __init__(self, instance: Any, inputs: List[Input]) -> None:
        super().__init__()
        self.instance = instance
        self.entries = inputs
        self.description = inspect.cleandoc(type(instance).__doc__ or "")

    def unload(self) -> None:
        """Runs `finalize`, which takes an argument in some models."""
        finalize = getattr(self.instance, "finalize", None)
        if finalize is None:
            return
        arguments = inspect.signature(finalize).parameters.values()
        required = [one for one in arguments if one.default is inspect.Parameter.empty
                    and one.kind is not inspect.Parameter.VAR_POSITIONAL]
        finalize(*[None] * len(required))


class Whole(Inferless):
    """A model that answers with a dict."""

    def __init__(self, instance: Any, inputs: List[Input], batch_size: int) -> None:
        super().__init__(instance, inputs)
        self.inputs = [entry.field for entry in inputs]
        self._batch_size = batch_size
        self.max_rows = batch_size if batch_size > 1 else None

    def learn_outputs(self) -> None:
        """Runs the model once with the examples of its inputs."""
        hint = "add OUTPUT_SCHEMA to input_schema.py, of the form of INPUT_SCHEMA"
        example = {}
        for entry in self.entries:
            if entry.example is not None:
                example[entry.field.name] = entry.example
            elif not entry.field.nullable:
                raise LoadError("the outputs are unknown, because the input '%s' has no example; %s"
                                % (entry.field.name, hint))
        try:
            answer = self._infer([example])[0]
        except Exception as error:
            from .. import errors
            errors.report(error, "load")
            raise LoadError("the outputs are unknown, because infer raised %s for the examples of "
                            "INPUT_SCHEMA; %s" % (type(error).__name__, hint)) from error
        self.outputs = [learned(name, value) for name, value in answer.items()]
        if not self.outputs:
            raise LoadError("infer returned no outputs for the examples of INPUT_SCHEMA; " + hint)

    def answer(self, rows: int, columns: Dict[str, Column],
               parameters: Dict[str, Any]) -> List[Column]:
        """The outputs of all rows."""
        if parameters:
            raise InvalidInput("the model has no parameter '%s'" % next(iter(parameters)))
        values = {field.name: input_values(field, columns, rows) for field in self.inputs}
        inputs = [
            {name: column[row] for name, column in values.items() if column[row] is not None}
            for row in range(rows)
        ]
        answers: List[Dict[str, Any]] = []
        for start in range(0, rows, self._batch_size):
            answers.extend(self._infer(inputs[start:start + self._batch_size]))
        names = [field.name for field in self.outputs]
        for answer in answers:
            check_names(names, answer)
        return [of_values(field, [answer[field.name] for answer in answers])
                for field in self.outputs]

    def _infer(self, inputs: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        if self._batch_size == 1:
            answers = [self.instance.infer(inputs[0])]
        else:
            answers = self.instance.infer(inputs)
        if not isinstance(answers, list) or len(answers) != len(inputs):
            found = len(answers) if isinstance(answers, list) else type(answers).__name__
            raise AnswerError("infer returned %s for a list of %d inputs; it must return a list "
                              "of as many dicts" % (found, len(inputs)))
        for answer in answers:
            if not isinstance(answer, dict):
                raise AnswerError("infer returned %s and must return a dict"
                                  % type(answer).__name__)
        return answers


def learned(name: str, value: Any) -> Field:
    """The output that a value shows. Lists and arrays are JSON, because their lengths differ."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    type = {str: "utf8", bytes: "bytes", bool: "bool", int: "int64", float: "fp64"}.get(
        value.__class__, "json")
    return Field(name, type, (), value is None)
