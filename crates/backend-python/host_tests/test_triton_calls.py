"""Triton's Python models: errors, coroutines, response senders, cancellation."""

import os

from triton_models import TritonTest, config, floats, port, rows_of

SQUARE = '''
import threading
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            threading.Thread(target=self.answer, args=(sender, x)).start()
        return None

    def answer(self, sender, x):
        if x.ravel()[0] == 0:
            error = pb_utils.TritonError("zero", pb_utils.TritonError.INVALID_ARG)
            sender.send(pb_utils.InferenceResponse(error=error))
        else:
            y = x * x
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
            y[:] = -1
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
REPEAT = '''
import threading
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        sender = request.get_response_sender()
        try:
            for n in request.inputs()[0].as_numpy():
                tensors = [pb_utils.Tensor("OUT", np.array([n], np.int32))]
                if n >= 0:
                    tensors.append(pb_utils.Tensor("NAME", np.array(["n%d" % n], dtype=object)))
                sender.send(pb_utils.InferenceResponse(tensors))
        except pb_utils.TritonModelException as error:
            print("refused: %s" % error, flush=True)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
DECOUPLED = {"model_transaction_policy": {"decoupled": True}}


class TritonCalls(TritonTest):
    def test_errors_of_responses_and_of_execute(self):
        client = self.loaded('''
def response(name, values):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, values)])
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            x = int(request.inputs()[0].as_numpy()[0])
            if x < 8:
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("e%d" % x, x)))
            elif x == 8:
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("plain")))
            elif x == 9: raise pb_utils.TritonModelException("the model is tired")
            elif x == 10: raise ValueError("x is ten")
            elif x == 11: {}["secret"]
            elif x == 12: return None
            elif x == 13: return []
            elif x == 14: return [None]
            elif x == 15: found.append(pb_utils.InferenceResponse([]))
            elif x == 16: found.append(response("Z", np.ones(1)))
            elif x == 17: found.append(response("Y", np.ones(2)))
            elif x == 18: found.append(response("Y", np.ones(1, np.int64)))
            elif x == 19: __import__("sys").exit(1)
        return found
''')
        codes = ["internal", "internal", "not_found", "invalid_input", "overloaded", "unsupported",
                 "invalid_input", "cancelled"]
        cases = [(code, "e%d" % x) for x, code in enumerate(codes)] + [
            ("internal", "plain"), ("internal", "the model is tired"),
            ("invalid_input", "ValueError: x is ten"), ("internal", "the model raised KeyError"),
            ("internal", "execute returned NoneType and must return a list of responses"),
            ("internal", "execute returned 0 responses for 1 requests"),
            ("internal", "execute returned NoneType in its list; it must have an InferenceResponse "
                         "for each request"),
            ("internal", "the model's response has no output 'Y'; it has none"),
            ("internal", "the model's response has the output 'Z', which config.pbtxt does not "
                         "declare"),
            ("internal", "the output 'Y' of the model has the shape [2] and config.pbtxt declares "
                         "[1]"),
            ("internal", "the output 'Y' of the model has the type int64 and config.pbtxt declares "
                         "fp32"),
            ("internal", "the model raised SystemExit"),
        ]
        for x, expected in enumerate(cases):
            self.assertEqual(self.answer(client, floats("X", [x])).error(), expected)

    def test_one_error_of_a_batch_is_that_of_its_request(self):
        client = self.loaded('''
import os, time
class TritonPythonModel:
    def execute(self, requests):
        while not os.path.exists("go"):
            time.sleep(0.001)
        found = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            if x[0, 0] == 2:
                found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("two")))
            else:
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
        return found
''', config(max_batch_size=4, dynamic_batching={"max_queue_delay_microseconds": 500000}))
        answers = [client.call(id, [floats("X", [id])]) for id in (1, 2, 3)]
        open(os.path.join(client.directory, "go"), "w").close()
        client.finish(*answers)
        self.assertEqual(answers[1].error(), ("internal", "two"))
        self.assertEqual([answers[0].values("Y"), answers[2].values("Y")], [[[1]], [[3]]])

    def test_a_coroutine_runs_to_its_end(self):
        client = self.loaded('''
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        await asyncio.sleep(0)
        if requests[0].inputs()[0].as_numpy()[0] == 2:
            raise ValueError("two")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() + 1)])
                for r in requests]
''')
        self.assertEqual(self.values(client, "Y", floats("X", [1])), [[2]])
        self.assertEqual(self.answer(client, floats("X", [2])).error(),
                         ("invalid_input", "ValueError: two"))

    def test_senders_outlive_execute(self):
        client = self.loaded(SQUARE, config(**DECOUPLED))
        answers = [client.call(id, [floats("X", [id])]) for id in range(8)]
        client.finish(*answers)
        self.assertEqual(answers[0].error(), ("invalid_input", "zero"))
        self.assertEqual([answer.values("Y") for answer in answers[1:]],
                         [[[id * id]] for id in range(1, 8)])

    def test_a_decoupled_model_streams_its_responses(self):
        client = self.loaded(REPEAT, config([port("IN", "TYPE_INT32", (-1,))], [
            port("OUT", "TYPE_INT32"), port("NAME", "TYPE_STRING")], **DECOUPLED))
        self.assertEqual(client.loaded["task"], "events")
        column = rows_of("IN", [[7, 8, 9]], "int32")
        answer = self.answer(client, column)
        self.assertEqual(answer.end["op"], "end", answer.end)
        self.assertEqual([part["OUT"].values() for part in answer.columns], [[[7]], [[8]], [[9]]])
        self.assertEqual(answer.values("NAME")[2], [b"n9"])
        self.assertEqual(self.answer(client, rows_of("IN", [[]], "int32")).columns, [])
        code, message = self.answer(client, rows_of("IN", [[1], [2]], "int32")).error()
        self.assertEqual(code, "invalid_input")
        self.assertIn("the request has 2 rows and the model, which streams, takes one", message)
        code, message = self.answer(client, rows_of("IN", [[1, -1, 2]], "int32")).error()
        self.assertIn("has no output 'NAME'; it has OUT", message)
        self.until(lambda: "refused: the model's response has no output" in client.log())

    def test_a_stream_waits_for_its_reader(self):
        client = self.loaded(REPEAT, config([port("IN", "TYPE_INT32", (-1,))], [
            port("OUT", "TYPE_INT32"), port("NAME", "TYPE_STRING")], **DECOUPLED))
        answer = client.call(1, [rows_of("IN", [list(range(5))], "int32")], credit=2)
        client.wait(lambda: len(answer.columns) == 2)
        other = client.call(2, [rows_of("IN", [[1]], "int32")])
        client.finish(other)
        self.assertEqual(len(answer.columns), 2)
        client.send({"op": "credit", "id": 1, "rows": 8})
        client.finish(answer)
        self.assertEqual(answer.values("OUT"), [[n] for n in range(5)])

    def test_rows_of_an_event_are_those_of_its_batch(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = request.inputs()[0].as_numpy()
            sender = request.get_response_sender()
            for part in (x, x[:1], x[:, 0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", part)]))
            sender.send(pb_utils.InferenceResponse([]), 1)
''', config(max_batch_size=4, **DECOUPLED))
        answer = self.answer(client, floats("X", [1, 2]))
        self.assertEqual([part["Y"].values() for part in answer.columns],
                         [[[1], [2]], [[1]], [[1], [2]]])
        self.assertIn("takes 4 of one shape at most",
                      self.answer(client, floats("X", range(5))).error()[1])

    def test_coroutines_of_a_decoupled_model_run_beside_each_other(self):
        client = self.loaded('''
import asyncio
class TritonPythonModel:
    def initialize(self, args):
        self.met = None
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = request.inputs()[0].as_numpy()
            self.met = self.met or asyncio.Event()
            if x[0] == 1:
                await self.met.wait()
            self.met.set()
            if x[0] == 3:
                raise pb_utils.TritonModelException("three")
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]),
                        pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
''', config(**DECOUPLED))
        first = client.call(101, [floats("X", [1])])
        second = client.call(102, [floats("X", [2])])
        client.finish(first, second)
        self.assertEqual([first.values("Y"), second.values("Y")], [[[1]], [[2]]])
        self.assertEqual(self.answer(client, floats("X", [3])).error(), ("internal", "three"))

    def test_senders_that_are_not_used_as_they_should_be(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = int(request.inputs()[0].as_numpy()[0])
            if x == 1:
                continue
            sender = request.get_response_sender()
            if x == 2:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            if x == 3:
                sender.send()
            if x == 4:
                return []
            if x == 5:
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1))]), 1)
                sender.send(flags=1)
''', config(**DECOUPLED))
        cases = {1: "did not get the response sender", 3: "needs a response, or the flag",
                 4: "returned list; it must return None"}
        for x, message in cases.items():
            self.assertIn(message, self.answer(client, floats("X", [x])).error()[1])
        self.assertEqual(self.answer(client, floats("X", [2])).columns, [])
        self.assertEqual(self.values(client, "Y", floats("X", [5])), [[1]])
        self.until(lambda: "the response sender is closed" in client.log())

    def test_a_second_response_in_default_mode_is_refused(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([
                    pb_utils.Tensor("Y", request.inputs()[0].as_numpy())]))
''')
        code, message = self.answer(client, floats("X", [1])).error()
        self.assertEqual(code, "internal")
        self.assertIn("sent a second response to a request; several need", message)

    def test_a_sender_in_default_mode(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(
                pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())]),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
''')
        self.assertEqual(self.values(client, "Y", floats("X", [4, 5])), [[4], [5]])

    def test_a_request_knows_that_it_is_cancelled(self):
        for mode in ({}, DECOUPLED):
            client = self.loaded('''
import time
class TritonPythonModel:
    def execute(self, requests):
        request = requests[0]
        if request.inputs()[0].as_numpy()[0] == 1:
            open("begun", "w").close()
            while not request.is_cancelled():
                time.sleep(0.001)
        sender = request.get_response_sender()
        error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), 1)
''', config(**mode))
            answer = client.call(1, [floats("X", [1])])
            waiting = client.call(2, [floats("X", [0])])
            self.until(lambda: os.path.exists(os.path.join(client.directory, "begun")))
            client.send({"op": "cancel", "id": 2})
            client.finish(waiting)
            self.assertIsNone(answer.end)
            client.send({"op": "cancel", "id": 1})
            client.finish(answer)
            self.assertEqual(answer.error()[0], "cancelled")

    def test_a_cancelled_call_beside_others_ends_at_once(self):
        client = self.loaded('''
import os, threading, time
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()
    def answer(self, sender):
        while not os.path.exists("go"):
            time.sleep(0.001)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.ones(1))]), 1)
        open("sent", "a").write("x")
''', config(**DECOUPLED))
        first, second = client.call(1, [floats("X", [1])]), client.call(2, [floats("X", [2])])
        client.send({"op": "cancel", "id": 1})
        # Whether the first one had begun or not, it ends while the second one goes on.
        client.finish(first)
        self.assertEqual(first.error()[0], "cancelled")
        open(os.path.join(client.directory, "go"), "w").close()
        client.finish(second)
        self.assertEqual(second.values("Y"), [[1]])

    def test_an_answer_waits_for_its_reader_and_the_model_goes_on(self):
        client = self.loaded('''
class TritonPythonModel:
    def initialize(self, args):
        self.y = np.zeros((8, 1), np.float32)
    def execute(self, requests):
        found = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            self.y[:len(x)] = x
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.y[:len(x)])]))
        return found
''', config(max_batch_size=8))
        slow = client.call(1, [floats("X", [1, 2, 3, 4])], credit=1)
        quick = client.call(2, [floats("X", [5, 6])])
        client.finish(quick)
        self.assertEqual(quick.values("Y"), [[5], [6]])
        self.assertIsNone(slow.end)
        client.send({"op": "credit", "id": 1, "rows": 2})
        client.send({"op": "credit", "id": 1, "rows": 2})
        client.finish(slow)
        self.assertEqual(slow.values("Y"), [[1], [2], [3], [4]])

    def test_calls_of_other_models_are_refused_by_name(self):
        client = self.loaded('''
class TritonPythonModel:
    async def execute(self, requests):
        x = requests[0].inputs()[0]
        own = pb_utils.InferenceRequest(model_name="other", inputs=[x],
                                        requested_output_names=["Y"])
        kind = int(x.as_numpy()[0])
        assert pb_utils.is_model_ready("m")
        if kind == 1: own.exec()
        if kind == 2: await own.async_exec()
        if kind == 3: pb_utils.is_model_ready("other", "1")
        if kind == 4: pb_utils.load_model("other")
''')
        for kind in (1, 2, 3):
            code, message = self.answer(client, floats("X", [kind])).error()
            self.assertEqual(code, "internal")
            self.assertIn("the model calls the model 'other'", message)
            self.assertIn("(BLS)", message)
        self.assertIn("cannot load or unload", self.answer(client, floats("X", [4])).error()[1])

    def test_dlpack_logs_and_metrics(self):
        client = self.loaded('''
import c_python_backend_utils
class Foreign:
    def __init__(self, array): self.array = array
    def __dlpack__(self, **more): return self.array.__dlpack__(**more)
    def __dlpack_device__(self): return (1, 0)
class TritonPythonModel:
    def initialize(self, args):
        assert c_python_backend_utils.Tensor is pb_utils.Tensor
        logger = pb_utils.Logger
        logger.log_info("info"); logger.log("warning", logger.WARNING); logger.log_error("error")
        counter = pb_utils.MetricFamily.COUNTER
        family = pb_utils.MetricFamily(name="n", description="d", kind=counter)
        metric = family.Metric(labels={"a": "b"})
        metric.increment(2); metric.increment(1)
        assert metric.value() == 3
        for wrong in (lambda: metric.set(1), lambda: metric.increment(-1)):
            try: wrong()
            except pb_utils.TritonModelException: continue
            raise AssertionError
        sizes = pb_utils.MetricFamily("s", "d", pb_utils.MetricFamily.HISTOGRAM)
        sizes.Metric(buckets=[1, 2]).observe(1.5)
    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "X")
        y = np.from_dlpack(x)
        tensors = [pb_utils.Tensor.from_dlpack("Y", source)
                   for source in (x.to_dlpack(), Foreign(y), x)]
        assert all((tensor.as_numpy() == y).all() for tensor in tensors)
        return [pb_utils.InferenceResponse([tensors[0]], parameters={"k": 1})]
''')
        self.assertEqual(self.values(client, "Y", floats("X", [4])), [[4]])
        told = [(one["level"], one["message"]) for one in client.logs]
        for expected in (("info", "info"), ("warning", "warning"), ("error", "error"),
                         ("warning", "parameters of responses are not sent to callers")):
            self.assertIn(expected, told)
        self.assertTrue(any("the metric family 'n' (d) stays" in text for _, text in told), told)
