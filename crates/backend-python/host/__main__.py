"""The host of one Python model: a program that a worker starts for each replica.

The worker's socket is the standard input. The host loads the model that the first message names
and answers calls until the socket ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
import threading
import types
from typing import Any, Dict, Optional

PACKAGE = "volley_host"
#: The oldest version of Python that runs models.
OLDEST = (3, 8)
#: Seconds that a model may take to unload. The worker kills the process a second later.
UNLOAD_GRACE = 5.0
#: Exit status when the socket has ended.
LOST = 2
PR_SET_PDEATHSIG = 1


def make_package() -> None:
    """Makes the host's modules a package, so that none has the name of a model's module."""
    directory = os.path.dirname(os.path.abspath(__file__))
    package = types.ModuleType(PACKAGE)
    package.__path__ = [directory]
    sys.modules[PACKAGE] = package
    # The next process of a model starts faster; the model's own files stay as they are.
    sys.dont_write_bytecode = False
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != directory]


def take_socket() -> socket.socket:
    """The worker's socket, under a number that no child inherits; standard input becomes empty."""
    number = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0, inheritable=True)
    os.close(empty)
    connection = socket.socket(fileno=number)
    connection.setblocking(True)
    # A forked child does not keep the connection open.
    os.register_at_fork(after_in_child=connection.close)
    return connection


def die_with_parent() -> None:
    """Has the kernel end this process when its parent ends."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(1)


def end(status: int) -> None:
    """Ends this process and, where it leads its group, all that it started."""
    for output in (sys.stdout, sys.stderr):
        try:
            output.flush()
        except BaseException:  # noqa: B902 - the model may have replaced it
            pass
    if os.getpgrp() == os.getpid():
        # `signal.signal` works on the main thread only.
        ignore = ctypes.c_void_p(int(signal.SIG_IGN))
        ctypes.CDLL(None).signal(signal.SIGTERM, ignore)
        os.killpg(0, signal.SIGTERM)
        if status == LOST:
            os.killpg(0, signal.SIGKILL)
    os._exit(status)


class Host:
    """The process: one thread reads messages, the main thread runs the model."""

    def __init__(self, connection: socket.socket) -> None:
        from volley_host import outbox, wire
        self.reader = wire.Reader(connection)
        self.outbox = outbox.Outbox(connection)
        self.calls: Optional[Any] = None
        self.unloaded = threading.Event()

    def run(self) -> None:
        """Loads the model and runs calls until the end. Does not return."""
        first = self.reader.read()
        if first is None or not first[0] or first[0][0].get("op") != "load":
            end(LOST)
            return
        messages, _ = first
        threading.Thread(target=self.read, name="volley-reader", daemon=True).start()
        self.load(messages[0])
        try:
            self.calls.run()
        except BaseException as error:  # noqa: B902 - from the model's unload
            from volley_host import errors
            errors.report(error, "unload")
        self.unloaded.set()
        # The thread that reads ends the process.
        threading.Event().wait()

    def load(self, message: Dict[str, Any]) -> None:
        """Loads the model, or reports why not and ends the process."""
        from volley_host import calls, context, errors, interfaces, logs
        directory = os.path.realpath(message["directory"])
        context.install()
        logs.install(self.outbox)
        source = interfaces.Source(directory, message["model"], message.get("version") or 0,
                                   message.get("parameters") or {}, message.get("triton"))
        try:
            if sys.version_info < OLDEST:
                raise interfaces.LoadError(
                    "the model's interpreter is Python %d.%d, and models need %d.%d or newer; choose "
                    "another one with the parameter 'python'" % (*sys.version_info[:2], *OLDEST))
            model = interfaces.load(message.get("interface") or "auto", source)
        except BaseException as error:  # noqa: B902 - sys.exit while a model is imported
            if not isinstance(error, interfaces.LoadError):
                errors.report(error, "load")
            text = errors.load_message(error, directory)
            self.outbox.put({"op": "failed", "message": text}, flush=True)
            self.outbox.wait_written()
            end(1)
            return
        self.calls = calls.make(model, self.outbox, directory)
        self.outbox.put(model.described(), flush=True)

    def read(self) -> None:
        """Hands messages to the calls until the socket ends."""
        try:
            frame = self.reader.read()
            while frame is not None:
                messages, body = frame
                for message in messages:
                    self.take(message, body)
                # The frame's memory belongs to its calls only.
                frame = messages = message = body = None
                frame = self.reader.read()
        except Exception as error:
            sys.stderr.write("the connection to the worker broke: %s\n" % error)
        if self.calls is not None:
            self.finish(UNLOAD_GRACE)
        end(LOST)

    def take(self, message: Dict[str, Any], body: memoryview) -> None:
        """Carries out one message."""
        op = message.get("op")
        if op == "unload":
            if self.calls is not None:
                self.finish(UNLOAD_GRACE)
            end(0)
        if self.calls is None:
            return
        if op == "call":
            self.calls.start(message, body)
        elif op == "credit":
            self.calls.credit(message["id"], message["rows"])
        elif op == "cancel":
            self.calls.cancel(message["id"])

    def finish(self, grace: float) -> None:
        """Cancels all calls and unloads the model, in `grace` seconds at most."""
        self.calls.cancel_all()
        self.calls.finish()
        self.unloaded.wait(grace)


def main() -> None:
    """The program."""
    connection = take_socket()
    die_with_parent()
    make_package()
    Host(connection).run()


if __name__ == "__main__":
    main()
