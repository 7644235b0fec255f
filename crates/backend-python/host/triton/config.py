"""The configuration of a model: config.pbtxt as JSON, as the worker passes it, with defaults."""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..interfaces.base import LoadError
from ..wire import Field
from . import types

#: Fields that a model finds in its configuration even if config.pbtxt does not have them.
DEFAULTS: Dict[str, Any] = {
    "platform": "", "backend": "python", "runtime": "", "max_batch_size": 0, "input": [],
    "output": [], "batch_input": [], "batch_output": [], "instance_group": [],
    "default_model_filename": "model.py", "cc_model_filenames": {}, "metric_tags": {},
    "parameters": {}, "model_warmup": [],
}
TENSOR_DEFAULTS = {
    "input": {"format": "FORMAT_NONE", "is_shape_tensor": False, "allow_ragged_batch": False,
              "optional": False, "is_non_linear_format_io": False},
    "output": {"label_filename": "", "is_shape_tensor": False, "is_non_linear_format_io": False},
}
#: Fields that would change what a model gets, with what to do instead.
REFUSED = {
    "sequence_batching": "keep the state of a sequence outside of the model, by correlation_id()",
    "batch_input": "remove it",
    "batch_output": "remove it",
    "model_operations": "remove it",
    "ensemble_scheduling": "register an ensemble with `volley model register --repository`",
    "model_warmup": "run the warm-up in initialize()",
}
#: Further fields that have an effect.
KNOWN = ("name", "version_policy", "model_transaction_policy", "dynamic_batching")
BATCHING = ("preferred_batch_size", "max_queue_delay_microseconds")
KINDS = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_MODEL": "MODEL"}
#: The device file of the first GPU.
GPU = "/dev/nvidia0"


class Port(NamedTuple):
    """A declared input or output."""

    field: Field
    #: The shape of a row in the model, where `reshape` differs from `dims`.
    inner: Optional[Tuple[int, ...]]
    ragged: bool


def complete(config: Dict[str, Any], model: str, parameters: Dict[str, Any]) -> Dict[str, Any]:
    """The configuration with defaults, the name of the model and the parameters of its version."""
    whole = {**DEFAULTS, **config, "name": model}
    whole = {name: list(value) if isinstance(value, list) else value
             for name, value in whole.items()}
    whole["parameters"] = {**whole["parameters"], **{
        name: {"string_value": value if isinstance(value, str) else json.dumps(value)}
        for name, value in parameters.items()}}
    return whole


def finish(config: Dict[str, Any]) -> None:
    """Adds what auto_complete_config may have left out; checks what is not supported."""
    for name, instead in REFUSED.items():
        if config.get(name):
            raise LoadError("config.pbtxt has '%s', which is not supported for Python models; %s"
                            % (name, instead))
    idle = without_effect(config)
    if idle:
        logging.getLogger("triton").warning("fields of config.pbtxt without effect: %s",
                                            ", ".join(idle))
    for kind, defaults in TENSOR_DEFAULTS.items():
        config[kind] = [{**defaults, **entry} for entry in config[kind]]
    config.setdefault("version_policy", {"latest": {"num_versions": 1}})
    config.setdefault("model_transaction_policy", {"decoupled": False})
    config["model_transaction_policy"].setdefault("decoupled", False)


def without_effect(config: Dict[str, Any]) -> List[str]:
    """Names of fields that the configuration sets and nobody reads."""
    idle = [name for name, value in config.items()
            if value and name not in DEFAULTS and name not in KNOWN]
    idle += [name for name in ("platform", "runtime", "cc_model_filenames", "metric_tags")
             if config[name]]
    batching = config.get("dynamic_batching") or {}
    idle += ["dynamic_batching." + name for name, value in batching.items()
             if value and name not in BATCHING]
    idle += ["output.label_filename" for entry in config["output"] if entry.get("label_filename")]
    return sorted(set(idle))


def ports(config: Dict[str, Any], kind: str) -> List[Port]:
    """The declared inputs or outputs."""
    if not config[kind]:
        raise LoadError("the model declares no %ss; add '%s' to config.pbtxt, or add_%s in "
                        "auto_complete_config" % (kind, kind, kind))
    return [_port(kind, entry) for entry in config[kind]]


def _port(kind: str, entry: Dict[str, Any]) -> Port:
    name = entry.get("name")
    if not name:
        raise LoadError("an %s of config.pbtxt has no name" % kind)
    data_type = entry.get("data_type")
    type = types.WIRE.get(data_type or "")
    if type is None:
        raise LoadError("the %s '%s' has the data_type %s; Python models have %s"
                        % (kind, name, data_type or "none", ", ".join(types.WIRE)))
    dims = tuple(int(length) for length in entry.get("dims") or [])
    if any(length < -1 for length in dims):
        raise LoadError("the %s '%s' has the dims %s; a length is -1 or more"
                        % (kind, name, list(dims)))
    inner = None
    if entry.get("reshape") is not None:
        inner = tuple(int(length) for length in entry["reshape"].get("shape") or [])
        sizes = [Field(name, type, shape).size() for shape in (dims, inner)]
        if -1 in dims + inner or sizes[0] != sizes[1]:
            raise LoadError("the 'reshape' of '%s' is %s, which does not have as many values as "
                            "its dims %s" % (name, list(inner), list(dims)))
    field = Field(name, type, dims, bool(entry.get("optional")))
    return Port(field, inner, bool(entry.get("allow_ragged_batch")))


def device_of(config: Dict[str, Any], instance: int) -> "tuple[str, str]":
    """Kind and number of the device of an instance, as the groups of instances say."""
    for group in config["instance_group"]:
        kind = group.get("kind") or "KIND_AUTO"
        gpus = [int(gpu) for gpu in group.get("gpus") or []]
        if kind == "KIND_AUTO":
            kind = "KIND_GPU" if gpus or os.path.exists(GPU) else "KIND_CPU"
        if kind not in KINDS:
            raise LoadError("'instance_group' has the kind %s; there are KIND_AUTO, %s"
                            % (kind, ", ".join(KINDS)))
        gpus = (gpus or [0]) if kind == "KIND_GPU" else [0]
        count = max(1, int(group.get("count") or 1))
        if instance < count * len(gpus):
            return KINDS[kind], str(gpus[instance // count])
        instance -= count * len(gpus)
    # More instances than the groups have, or no groups.
    groups = config["instance_group"]
    if groups:
        return device_of({"instance_group": groups[-1:]}, 0)
    return ("GPU", "0") if os.path.exists(GPU) else ("CPU", "0")


def number(value: Any, name: str) -> int:
    """A whole number, which JSON of protocol buffers may have as a text."""
    try:
        return int(value or 0)
    except (TypeError, ValueError):
        raise LoadError("'%s' of config.pbtxt is not a number" % name) from None
