"""Triton's Python models: `config.pbtxt` and `1/model.py` with a class `TritonPythonModel`.

The worker reads config.pbtxt and passes it on as JSON. Its inputs and outputs are the columns of
the model. With a `max_batch_size` the rows of a call are the first dimension of its tensors, and
otherwise each row is a request of its own. A decoupled model streams: each of its responses is an
event.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from ..context import ModelError
from ..wire import Column, Field
from .base import LoadError, Model, Source

#: Requests of a decoupled model that are open at once.
DECOUPLED_CONCURRENCY = 64
#: Most requests that wait for one call of `execute`.
MOST_MERGED = 256


def load(source: Source) -> Model:
    """Loads the model of a directory of a repository."""
    from ..triton import config as configuration
    from ..triton import utils
    given = source.triton or {}
    version = str(given.get("version") or newest(source.directory))
    folder = os.path.join(source.directory, version)
    utils.install(source.model, folder)
    config = configuration.complete(given.get("config") or {}, source.model, source.parameters)
    model_class = find_class(source.directory, version, config["default_model_filename"])
    if hasattr(model_class, "auto_complete_config"):
        config = auto_complete(model_class, config)
    configuration.finish(config)
    inputs = configuration.ports(config, "input")
    outputs = configuration.ports(config, "output")
    kind, device = configuration.device_of(config, int(given.get("instance") or 0))
    instance = model_class()
    if not callable(getattr(instance, "execute", None)):
        raise LoadError("the class TritonPythonModel has no method execute; write: "
                        "def execute(self, requests)")
    if hasattr(instance, "initialize"):
        instance.initialize({
            "model_config": json.dumps(config), "model_instance_kind": kind,
            "model_instance_name": "%s_%d" % (source.model, int(given.get("instance") or 0)),
            "model_instance_device_id": device, "model_repository": source.directory,
            "model_version": version, "model_name": source.model,
        })
    if hasattr(instance, "is_ready"):
        logging.getLogger("triton").warning(
            "is_ready of the model is not called: a model is ready once initialize has returned")
    return Triton(instance, config, inputs, outputs)


def newest(directory: str) -> str:
    """The version with the highest number."""
    found = [int(name) for name in os.listdir(directory)
             if name.isdecimal() and os.path.isdir(os.path.join(directory, name))]
    if not found:
        raise LoadError("the directory has no folder of a version, such as 1 with model.py")
    return str(max(found))


def find_class(directory: str, version: str, file: str) -> type:
    """The class of the model, whose folders stay on the path."""
    name, ending = os.path.splitext(file)
    if ending != ".py" or not os.path.isfile(os.path.join(directory, version, file)):
        raise LoadError("the version %s of the model has no file '%s'" % (version, file))
    folder = os.path.join(directory, version)
    sys.path.extend(place for place in (directory, folder) if place not in sys.path)
    sys.argv = [os.path.join(folder, file)]
    importlib.invalidate_caches()
    # As in Triton the module has its version's name, so that its imports may be relative.
    module = importlib.import_module("%s.%s" % (version, name))
    found = getattr(module, "TritonPythonModel", None)
    if not isinstance(found, type):
        raise LoadError("%s/%s has no class TritonPythonModel" % (version, file))
    return found


def auto_complete(model_class: Any, config: Dict[str, Any]) -> Dict[str, Any]:
    """The configuration as the model's own function completes it."""
    from ..triton.utils import ModelConfig
    completed = model_class.auto_complete_config(ModelConfig(config))
    if not isinstance(completed, ModelConfig):
        raise LoadError("auto_complete_config returned %s and must return the object that it got"
                        % type(completed).__name__)
    return completed.as_dict()


class Triton(Model):
    """A loaded model."""

    interface = "triton"
    task = "tensors"
    any_parameter = True

    def __init__(self, instance: Any, config: Dict[str, Any], inputs: List[Any],
                 outputs: List[Any]) -> None:
        super().__init__()
        from ..triton import config as configuration
        number = configuration.number
        self.instance = instance
        self.config = config
        self.description = inspect.cleandoc(type(instance).__doc__ or "")
        self._in, self._out = inputs, outputs
        self.inputs: List[Field] = [port.field for port in inputs]
        self.outputs: List[Field] = [port.field for port in outputs]
        self.decoupled = bool(config["model_transaction_policy"]["decoupled"])
        size = number(config["max_batch_size"], "max_batch_size")
        self.is_batched = size > 0
        #: Most rows of a request.
        self.most = max(1, size)
        batching = config.get("dynamic_batching")
        #: Whether one call of `execute` may get several requests, up to `target` rows in all.
        self.merges = self.is_batched and batching is not None
        preferred = [number(one, "preferred_batch_size")
                     for one in (batching or {}).get("preferred_batch_size") or []]
        self.target = min(self.most, max(preferred, default=self.most))
        wait = (batching or {}).get("max_queue_delay_microseconds")
        #: Seconds that a request waits for others.
        self.delay = min(1.0, number(wait, "max_queue_delay_microseconds") / 1_000_000)
        if self.decoupled:
            self.task = "events"
            self.concurrency = DECOUPLED_CONCURRENCY
        elif self.merges:
            # While one call of `execute` runs, the requests of the next one gather.
            self.concurrency = min(MOST_MERGED, 2 * self.target)

    def own_calls(self, outbox: Any, directory: str) -> Any:
        """The calls of Triton's models."""
        from ..triton.calls import TritonCalls
        return TritonCalls(self, outbox, directory)

    def request(self, call: Any, start: int, stop: int) -> Any:
        """The request of some rows of a call."""
        from ..triton import tensors, values
        own = dict(call.parameters)
        begins, ends = own.pop("sequence_start", False), own.pop("sequence_end", False)
        flags = 1 * bool(begins) + 2 * bool(ends)
        sequence, timeout = own.pop("sequence_id", 0), own.pop("timeout", 0)
        own.pop("priority", None)
        own = {name: value if isinstance(value, (str, int, float, bool)) else json.dumps(value)
               for name, value in own.items()}
        return values.InferenceRequest(
            request_id=call.request.request_id, correlation_id=sequence, flags=flags,
            inputs=tensors.inputs_of(self._in, call.columns, start, stop, self.is_batched),
            requested_output_names=[field.name for field in self.outputs],
            timeout=timeout if isinstance(timeout, int) else 0,
            trace=values.InferenceTrace(call.request.trace), parameters=own)

    def fits(self, one: Dict[str, Column], other: Dict[str, Column], first: int,
             second: int) -> bool:
        """Whether two requests, by their first rows, may be in one call of `execute`: their
        tensors have equal shapes, but for inputs with `allow_ragged_batch`."""
        for port in self._in:
            name = port.field.name
            if (name in one) != (name in other):
                return False
            if name in one and not port.ragged:
                if one[name].row_shape(first) != other[name].row_shape(second):
                    return False
        return True

    def takes(self) -> str:
        """The rows of a request, for messages."""
        return "%d of one shape at most" % self.most if self.is_batched else "one"

    def outputs_of(self, tensors: List[Any], rows: Optional[int]) -> List[Any]:
        """The arrays of a response to a request of so many rows; None leaves them to the model."""
        from ..triton.tensors import outputs_of
        return outputs_of(self._out, tensors, rows, self.is_batched)

    def columns_of(self, parts: List[List[Any]]) -> List[Column]:
        """The columns of the responses to all requests of a call."""
        from ..triton.tensors import column_of
        return [column_of(port, [part[at] for part in parts])
                for at, port in enumerate(self._out)]

    def unload(self) -> None:
        """Runs `finalize`."""
        finalize = getattr(self.instance, "finalize", None)
        if finalize is not None:
            finalize()

    def error_of(self, error: BaseException) -> Optional[Tuple[str, str]]:
        """The text of errors that the model raises on purpose."""
        from ..triton.values import TritonModelException
        if isinstance(error, TritonModelException) and not isinstance(error, ModelError):
            return "internal", str(error)
        return None

    def described(self) -> Dict[str, Any]:
        """The message "loaded", with the configuration for clients."""
        return {**super().described(), "config": self.config}
