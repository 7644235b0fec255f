"""Loading: which file and object is the model, and messages of loads that fail."""

import json
import sys

from support import HostTest, wire

WORDS = '''
def generate(prompt: str):
    yield %r
'''


class Load(HostTest):
    def texts(self, client):
        """The answer to one prompt."""
        self.assertIsNone(client.failed, client.log())
        answer = client.prompt(1, "x")
        client.finish(answer)
        return answer.texts()

    def test_the_file_of_a_directory(self):
        client = self.start(self.directory(other__py=WORDS % "only"))
        self.assertEqual(self.texts(client), ["only"])
        files = {"main__py": WORDS % "main", "predict__py": WORDS % "predict", "z__py": "1/0"}
        self.assertEqual(self.texts(self.start(self.directory(**files))), ["predict"])
        client = self.start(self.directory(**files), file="main.py")
        self.assertEqual(self.texts(client), ["main"])
        client = self.start(self.directory(a__py="", b__py=""))
        self.assertIn("name one with the parameter 'file'", client.failed)
        client = self.start(self.directory(a__py=""), file="b.py")
        self.assertIn("no file 'b.py'", client.failed)

    def test_the_object_of_a_file(self):
        text = '''
            class First:
                def generate(self, prompt: str): yield "first"
            class Second:
                def generate(self, prompt: str): yield "second"
            def answer(prompt: str): yield "function"
        '''
        self.assertIn("more than one class", self.load_failure(text))
        self.assertEqual(self.texts(self.model(text, **{"class": "Second"})), ["second"])
        self.assertEqual(self.texts(self.model(text, function="answer")), ["function"])
        self.assertIn("no class 'Third'", self.load_failure(text, **{"class": "Third"}))

    def test_names_of_the_hosts_modules_are_free(self):
        client = self.start(self.directory(
            model__py="import wire, calls\ndef generate(prompt: str): yield wire.A + calls.A\n",
            wire__py="A = 'w'", calls__py="A = 'c'"))
        self.assertEqual(self.texts(client), ["wc"])

    def test_settings_reach_init(self):
        text = '''
            class Model:
                def __init__(self, size: int, unit: str = "kg"):
                    self.text = "%d %s" % (size, unit)
                def generate(self, prompt: str): yield self.text
        '''
        self.assertEqual(self.texts(self.model(text, size=3)), ["3 kg"])
        self.assertIn("needs the setting 'size'", self.load_failure(text))
        message = self.load_failure(text, size=1, sise=2)
        self.assertIn("no setting 'sise'; its __init__ takes size, unit", message)
        function = "def predict(prompt: str) -> str: return prompt"
        self.assertIn("no setting 'size'", self.load_failure(function, size=1))

    def test_code_that_fails(self):
        cases = {
            "def f(:\n  pass": "model.py, line 1: ",
            "import no_such_package.part": "package 'no_such_package' is not installed",
            "1 / 0": "ZeroDivisionError: division by zero (model.py, line 1)",
            "open('/tmp/no/such/file')": "file'",
            "import sys; sys.exit(3)": "SystemExit: 3",
            "x = 1": "no class Model or Predictor and no function predict",
        }
        for text, message in cases.items():
            found = self.load_failure(text)
            self.assertIn(message, found)
            self.assertNotIn("/tmp", found)

    def test_missing_hints_show_the_line_to_write(self):
        cases = {
            "def predict(x): return x": "write: def predict(x: float)",
            "def predict(prompt): return prompt": "write: def predict(prompt: str)",
            "def predict(x: float): return x": "write: def predict(...) -> float",
            "def predict(x: float) -> dict: return {}": "write: outputs = [{",
            "def predict(batch): return batch": "write: inputs = [{",
            "def predict(x: float):\n    yield x": "write: def predict(prompt: str)",
            "from typing import List\ndef predict(x: 'Nope') -> float: return 1": "Nope",
        }
        for text, message in cases.items():
            self.assertIn(message, self.load_failure(text))

    def test_other_interfaces_are_recognised(self):
        client = self.start(self.directory(readme__txt=""))
        for name in ("model-settings.json", "app.py", "config.pbtxt", "predict.py"):
            self.assertIn(name, client.failed)
        settings = json.dumps({"name": "x", "implementation": "a.B"})
        client = self.start(self.directory(**{"model-settings__json": settings}))
        if "mlserver" not in sys.modules:
            self.assertIn("'mlserver' is not installed", client.failed)
        client = self.start(self.directory(app__py=WORDS % "plain"))
        self.assertEqual(self.texts(client), ["plain"])
        client = self.start(self.directory(model__py=WORDS % "x"), interface="cog")
        self.assertIn("interface 'cog' is unknown", client.failed)

    def test_a_socket_that_ends_during_the_load(self):
        import os
        import socket
        import subprocess
        from support import ENVIRONMENT, HOST, TIMEOUT
        directory = self.directory(model__py="import time\ntime.sleep(1000)")
        ours, theirs = socket.socketpair()
        process = subprocess.Popen([sys.executable, "-I", "-B", "-u", HOST], stdin=theirs,
                                   env=ENVIRONMENT, start_new_session=True)
        theirs.close()
        message = json.dumps({"op": "load", "directory": directory, "interface": "auto",
                              "model": "m", "version": 1, "parameters": {}}).encode()
        wire.send(ours, wire.pack([message], wire.Body()))
        self.until(lambda: not os.path.exists("/proc/%d/fd/0" % process.pid) or os.readlink(
            "/proc/%d/fd/0" % process.pid) == "/dev/null")
        ours.close()
        self.assertNotEqual(process.wait(TIMEOUT), 0)
