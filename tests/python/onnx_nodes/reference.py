"""What Python's ONNX Runtime makes of each case, in a process of its own that may die."""

import ctypes
import multiprocessing
import queue
import time

import ml_dtypes
import numpy as np


def answers(cases, limit_s=120):
    """Yields (name, lists of outputs, reason): one of the last two is None."""
    context = multiprocessing.get_context("spawn")
    while cases:
        results = context.Queue()
        child = context.Process(target=run, args=(cases, results), daemon=True)
        child.start()
        done, reason = 0, None
        while done < len(cases) and reason is None:
            answer, reason = wait(child, results, limit_s)
            yield answer or (cases[done].name, None, reason)
            done += 1
        child.kill()
        child.join()
        cases = cases[done:]


def wait(child, results, limit_s):
    """The next answer, or why there is none."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        alive = child.is_alive()
        try:
            return results.get(timeout=1), None
        except queue.Empty:
            if not alive:
                return None, "ends the process"
    return None, "takes too long"


def run(cases, results):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    for case in cases:
        try:
            results.put((case.name, outputs(onnxruntime, case), None))
        except Exception as error:
            results.put((case.name, None, " ".join(str(error).split())[:1000]))


def outputs(onnxruntime, case):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    path = str(case.directory / "model.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in case.outputs]
    # Only one of the binding's two ways knows bfloat16, and only the other knows texts.
    special = any(port.datatype == "BF16" for port in case.inputs + case.outputs)
    answers = []
    for given, _ in case.sets:
        feeds = {port.name: array for port, array in zip(case.inputs, given)}
        if special:
            values = {port.name: value(onnxruntime, port, feeds[port.name]) for port in case.inputs}
            made = session.run_with_ort_values(names, values)
            answers.append([plain(made, port) for made, port in zip(made, case.outputs)])
        else:
            answers.append(session.run(names, feeds))
    return answers


def value(onnxruntime, port, array):
    make = onnxruntime.OrtValue
    if port.datatype == "BF16":
        bits = np.ascontiguousarray(array).view(np.uint16)
        return make.ortvalue_from_numpy_with_onnx_type(bits, port.element)
    return make.ortvalue_from_numpy(array)


def plain(made, port):
    if port.datatype != "BF16":
        return made.numpy()
    shape = made.shape()
    count = int(np.prod(shape))
    bits = (ctypes.c_uint16 * count).from_address(made.data_ptr()) if count else []
    return np.array(bits, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)
