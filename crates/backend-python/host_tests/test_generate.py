"""Models that generate text: streams, credit, cancellation, concurrency."""

import json
import time

from support import HostTest, wire

COUNTER = '''
    import itertools, threading
    closed = threading.Event()
    def generate(prompt: str):
        try:
            for number in itertools.count():
                yield "%d " % number
        finally:
            print("closed", flush=True)
'''


class Generate(HostTest):
    def test_a_generator_streams_each_row(self):
        client = self.model('''
            def predict(prompt: str, times: int = 2):
                """Repeats the prompt."""
                for number in range(times):
                    yield "%s%d " % (prompt, number)
        ''')
        self.assertEqual(client.loaded["task"], "generate")
        self.assertEqual(client.loaded["parameters"], ["times"])
        self.assertEqual(client.loaded["description"], "Repeats the prompt.")
        self.assertEqual(client.loaded["concurrency"], 1)
        answer = client.prompt(1, "a", "b", times=3)
        client.finish(answer)
        self.assertEqual(answer.texts(0), ["a0 ", "a1 ", "a2 "])
        self.assertEqual(answer.texts(1), ["b0 ", "b1 ", "b2 "])
        self.assertEqual(answer.end["op"], "end")

    def test_the_first_piece_does_not_wait_for_the_others(self):
        client = self.model('''
            import threading, volley_model
            def generate(prompt: str):
                yield "first"
                while not volley_model.current_request().cancelled():
                    threading.Event().wait(0.005)
                yield "second"
        ''')
        answer = client.prompt(1, "x")
        client.wait(lambda: bool(answer.columns))
        self.assertEqual(answer.texts(), ["first"])
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.assertEqual(answer.texts(), ["first"])

    def test_an_asynchronous_generator_streams(self):
        client = self.model('''
            import asyncio
            class Model:
                async def generate(self, prompt: str):
                    for word in prompt.split():
                        await asyncio.sleep(0)
                        yield word
        ''')
        self.assertEqual(client.loaded["concurrency"], 64)
        answers = [client.prompt(at, "a b c") for at in range(8)]
        client.finish(*answers)
        for answer in answers:
            self.assertEqual(answer.texts(), ["a", "b", "c"])

    def test_pieces_with_a_finish_reason(self):
        client = self.model('''
            def generate(prompt: str):
                yield {"text": "a"}
                yield {"text": None, "finish_reason": "length"}
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        reasons = [reason for columns in answer.columns if "finish_reason" in columns
                   for reason in columns["finish_reason"].values()]
        self.assertEqual(reasons[-1], "length")
        self.assertEqual(answer.texts(), ["a", None])

    def test_one_text_is_one_piece(self):
        client = self.model("def predict(prompt: str) -> str: return prompt.upper()")
        answer = client.prompt(1, "abc")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["ABC"])

    def test_a_chat_reaches_messages_and_a_prompt_becomes_one(self):
        client = self.model('''
            def generate(messages: list):
                for message in messages:
                    yield message["role"] + ":" + message["content"]
        ''')
        chat, prompt = client.chat(1, [{"role": "system", "content": "s"},
                                       {"role": "user", "content": "u"}]), client.prompt(2, "p")
        client.finish(chat, prompt)
        self.assertEqual(chat.texts(), ["system:s", "user:u"])
        self.assertEqual(prompt.texts(), ["user:p"])

    def test_a_chat_is_refused_by_a_model_of_prompts(self):
        client = self.model("def predict(prompt: str) -> str: return prompt")
        answer = client.chat(1, [{"role": "user", "content": "u"}])
        client.finish(answer)
        code, message = answer.error()
        self.assertEqual(code, "unsupported")
        self.assertIn("messages: list[dict]", message)

    def test_cancel_closes_a_generator_within_50_ms(self):
        client = self.model(COUNTER)
        answer = client.prompt(1, "x", credit=256)
        client.wait(lambda: len(answer.texts()) == 256)
        begin = time.monotonic()
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.assertLess(time.monotonic() - begin, 0.05)
        self.assertIn("closed", client.log())

    def test_cancel_closes_a_generator_that_has_credit(self):
        client = self.model(COUNTER)
        answer = client.prompt(1, "x")
        client.wait(lambda: bool(answer.columns))
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.assertIn("closed", client.log())

    def test_cancel_closes_an_asynchronous_generator_within_50_ms(self):
        client = self.model('''
            import asyncio
            async def generate(prompt: str):
                try:
                    yield "a"
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    print("closed", flush=True)
        ''')
        answer = client.prompt(1, "x")
        client.wait(lambda: bool(answer.columns))
        begin = time.monotonic()
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.assertLess(time.monotonic() - begin, 0.05)
        self.assertEqual(answer.error()[0], "cancelled")
        self.assertIn("closed", client.log())

    def test_a_cancelled_call_that_has_not_begun_ends_at_once(self):
        client = self.model(COUNTER)
        first = client.prompt(1, "x", credit=1)
        client.wait(lambda: bool(first.columns))
        second = client.prompt(2, "x", "y")
        client.send({"op": "cancel", "id": 2})
        client.finish(second)
        self.assertIsNone(first.end)
        self.assertEqual(second.error()[0], "cancelled")

    def test_credit_stops_a_fast_generator(self):
        for text in (COUNTER, COUNTER.replace("def gen", "async def gen")):
            client = self.model(text)
            answer = client.prompt(1, "x", credit=10)
            client.wait(lambda answer=answer: len(answer.texts()) == 10)
            self.assertTrue(client.quiet(0.05))
            client.send({"op": "credit", "id": 1, "rows": 5})
            client.wait(lambda answer=answer: len(answer.texts()) == 15)
            self.assertTrue(client.quiet(0.05))
            self.assertEqual(answer.texts(), ["%d " % number for number in range(15)])

    def test_credit_is_shared_by_the_rows_of_a_request(self):
        client = self.model("concurrency = 2\n" + COUNTER.replace("\n    ", "\n"))
        answer = client.prompt(1, "x", "y", credit=20)
        client.wait(lambda: len(answer.texts(0)) + len(answer.texts(1)) == 20)
        self.assertTrue(client.quiet(0.05))
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.until(lambda: client.log().count("closed") == 2)

    def test_two_calls_run_at_once(self):
        client = self.model('''
            import threading
            concurrency = 2
            both = threading.Barrier(2, timeout=10)
            def generate(prompt: str):
                both.wait()
                yield prompt
        ''')
        answers = [client.prompt(1, "a"), client.prompt(2, "b")]
        client.finish(*answers)
        self.assertEqual([answer.texts() for answer in answers], [["a"], ["b"]])

    def test_a_model_sees_its_request(self):
        client = self.model('''
            import volley_model
            def generate(prompt: str):
                request = volley_model.current_request()
                yield request.request_id
                yield request.trace
                yield str(0 < request.remaining() <= 60)
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["request-1", "00-ab-cd-01", "True"])

    def test_many_pieces_need_few_frames(self):
        client = self.model('''
            def generate(prompt: str):
                for number in range(10000):
                    yield "word "
        ''')
        before = client.frames
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(len(answer.texts()), 10_000)
        self.assertLess(client.frames - before, 1_000)

    def test_parameters_are_checked_by_type(self):
        client = self.model('''
            from typing import Literal, Optional
            def generate(prompt: str, n: int, k: float = 1.0, mode: Literal["a", "b"] = "a",
                         stop: Optional[list] = None):
                yield "%s %s %s %s" % (n, k, mode, stop)
        ''')
        cases = [
            ({}, "the model needs the parameter 'n'"),
            ({"n": "1"}, "parameter 'n' must be int and is str"),
            ({"n": True}, "parameter 'n' must be int and is bool"),
            ({"n": 1, "k": "x"}, "parameter 'k' must be float and is str"),
            ({"n": 1, "mode": "c"}, "parameter 'mode' must be one of 'a', 'b'"),
            ({"n": 1, "stop": 3}, "parameter 'stop' must be list or null and is int"),
            ({"n": 1, "zz": 3}, "the model has no parameter 'zz'"),
        ]
        for id, (parameters, message) in enumerate(cases):
            answer = client.prompt(id, "x", **parameters)
            client.finish(answer)
            self.assertEqual(answer.error(), ("invalid_input", message))
        answer = client.prompt(99, "x", n=1, k=2, stop=["s"])
        client.finish(answer)
        self.assertEqual(answer.texts(), ["1 2.0 a ['s']"])

    def test_any_parameter(self):
        client = self.model('''
            import json
            def generate(prompt: str, parameters: dict, n: int = 0):
                yield json.dumps([n, parameters])
        ''')
        self.assertTrue(client.loaded["any_parameter"])
        answer = client.prompt(1, "x", n=1, other="y")
        client.finish(answer)
        self.assertEqual(json.loads(answer.texts()[0]), [1, {"other": "y"}])

    def test_a_wrong_piece_is_named(self):
        client = self.model('''
            def generate(prompt: str):
                yield 3
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(answer.error()[0], "internal")
        self.assertIn("yielded int", answer.error()[1])

    def test_a_surrogate_in_a_text_does_not_break_the_stream(self):
        client = self.model(r'''
            def generate(prompt: str):
                yield "a\ud800b"
        ''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(answer.texts(), ["a?b"])

    def test_embeddings(self):
        client = self.model('''
            class Model:
                def embed(self, texts: list, input_type: str = "none"):
                    return [[len(text), len(input_type), 0.5] for text in texts]
        ''')
        self.assertEqual((client.loaded["task"], client.loaded["dimensions"]), ("embed", 3))
        answer = client.call(1, [wire.text_column("text", "utf8", ["a", "bcd"])],
                             input_type="query")
        client.finish(answer)
        self.assertEqual(answer.values("embedding"), [[1.0, 5.0, 0.5], [3.0, 5.0, 0.5]])
