"""The process: errors of models, output, logs, children, and its end."""

import json
import os
import socket
import subprocess
import sys

from support import HOST, HostTest, wire


def is_alive(pid):
    """Whether a process runs, as far as it is no zombie."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def threads(pid):
    """The number of threads of a process."""
    return len(os.listdir("/proc/%d/task" % pid))


class Process(HostTest):
    def test_texts_of_exceptions(self):
        client = self.model('''
            import json, sys, asyncio, volley_model
            class Odd(Exception):
                def __str__(self): raise RuntimeError("no text")
            class Own(ValueError): pass
            def generate(prompt: str):
                if prompt == "value": raise ValueError("the prompt is too long")
                if prompt == "own": raise Own("mine")
                if prompt == "type": raise TypeError("a list is needed")
                if prompt == "key": {}["secret"]
                if prompt == "int": int("secret")
                if prompt == "add": None + 1
                if prompt == "json": json.loads("{secret")
                if prompt == "odd": raise Odd()
                if prompt == "exit": sys.exit(3)
                if prompt == "interrupt": raise KeyboardInterrupt
                if prompt == "volley": raise volley_model.NotFound("no voice 'x'")
                if prompt == "busy": raise volley_model.Overloaded("later")
                yield "fine"
        ''')
        internal = "the model raised "
        cases = {
            "value": ("invalid_input", "ValueError: the prompt is too long"),
            "own": ("invalid_input", "Own: mine"),
            "type": ("invalid_input", "TypeError: a list is needed"),
            "key": ("internal", internal + "KeyError"),
            "int": ("internal", internal + "ValueError"),
            "add": ("internal", internal + "TypeError"),
            "json": ("internal", internal + "JSONDecodeError"),
            "odd": ("internal", internal + "Odd"),
            "exit": ("internal", internal + "SystemExit"),
            "interrupt": ("internal", internal + "KeyboardInterrupt"),
            "volley": ("not_found", "no voice 'x'"),
            "busy": ("overloaded", "later"),
        }
        for id, (prompt, expected) in enumerate(cases.items()):
            answer = client.prompt(id, prompt)
            client.finish(answer)
            self.assertEqual(answer.error(), expected)
        answer = client.prompt(99, "fine")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["fine"])
        log = client.log()
        self.assertIn("request request-3 failed", log)
        self.assertIn("KeyError: 'secret'", log)

    def test_exit_in_an_asynchronous_model_ends_its_call_only(self):
        client = self.model('''
            import asyncio, sys
            async def exits(): sys.exit(3)
            async def generate(prompt: str):
                if prompt == "exit": sys.exit(3)
                if prompt == "task": await asyncio.ensure_future(exits())
                yield "fine"
        ''')
        for id, prompt in enumerate(("exit", "task")):
            answer = client.prompt(id, prompt)
            client.finish(answer)
            self.assertEqual(answer.error(), ("internal", "the model raised SystemExit"))
        answer = client.prompt(9, "x")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["fine"])

    def test_a_megabyte_in_one_line_of_output(self):
        client = self.model('''
            import os, sys
            def generate(prompt: str):
                print("x" * 1_000_000)
                os.write(1, b"y" * 1000)
                print(repr(sys.stdin.read()))
                yield "fine"
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["fine"])
        self.assertIn("x" * 1_000_000, client.log())

    def test_records_of_logging(self):
        client = self.model('''
            import logging
            logging.getLogger("own").info("loading %d", 1)
            def generate(prompt: str):
                logging.getLogger("own").warning("w" * 10000)
                logging.error("bad %d", "arguments")
                for number in range(3000):
                    logging.info("many")
                yield "fine"
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        first, second, third = client.logs[:3]
        self.assertEqual((first["level"], first["message"]), ("info", "loading 1"))
        self.assertIsNone(first["id"])
        self.assertEqual((second["level"], second["id"]), ("warning", 1))
        self.assertLessEqual(len(second["message"]), 8192)
        self.assertEqual(third["message"], "bad %d")
        self.assertLess(len(client.logs), 2_500)

    def test_the_end_of_the_socket_ends_the_process_and_its_children(self):
        client = self.model('''
            import multiprocessing, os, subprocess, time
            context = multiprocessing.get_context("fork")
            def generate(prompt: str):
                forked = context.Process(target=time.sleep, args=(1000,), daemon=True)
                forked.start()
                other = subprocess.Popen(["sleep", "1000"])
                yield "%d" % forked.pid
                yield "%d" % other.pid
                while True:
                    time.sleep(0.01)
                    yield ""
        ''')
        answer = client.prompt(1, "x")
        client.wait(lambda: len(answer.texts()) > 2)
        children = [int(text) for text in answer.texts()[:2]]
        self.assertTrue(all(map(is_alive, children)))
        client.socket.close()
        self.assertNotEqual(client.exit_status(), 0)
        self.until(lambda: not any(map(is_alive, children)))

    def test_a_model_that_hangs_does_not_outlive_the_socket(self):
        client = self.model('''
            import time
            def generate(prompt: str):
                yield "a"
                while True:
                    time.sleep(1000)
        ''')
        answer = client.prompt(1, "x")
        client.wait(lambda: bool(answer.columns))
        client.socket.close()
        client.exit_status()

    def test_unload_runs_the_models_own(self):
        for kind in ("", "async "):
            client = self.model('''
                class Model:
                    %sdef generate(self, prompt: str):
                        yield prompt
                    def close(self):
                        print("unloaded", flush=True)
            ''' % kind)
            client.finish(client.prompt(1, "x"))
            client.send({"op": "unload"})
            self.assertEqual(client.exit_status(), 0)
            self.assertIn("unloaded", client.log())

    def test_the_end_of_the_parent_ends_the_process(self):
        directory = self.directory(model__py="import time; time.sleep(1000)")
        # The socket stays open in this process, so only the parent's end is left.
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        message = json.dumps({"op": "load", "directory": directory, "interface": "auto",
                              "model": "m", "version": 1, "parameters": {}}).encode()
        wire.send(ours, wire.pack([message], wire.Body()))
        starter = ("import subprocess, sys; host = subprocess.Popen(sys.argv[1:], stdin=0); "
                   "print(host.pid, flush=True); host.wait()")
        parent = subprocess.Popen(
            [sys.executable, "-c", starter, sys.executable, "-I", "-B", "-u", HOST], stdin=theirs,
            stdout=subprocess.PIPE)
        self.addCleanup(parent.stdout.close)
        host = int(parent.stdout.readline())
        self.until(lambda: threads(host) > 2)
        parent.kill()
        parent.wait()
        self.until(lambda: not is_alive(host))

    def test_a_forked_child_that_returns_ends(self):
        client = self.model('''
            import os
            def generate(prompt: str):
                child = os.fork()
                if child == 0:
                    if prompt == "exit":
                        raise SystemExit(0)
                    return
                os.waitpid(child, 0)
                yield "parent"
        ''')
        for id, prompt in enumerate(("exit", "return")):
            answer = client.prompt(id, prompt)
            client.finish(answer)
            self.assertEqual(answer.texts(), ["parent"])

    def test_an_exit_of_the_process_ends_the_socket(self):
        client = self.model('''
            import os
            def generate(prompt: str):
                os._exit(7)
                yield ""
        ''')
        client.prompt(1, "x")
        self.assertFalse(client.read())
        self.assertEqual(client.exit_status(), 7)

    def test_the_socket_is_not_inherited(self):
        client = self.model('''
            import subprocess
            def predict(prompt: str) -> str:
                return subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True,
                                      close_fds=False).stdout
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertNotIn("socket:", answer.texts()[0])

    def test_credit_and_cancel_of_unknown_calls_are_ignored(self):
        client = self.model("def predict(prompt: str) -> str: return prompt")
        client.send({"op": "cancel", "id": 77})
        client.send({"op": "credit", "id": 78, "rows": 1})
        client.send({"op": "later-addition"})
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["x"])

    def test_code_that_blocks_delays_no_other_call(self):
        client = self.model('''
            import threading, volley_model
            concurrency = 2
            def generate(prompt: str):
                yield "a"
                while prompt == "block" and not volley_model.current_request().cancelled():
                    pass
        ''')
        blocking = client.prompt(1, "block")
        client.wait(lambda: bool(blocking.columns))
        other = client.prompt(2, "other")
        client.finish(other)
        self.assertIsNone(blocking.end)
        client.send({"op": "cancel", "id": 1})
        client.finish(blocking)

