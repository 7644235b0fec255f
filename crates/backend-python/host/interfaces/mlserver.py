"""MLServer's models: `model-settings.json` with a class derived from `mlserver.MLModel`.

The real package `mlserver` of the model's environment is used. All calls run on one event loop, as
in MLServer. A class with its own `predict_stream` streams events of the declared outputs
(`mlserver_events`), or text if it declares no outputs and at most one BYTES input. All others
answer tables with the inputs and outputs that the settings declare.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from typing import Any, AsyncIterator, Dict, List, Optional, Sequence, Tuple

from ..answers import AnswerError, column_of, input_array, input_values
from ..context import CURRENT, Unsupported
from ..loop import event_loop
from ..wire import NUMPY, Column, Field
from .base import LoadError, Model, Row, Source

TYPES = {
    "BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "FP16": "fp16",
    "FP32": "fp32", "FP64": "fp64",
}
#: Calls that run at once on the event loop.
CONCURRENCY = 64
#: Input of a streaming model that declares none.
PROMPT = "prompt"
CODES = {400: "invalid_input", 404: "not_found", 422: "invalid_input", 429: "overloaded",
         501: "unsupported", 503: "overloaded"}


def load(source: Source) -> Model:
    """Loads the model of a directory."""
    if source.directory not in sys.path:
        # MLServer has it there only while it imports the class.
        sys.path.insert(0, source.directory)
    # The whole package first: its modules import each other.
    import mlserver
    from mlserver.context import model_context
    from mlserver.settings import ModelSettings
    try:
        settings = ModelSettings.parse_file(os.path.join(source.directory, "model-settings.json"))
    except ValueError as error:
        raise LoadError("model-settings.json cannot be read: %s" % error) from error
    add_settings(settings, source.parameters)
    # Each read of the property imports the module again.
    implementation = settings.implementation
    with model_context(settings):
        instance = implementation(settings)
        instance.ready = event_loop().run_until_complete(instance.load())
    if not instance.ready:
        raise LoadError("the model's load() returned %r, so the model is not ready; return True"
                        % (instance.ready,))
    warn_of_handlers(implementation)
    declared = list(instance.inputs or settings.inputs or [])
    streams = implementation.predict_stream is not mlserver.MLModel.predict_stream
    is_text = not declared or (len(declared) == 1 and declared[0].datatype == "BYTES")
    outputs = list(instance.outputs or settings.outputs or [])
    if streams and is_text and not outputs:
        name = declared[0].name if declared else PROMPT
        return Streaming(instance, settings, model_context, name)
    requested = None
    if not declared and not outputs:
        from . import mlserver_runtimes
        found_by_runtime = mlserver_runtimes.declare(instance, settings, model_context)
        if found_by_runtime is not None:
            declared, outputs = found_by_runtime
            requested = mlserver_runtimes.requested([output.name for output in outputs])
    for name, found in (("inputs", declared), ("outputs", outputs)):
        if not found:
            raise LoadError(
                "the model declares no %s; add them to model-settings.json: \"%s\": [{\"name\": "
                "\"x\", \"datatype\": \"FP32\", \"shape\": [-1, 4]}]" % (name, name))
    if streams:
        from .mlserver_events import Events
        return Events(instance, settings, model_context, declared, outputs)
    model = Table(instance, settings, model_context, declared, outputs)
    model.requested = requested
    return model


def add_settings(settings: Any, parameters: Dict[str, Any]) -> None:
    """Passes the settings of the model version on as `parameters.extra`."""
    own = {name: value for name, value in parameters.items() if name != "file"}
    if not own:
        return
    from mlserver.settings import ModelParameters
    if settings.parameters is None:
        settings.parameters = ModelParameters()
    settings.parameters.extra = {**(settings.parameters.extra or {}), **own}


def warn_of_handlers(implementation: Any) -> None:
    """Says that routes of `@custom_handler` are not served."""
    for name, _ in inspect.getmembers(implementation, inspect.isfunction):
        if hasattr(getattr(implementation, name), "__custom_handler__"):
            logging.getLogger(__name__).warning(
                "the route of '%s' (custom_handler) is not served", name)


class MlServer(Model):
    """The common part of both kinds."""

    interface = "mlserver"
    is_async = True
    concurrency = CONCURRENCY
    any_parameter = True

    def __init__(self, instance: Any, settings: Any, context: Any) -> None:
        super().__init__()
        self.instance = instance
        self.settings = settings
        self.context = context
        self.description = inspect.cleandoc(type(instance).__doc__ or "")

    async def unload(self) -> None:
        """Runs the model's `unload`."""
        with self.context(self.settings):
            await self.instance.unload()

    def error_of(self, error: BaseException) -> Optional[Tuple[str, str]]:
        """The code of an error of MLServer."""
        from mlserver.errors import MLServerError
        if not isinstance(error, MLServerError):
            return None
        return CODES.get(getattr(error, "status_code", 400), "internal"), str(error)

    def request(self, inputs: List[Any], parameters: Dict[str, Any]) -> Any:
        """A request of the inference protocol."""
        from mlserver.types import InferenceRequest, Parameters
        call = CURRENT.get()
        return InferenceRequest(
            id=call.request.request_id if call is not None else None,
            model_name=self.settings.name,
            parameters=Parameters(**parameters) if parameters else None, inputs=inputs)


class Streaming(MlServer):
    """A class with its own `predict_stream`."""

    task = "generate"

    def __init__(self, instance: Any, settings: Any, context: Any, name: str) -> None:
        super().__init__(instance, settings, context)
        self._name = name

    async def generate(self, row: Row, emit: Any) -> None:
        """Gives the first text of each response to `emit`."""
        from mlserver.codecs import StringCodec
        if row.messages is not None:
            raise Unsupported("the model takes a prompt and no chat")
        prompt = StringCodec.encode_input(self._name, [row.prompt])
        request = self.request([prompt], row.parameters)

        async def payloads() -> AsyncIterator[Any]:
            yield request

        with self.context(self.settings):
            responses = self.instance.predict_stream(payloads())
            try:
                async for response in responses:
                    text = first_text(response)
                    if text is not None:
                        await emit(text)
            finally:
                close = getattr(responses, "aclose", None)
                if close is not None:
                    await close()


def first_text(response: Any) -> Optional[str]:
    """The first element of the first BYTES output of a response."""
    for output in response.outputs:
        if output.datatype == "BYTES":
            for value in flat(data_of(output)):
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return None


def datatype_of(tensor: Any) -> str:
    """The name of a tensor's datatype."""
    datatype = tensor.datatype
    # The value of an enumeration is a property, which takes longer.
    return str.__str__(datatype) if isinstance(datatype, str) else str(datatype.value)


def data_of(tensor: Any) -> Any:
    """The values of a tensor: an array, or lists."""
    return getattr(tensor.data, "root", tensor.data)


def flat(values: Any) -> List[Any]:
    """The values of nested lists, arrays or one value."""
    if not isinstance(values, (list, tuple)):
        if not hasattr(values, "tolist"):
            return [values]
        values = values.tolist()
        if not isinstance(values, list):
            return [values]
    for value in values:
        if isinstance(value, (list, tuple)):
            return [one for value in values for one in flat(value)]
    return list(values)


def field_of(kind: str, tensor: Any) -> Field:
    """The field of a declared input or output; the first length of a shape is that of the batch."""
    content = getattr(tensor.parameters, "content_type", None) if tensor.parameters else None
    datatype = getattr(tensor.datatype, "value", tensor.datatype)
    if datatype == "BYTES":
        type = "utf8" if content in (None, "str") else "bytes"
    elif datatype in TYPES:
        type = TYPES[datatype]
    else:
        raise LoadError("%s '%s' has the datatype %s, which is not supported"
                        % (kind, tensor.name, datatype))
    shape = tuple(tensor.shape[1:])
    if type not in NUMPY or shape == (1,):
        shape = ()
    if any(length < 0 for length in shape):
        raise LoadError("%s '%s' has the shape %s in model-settings.json; only its first length "
                        "may be -1" % (kind, tensor.name, list(tensor.shape)))
    return Field(tensor.name, type, shape)


class Table(MlServer):
    """A class with `predict`."""

    #: The outputs that each request names; None for the model's default.
    requested: Optional[List[Any]] = None

    def __init__(self, instance: Any, settings: Any, context: Any, inputs: Sequence[Any],
                 outputs: Sequence[Any]) -> None:
        super().__init__(instance, settings, context)
        self.inputs = [field_of("input", tensor) for tensor in inputs]
        self.outputs = [field_of("output", tensor) for tensor in outputs]
        self._declared_in = list(inputs)
        self.declared_out = [datatype_of(tensor) for tensor in outputs]
        # As in MLServer, requests are put together when both are set.
        if (settings.max_batch_size or 0) > 1 and settings.max_batch_time:
            self.max_rows = settings.max_batch_size
            self.batch_window = float(settings.max_batch_time)

    async def answer(self, rows: int, columns: Dict[str, Column],
                     parameters: Dict[str, Any]) -> List[Column]:
        """The outputs of all rows."""
        request = self.request_of(rows, columns, parameters)
        with self.context(self.settings):
            response = await self.instance.predict(request)
        found = self.named(response)
        columns_out = []
        for field, datatype in zip(self.outputs, self.declared_out):
            if field.name not in found:
                raise AnswerError("the model's answer has no output '%s'; it has %s"
                                  % (field.name, ", ".join(found) or "none"))
            columns_out.append(self.output(field, datatype, found[field.name], rows))
        return columns_out

    def request_of(self, rows: int, columns: Dict[str, Column], parameters: Dict[str, Any]) -> Any:
        """The request of a call."""
        pairs = zip(self.inputs, self._declared_in)
        inputs = [self._input(field, tensor, columns, rows) for field, tensor in pairs]
        request = self.request(inputs, parameters)
        request.outputs = self.requested
        return request

    def named(self, response: Any) -> Dict[str, Any]:
        """The outputs of a response by name; the only one has the name of the only declared one."""
        found = {output.name: output for output in response.outputs}
        if len(found) == 1 and len(self.outputs) == 1:
            found = {self.outputs[0].name: response.outputs[0]}
        return found

    @staticmethod
    def _input(field: Field, tensor: Any, columns: Dict[str, Column], rows: int) -> Any:
        from mlserver.types import RequestInput
        shape = [rows] + [abs(length) for length in tensor.shape[1:]]
        parameters = tensor.parameters
        if field.type in NUMPY:
            data: Any = input_array(field, columns, rows).reshape(shape)
        else:
            data = input_values(field, columns, rows)
            shape = shape[:1] if len(shape) == 1 else [rows, 1]
        return RequestInput(name=field.name, shape=shape, datatype=tensor.datatype, data=data,
                            parameters=parameters)

    @staticmethod
    def output(field: Field, datatype: str, output: Any, rows: int) -> Column:
        """The column of an output, which is declared with a datatype."""
        found = datatype_of(output)
        if found != datatype:
            raise AnswerError("output column '%s' of the model has the type %s and declares %s"
                              % (field.name, found, datatype))
        values = data_of(output)
        if field.type not in NUMPY:
            texts = flat(values)
            if field.type == "utf8":
                texts = [text.decode("utf-8", "replace") if isinstance(text, bytes) else text
                         for text in texts]
            return column_of(field, texts, rows)
        import numpy
        array = numpy.asarray(values, dtype=NUMPY[field.type])
        shape = (rows,) + field.shape
        if array.size != rows * field.size():
            raise AnswerError("output column '%s' of the model has the shape %s and the request "
                              "needs %s" % (field.name, list(output.shape), list(shape)))
        return column_of(field, array.reshape(shape), rows)
