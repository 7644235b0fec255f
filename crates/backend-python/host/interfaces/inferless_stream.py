"""Inferless' streaming models: `infer` sends events to a handler.

A model whose events are one text generates text. All others stream events of columns: those of
OUTPUT_SCHEMA, or else those of the first event for the examples of INPUT_SCHEMA.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Callable, Dict, List, Optional

from .. import events
from ..answers import AnswerError, input_values, of_values
from ..context import Cancelled, InvalidInput, Unsupported
from ..wire import Column, Field
from .base import LoadError, Model, Row
from .inferless import Inferless, Input, learned, read_entry

HINT = "add OUTPUT_SCHEMA to input_schema.py, of the form of INPUT_SCHEMA"


def load(instance: Any, inputs: List[Input], declared: Optional[Dict[str, Any]]) -> Model:
    """The model of an instance whose `infer` has a stream_output_handler."""
    prompt = prompt_of(inputs)
    if declared is not None:
        entries = [read_entry("OUTPUT_SCHEMA", *entry) for entry in declared.items()]
        is_text = len(entries) == 1 and entries[0].is_text
        outputs = [entry.field for entry in entries]
    elif all(entry.example is not None or entry.field.nullable for entry in inputs):
        first = first_event(instance, inputs)
        is_text = len(first) == 1 and isinstance(next(iter(first.values())), str)
        outputs = [learned(name, value) for name, value in first.items()]
    elif prompt is not None:
        is_text, outputs = True, []
    else:
        missing = next(entry.field.name for entry in inputs if entry.example is None)
        raise LoadError("the columns of the events are unknown, because the input '%s' has no "
                        "example; %s" % (missing, HINT))
    if is_text and prompt is not None:
        return Streaming(instance, inputs, prompt)
    return Events(instance, inputs, outputs, declared is not None)


def prompt_of(inputs: List[Input]) -> Optional[str]:
    """The name of the input that is the prompt of a model that generates text."""
    texts = [entry.field.name for entry in inputs if entry.is_text and not entry.field.nullable]
    if "prompt" in texts:
        return "prompt"
    return texts[0] if len(texts) == 1 else None


def first_event(instance: Any, inputs: List[Input]) -> Dict[str, Any]:
    """The first event for the examples of the inputs. The call ends with it."""
    found: List[Dict[str, Any]] = []

    def put(event: Dict[str, Any]) -> None:
        found.append(event)
        raise Cancelled()

    example = {entry.field.name: entry.example for entry in inputs if entry.example is not None}
    handler = StreamHandler(put)
    try:
        instance.infer(example, stream_output_handler=handler)
    except Cancelled:
        pass
    except Exception as error:
        if not found:
            from .. import errors
            errors.report(error, "load")
            raise LoadError("the columns of the events are unknown, because infer raised %s for "
                            "the examples of INPUT_SCHEMA; %s"
                            % (type(error).__name__, HINT)) from error
    finally:
        handler.close()
    if not found:
        raise LoadError("infer streamed no event for the examples of INPUT_SCHEMA; " + HINT)
    if not isinstance(found[0], dict) or not found[0]:
        raise LoadError("infer streamed %s for the examples of INPUT_SCHEMA; an event is a dict "
                        "with at least one key" % type(found[0]).__name__)
    return found[0]


class Events(Inferless):
    """A model that streams events of columns, for one row of inputs."""

    task = "events"

    def __init__(self, instance: Any, inputs: List[Input], outputs: List[Field],
                 is_declared: bool) -> None:
        super().__init__(instance, inputs)
        self.inputs = [entry.field for entry in inputs]
        self.outputs = outputs
        self._is_declared = is_declared

    def stream(self, rows: int, columns: Dict[str, Column], parameters: Dict[str, Any],
               send: Any) -> None:
        """Gives each event to `send`."""
        if parameters:
            raise InvalidInput("the model has no parameter '%s'" % next(iter(parameters)))
        if rows != 1:
            raise InvalidInput("the model streams the answer to one row and the request has %d; "
                               "send a request for each row" % rows)
        values = {field.name: input_values(field, columns, 1)[0] for field in self.inputs}
        inputs = {name: value for name, value in values.items() if value is not None}

        def put(event: Dict[str, Any]) -> None:
            send(events.columns_of(self.outputs, event))

        run(self.instance, inputs, StreamHandler(put, not self._is_declared))


class Streaming(Inferless):
    """A model that streams text: its prompt is an input, the others are parameters."""

    task = "generate"

    def __init__(self, instance: Any, inputs: List[Input], prompt: str) -> None:
        super().__init__(instance, inputs)
        self._prompt = prompt
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
        run(self.instance, inputs, StreamHandler(lambda event: emit(text_of(event))))

    @staticmethod
    def _checked(field: Field, value: Any) -> Any:
        try:
            return of_values(field, [value]).values()[0]
        except AnswerError:
            raise InvalidInput("parameter '%s' must be %s%s and is %s" % (
                field.name, field.type, list(field.shape) if field.shape else "",
                type(value).__name__)) from None


def run(instance: Any, inputs: Dict[str, Any], handler: "StreamHandler") -> None:
    """Runs `infer`. Its end is the end of the stream, also without `finalise_streamed_output`."""
    try:
        instance.infer(inputs, stream_output_handler=handler)
    finally:
        handler.close()
    if handler.error is not None:
        raise handler.error


class StreamHandler:
    """What `infer` gets as its stream_output_handler. Any thread may use it."""

    def __init__(self, put: Callable[[Dict[str, Any]], None], is_alike: bool = True) -> None:
        self._put = put
        #: Whether the keys and types of each event are those of the first.
        self._is_alike = is_alike
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
                self._check(event)
                self._put(event)
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

    def _check(self, event: Any) -> None:
        if not isinstance(event, dict):
            raise AnswerError("the model streamed %s; an event is a dict" % type(event).__name__)
        kinds = {str(key): type(value).__name__ for key, value in event.items()}
        if self._kinds is None:
            self._kinds = kinds
        elif self._is_alike and kinds != self._kinds:
            raise AnswerError("the model streamed an event that differs from the first one: "
                              + difference(self._kinds, kinds))


def text_of(event: Dict[str, Any]) -> str:
    """The text of an event: its only value, or else a line of JSON."""
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
