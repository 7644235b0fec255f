"""Errors: which text reaches the caller, and which the operator.

A caller sees the text of errors that the model raises on purpose: `ValueError` and `TypeError`
from a `raise` statement in the model's own files, errors of `volley_model`, and those of the
model's interface. Of all others it sees the class. Tracebacks go to the model's log.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import traceback
from typing import Any, Callable, Optional, Tuple

from .context import ModelError
from .interfaces.base import LoadError

LONGEST = 4_096
_RAISE = dis.opmap["RAISE_VARARGS"]
_PATH = re.compile(r"(?<![\w.])/(?:[^\s/'\":]+/)+([^\s/'\":]*)")


def text_of(error: BaseException) -> str:
    """The text of an exception, even of one whose `__str__` fails; always valid UTF-8."""
    try:
        text = str(error)
    except BaseException:  # noqa: B902 - the model's code may raise anything
        text = ""
    return clean(text)


def clean(text: str) -> str:
    """Text that JSON and UTF-8 can carry, of bounded length."""
    return text[:LONGEST].encode("utf-8", "replace").decode("utf-8")


def named(error: BaseException) -> str:
    """Class and text of an exception."""
    text = text_of(error)
    name = type(error).__name__
    return "%s: %s" % (name, text) if text else name


def describe(error: BaseException, directory: str,
             own: Callable[[BaseException], Optional[Tuple[str, str]]]) -> Tuple[str, str]:
    """Code and message for the caller."""
    if isinstance(error, ModelError):
        return error.code, text_of(error) or type(error).__name__
    known = own(error)
    if known is not None:
        return known[0], clean(known[1])
    if isinstance(error, (ValueError, TypeError)) and _is_on_purpose(error, directory):
        return "invalid_input", named(error)
    return "internal", "the model raised %s" % clean(type(error).__name__)


def _is_on_purpose(error: BaseException, directory: str) -> bool:
    """Whether a `raise` statement in a file of the model raised the error."""
    trace = error.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    file = os.path.realpath(code.co_filename)
    if not file.startswith(directory + os.sep) or "site-packages" in file:
        return False
    return 0 <= trace.tb_lasti and code.co_code[trace.tb_lasti] == _RAISE


def report(error: BaseException, request_id: str) -> None:
    """Writes the traceback to the model's log."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        sys.stderr.write("request %s failed\n%s" % (request_id, "".join(lines)))
        sys.stderr.flush()
    except BaseException:  # noqa: B902 - texts of the model's exceptions may fail
        sys.stderr.write("request %s failed: %s\n" % (request_id, type(error).__name__))


def load_message(error: BaseException, directory: str) -> str:
    """The message of a failed load, for the operator."""
    if isinstance(error, LoadError):
        return clean(str(error))
    if isinstance(error, SyntaxError):
        file = os.path.basename(error.filename or "the model's file")
        return clean("%s, line %s: %s" % (file, error.lineno, error.msg))
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.split(".")[0]
        return clean(
            "the package '%s' is not installed in the model's environment; add it to the model's "
            "requirements.txt" % package
        )
    where = _place(error, directory)
    text = _without_paths(named(error), directory)
    return clean("loading the model raised %s%s" % (text, where))


def _place(error: BaseException, directory: str) -> str:
    """The last line of the model's own files that the error passed."""
    found = ""
    trace: Optional[Any] = error.__traceback__
    while trace is not None:
        file = os.path.realpath(trace.tb_frame.f_code.co_filename)
        if file.startswith(directory + os.sep):
            found = " (%s, line %d)" % (os.path.relpath(file, directory), trace.tb_lineno)
        trace = trace.tb_next
    return found


def _without_paths(text: str, directory: str) -> str:
    """The text with file names in place of paths outside of the model's directory."""
    return _PATH.sub(r"\1", text.replace(directory + os.sep, ""))
