"""Inferless' models: `app.py` with a class `InferlessPythonModel`, and `input_schema.py`.

INPUT_SCHEMA tells the inputs. BYTES are texts, as in Inferless. A shape [1] is one value; other
fixed shapes are lists of that shape; [-1] is a list of any length. JSON and OBJECT are additions:
a dict. OUTPUT_SCHEMA, of the same form, is an addition too; without it the model runs once with
the examples of its inputs to learn its outputs.

A streaming model (IS_STREAMING_OUTPUT, or `infer` with a stream_output_handler) generates text:
its required STRING input is the prompt, the others are parameters of the request. Of an event
with one text the text is sent; any other event is sent as one line of JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import threading
import types
from typing import Any, Dict, List, NamedTuple, Optional

from ..answers import AnswerError, check_names, input_values, of_values
from ..context import InvalidInput, Unsupported
from ..wire import Column, Field
from . import inferless_typed
from .base import LoadError, Model, Row, Source
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
        return Streaming(instance, inputs)
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


class Streaming(Inferless):
    """A model that sends events to a handler."""

    task = "generate"

    def __init__(self, instance: Any, inputs: List[Input]) -> None:
        super().__init__(instance, inputs)
        texts = [entry for entry in inputs if entry.is_text and not entry.field.nullable]
        named = [entry for entry in texts if entry.field.name == "prompt"]
        if len(texts) != 1 and not named:
            names = ", ".join(entry.field.name for entry in texts) or "none"
            raise LoadError("a streaming model needs exactly one required STRING input of the "
                            "shape [1], its prompt; INPUT_SCHEMA has %s" % names)
        self._prompt = (named or texts)[0].field.name
        self._fields = {entry.field.name: entry.field for entry in inputs
                        if entry.field.name != self._prompt}
        self.parameters = list(self._fields)

    def generate(self, row: Row, emit: Any) -> None:
        """Gives the events of one row to `emit`."""
        if row.messages is not None:
            raise Unsupported("the model takes a prompt and no chat")
        inputs: Dict[str, Any] = {self._prompt: row.prompt}
        for name, value in row.parameters.items():
            if name not in self._fields:
                raise InvalidInput("the model has no parameter '%s'" % name)
            if value is not None:
                inputs[name] = self._checked(self._fields[name], value)
        for name, field in self._fields.items():
            if name not in inputs and not field.nullable:
                raise InvalidInput("the model needs the parameter '%s'" % name)
        handler = StreamHandler(emit)
        try:
            self.instance.infer(inputs, stream_output_handler=handler)
        finally:
            handler.close()
        if handler.error is not None:
            raise handler.error

    @staticmethod
    def _checked(field: Field, value: Any) -> Any:
        try:
            return of_values(field, [value]).values()[0]
        except AnswerError:
            raise InvalidInput("parameter '%s' must be %s%s and is %s" % (
                field.name, field.type, list(field.shape) if field.shape else "",
                type(value).__name__)) from None


class StreamHandler:
    """What `infer` gets as its stream_output_handler. Any thread may use it."""

    def __init__(self, emit: Any) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._is_closed = False
        self._kinds: Optional[Dict[str, str]] = None
        self.error: Optional[BaseException] = None

    def send_streamed_output(self, event: Dict[str, Any]) -> None:
        """Sends one event. Waits while nobody reads; raises when the call is cancelled."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if self._is_closed:
                return
            try:
                self._emit(self._text_of(event))
            except BaseException as error:
                # Kept, because the model may catch it and go on.
                self.error = error
                raise

    def finalise_streamed_output(self) -> None:
        """The end of the stream; later events are dropped."""
        self.close()

    finalize_streamed_output = finalise_streamed_output

    def close(self) -> None:
        """Drops events from now on."""
        self._is_closed = True

    def _text_of(self, event: Any) -> str:
        if not isinstance(event, dict):
            raise AnswerError("the model streamed %s; an event is a dict" % type(event).__name__)
        kinds = {str(key): type(value).__name__ for key, value in event.items()}
        if self._kinds is None:
            self._kinds = kinds
        elif kinds != self._kinds:
            raise AnswerError("the model streamed an event that differs from the first one: "
                              + difference(self._kinds, kinds))
        values = list(event.values())
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        try:
            return json.dumps(event, allow_nan=False, default=plain) + "\n"
        except (TypeError, ValueError):
            raise AnswerError("the model streamed an event that is not JSON") from None


def plain(value: Any) -> Any:
    """Values of numpy and bytes in JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(type(value).__name__)


def difference(first: Dict[str, str], other: Dict[str, str]) -> str:
    """The difference of two events, by keys and types."""
    parts = []
    missing = [key for key in first if key not in other]
    added = [key for key in other if key not in first]
    if missing:
        parts.append("keys missing: " + ", ".join(missing))
    if added:
        parts.append("keys added: " + ", ".join(added))
    for key, kind in first.items():
        if key in other and other[key] != kind:
            parts.append("the type of %s was %s and is %s" % (key, kind, other[key]))
    return "; ".join(parts)


