"""Plain Python models: a class or a function of a file.

A class is named Model or Predictor, or is the only one with a method `predict`, `generate`,
`stream` or `embed`; otherwise the file has a function of such a name. `__init__` is the load step
and gets the settings of the model that it names. `unload` or `close` is called at the end.
`warm_up` is called after it. Attributes of the class or the file: `concurrency`, `inputs`,
`outputs`, `max_batch_rows`, `batch_window_seconds`, `dimensions`, `route`.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import types
from typing import Any, Callable, Dict, List, Optional

from . import plain_events, plain_table, plain_text
from .base import LoadError, Model, Source

FILES = ("model.py", "predict.py", "app.py", "main.py")
METHODS = ("predict", "generate", "stream", "embed")
CLASSES = ("Model", "Predictor")
#: Settings that say which object of which file the model is.
OWN = ("file", "class", "function")


def load(source: Source) -> Model:
    """Loads the model of a directory."""
    module = load_module(source.directory, find_file(source))
    settings = {name: value for name, value in source.parameters.items() if name not in OWN}
    holder, function = find_object(module, source.parameters, settings)
    if function.__name__ == "embed":
        model = plain_text.Embedding(function)
    elif plain_events.is_events(function, getattr(holder, "outputs", None)):
        model = plain_events.load(function, getattr(holder, "inputs", None),
                                  getattr(holder, "outputs", None))
    elif plain_text.is_generation(function):
        model = plain_text.Generation(function)
    else:
        model = plain_table.load(function, getattr(holder, "inputs", None),
                                 getattr(holder, "outputs", None))
    default = 64 if model.is_async else 1
    model.concurrency = number(holder, "concurrency", int, default)
    model.max_rows = number(holder, "max_batch_rows", int, None)
    model.batch_window = number(holder, "batch_window_seconds", float, None)
    model.route = route_of(holder, model)
    if model.task in ("generate", "events") and model.max_rows is not None:
        raise LoadError("'max_batch_rows' is for models of columns and of embeddings; a model that "
                        "streams is called once for each request")
    is_class = not isinstance(holder, types.ModuleType)
    texts = (type(holder).__doc__ if is_class else None, function.__doc__, module.__doc__)
    model.description = inspect.cleandoc(next(filter(None, texts), ""))
    if is_class:
        model.unload = getattr(holder, "unload", None) or getattr(holder, "close", model.unload)
    warm_up = getattr(holder, "warm_up", None)
    if callable(warm_up):
        warm_up()
    if isinstance(model, plain_text.Embedding):
        model.learn_dimensions(getattr(holder, "dimensions", None))
    return model


def route_of(holder: Any, model: Model) -> Optional[str]:
    """The route that the model declares."""
    route = getattr(holder, "route", None)
    if route is None or callable(route):
        return None
    if not isinstance(route, str) or not route.startswith("/"):
        raise LoadError("the attribute 'route' must be a text such as \"/generate-stream\"")
    if model.task not in ("generate", "events"):
        raise LoadError("the model declares the route '%s' and does not stream; only a generator "
                        "has a route" % route)
    return route


def number(holder: Any, name: str, type: Any, default: Any) -> Any:
    """A declared number."""
    value = getattr(holder, name, None)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != type(value) or (
            value < (1 if type is int else 0)):
        raise LoadError("'%s' must be %s and is %r" % (
            name, "a whole number from 1" if type is int else "a number of seconds", value))
    return type(value)


def find_file(source: Source) -> str:
    """The model's file, relative to its directory."""
    named = source.parameters.get("file")
    if named is not None:
        if not os.path.isfile(os.path.join(source.directory, str(named))):
            raise LoadError("the model's directory has no file '%s'" % named)
        return str(named)
    found = sorted(name for name in os.listdir(source.directory) if name.endswith(".py"))
    for name in FILES:
        if name in found:
            return name
    if len(found) == 1:
        return found[0]
    looked = ", ".join(FILES)
    if not found:
        raise LoadError("the directory has no Python file; looked for %s or a single .py file"
                        % looked)
    raise LoadError("the directory has %d Python files and none of %s; name one with the "
                    "parameter 'file'" % (len(found), looked))


def load_module(directory: str, file: str) -> types.ModuleType:
    """Runs a file of the model; its directory stays on the path."""
    path = os.path.join(directory, file)
    folder = os.path.dirname(path)
    for place in (folder, directory):
        if place not in sys.path:
            sys.path.insert(0, place)
    sys.argv = [path]
    name = os.path.splitext(os.path.basename(file))[0]
    if name in sys.modules or not name.isidentifier():
        name = "model_" + "".join(c if c.isalnum() else "_" for c in name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError("'%s' is not a Python file" % file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def find_object(module: types.ModuleType, parameters: Dict[str, Any],
                settings: Dict[str, Any]) -> "tuple[Any, Callable[..., Any]]":
    """The model's instance or module, and its function."""
    function_name = parameters.get("function")
    model_class = find_class(module, parameters)
    if model_class is not None:
        method = function_name or method_of(model_class)
        if method is None or not callable(getattr(model_class, method, None)):
            raise LoadError("the class '%s' has no method %s" % (
                model_class.__name__, method or " or ".join(METHODS)))
        instance = model_class(**load_arguments(model_class, settings))
        return instance, getattr(instance, method)
    names = [function_name] if function_name else METHODS
    for name in names:
        function = getattr(module, name, None)
        if callable(function):
            if settings:
                raise LoadError("the model is a function and has no setting '%s'; a class gets "
                                "settings in its __init__" % next(iter(settings)))
            return module, function
    wanted = "function '%s'" % function_name if function_name else (
        "class Model or Predictor and no function predict, generate, stream or embed")
    raise LoadError("the file '%s' has no %s" % (os.path.basename(module.__file__ or ""), wanted))


def find_class(module: types.ModuleType, parameters: Dict[str, Any]) -> Optional[type]:
    """The model's class; None when the model is a function."""
    named = parameters.get("class")
    if named is not None:
        found = getattr(module, str(named), None)
        if not isinstance(found, type):
            raise LoadError("the file has no class '%s'" % named)
        return found
    function = parameters.get("function")
    if function is not None and callable(getattr(module, str(function), None)):
        return None
    own = [value for value in vars(module).values()
           if isinstance(value, type) and value.__module__ == module.__name__]
    for name in CLASSES:
        if isinstance(getattr(module, name, None), type) and method_of(getattr(module, name)):
            return getattr(module, name)
    with_method = [value for value in own if method_of(value)]
    if len(with_method) > 1:
        names = ", ".join(value.__name__ for value in with_method)
        raise LoadError("the file has more than one class that could be the model (%s); name one "
                        "with the parameter 'class'" % names)
    return with_method[0] if with_method else None


def method_of(model_class: type) -> Optional[str]:
    """The name of the method that answers requests."""
    for name in METHODS:
        if callable(getattr(model_class, name, None)):
            return name
    return None


def load_arguments(model_class: type, settings: Dict[str, Any]) -> Dict[str, Any]:
    """The keyword arguments of `__init__`."""
    if model_class.__init__ is object.__init__:
        names: List[str] = []
        required: List[str] = []
        takes_any = False
    else:
        arguments = list(inspect.signature(model_class.__init__).parameters.values())[1:]
        kinds = inspect.Parameter
        takes_any = any(one.kind is kinds.VAR_KEYWORD for one in arguments)
        plain = [one for one in arguments if one.kind not in (kinds.VAR_KEYWORD,
                                                              kinds.VAR_POSITIONAL)]
        names = [one.name for one in plain]
        required = [one.name for one in plain if one.default is kinds.empty]
    for name in settings:
        if name not in names and not takes_any:
            known = ", ".join(names) or "none"
            raise LoadError("the class '%s' has no setting '%s'; its __init__ takes %s"
                            % (model_class.__name__, name, known))
    for name in required:
        if name not in settings:
            raise LoadError("the class '%s' needs the setting '%s'; add it to the model's "
                            "parameters" % (model_class.__name__, name))
    return settings
