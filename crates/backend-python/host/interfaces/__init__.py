"""The programming interfaces of models. A new one is one file here and one line in `FILES`."""

from __future__ import annotations

import ast
import importlib
import os
import sys

from .base import LoadError, Model, Source

#: The file of each interface; it has a function `load(source) -> Model`.
FILES = {
    "plain": "plain",
    "inferless": "inferless",
    "mlserver": "mlserver",
    "triton": "triton",
}


def load(interface: str, source: Source) -> Model:
    """Loads the model of a directory."""
    if not os.path.isdir(source.directory):
        raise LoadError("the model's directory does not exist")
    if interface == "auto":
        interface = recognise(source)
    file = FILES.get(interface)
    if file is None:
        raise LoadError("the interface '%s' is unknown; there are auto, %s"
                        % (interface, ", ".join(FILES)))
    module = importlib.import_module("." + file, __package__)
    # From here on, files of the model are run.
    sys.dont_write_bytecode = True
    return module.load(source)


def recognise(source: Source) -> str:
    """The interface that the files of a directory are written for."""
    def has(*names: str) -> bool:
        return os.path.isfile(os.path.join(source.directory, *names))

    file = str(source.parameters.get("file", ""))
    if file and file != "model-settings.json":
        is_app = os.path.basename(file) == "app.py"
        return "inferless" if is_app and defines_inferless(source.directory, file) else "plain"
    if source.triton is not None:
        # The worker found a model of a Triton repository.
        return "triton"
    if has("model-settings.json"):
        return "mlserver"
    if has("app.py") and (has("input_schema.py") or defines_inferless(source.directory, "app.py")):
        return "inferless"
    if any(name.endswith(".py") for name in os.listdir(source.directory)):
        return "plain"
    raise LoadError(
        "the directory has no Python model; looked for model-settings.json (MLServer), app.py with "
        "input_schema.py or a class InferlessPythonModel (Inferless), config.pbtxt and 1/model.py "
        "(Triton), and model.py, predict.py, app.py, main.py or a single .py file (plain Python)"
    )


def defines_inferless(directory: str, file: str) -> bool:
    """Whether a file has Inferless' class or imports its package; the file is not run."""
    try:
        with open(os.path.join(directory, file), "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        (isinstance(node, ast.ClassDef) and node.name == "InferlessPythonModel")
        or (isinstance(node, ast.Import) and any(name.name == "inferless" for name in node.names))
        for node in tree.body)


__all__ = ["FILES", "LoadError", "Model", "Source", "load", "recognise"]
