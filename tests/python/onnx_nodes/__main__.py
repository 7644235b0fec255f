"""Runs the ONNX standard's node tests through a cluster's REST interface, and says how they went.

    python tests/python/onnx_nodes [--volley target/debug/volley | --url http://…] [--every N]
        [--only NAME] [--write docs/evidence/parity.md] [--results FILE]
"""

import argparse
import contextlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import cases as standard
import reference
import report
from client import Client, Refused
from compare import difference
from server import cluster

# Python's ONNX Runtime runs the same code: what differs is a defect of ours.
SAME_RTOL, SAME_ATOL = 1e-5, 1e-7


def main():
    arguments = parse()
    cases = standard.load(arguments.every, arguments.only)
    started = time.monotonic()
    server = contextlib.nullcontext(arguments.url)
    if not arguments.url:
        server = cluster(arguments.volley, arguments.port)
    with server as url, ThreadPoolExecutor(arguments.jobs) as pool:
        client = Client(url)
        served = dict(pool.map(lambda case: (case.name, serve(client, case)), cases))
    took = time.monotonic() - started
    python = {name: rest for name, *rest in reference.answers(cases)}
    verdicts = {case.name: judge(case, served[case.name], *python[case.name]) for case in cases}
    text = report.text(cases, verdicts, took, arguments.every == 1 and not arguments.only)
    print(text)
    for name, (kind, what) in verdicts.items():
        if kind == report.FAILED:
            print(f"FAILED {name}: {what}", file=sys.stderr)
    if arguments.results:
        with open(arguments.results, "w", encoding="utf-8") as file:
            json.dump({name: list(verdict) for name, verdict in verdicts.items()}, file, indent=1)
    if arguments.write:
        with open(arguments.write, "w", encoding="utf-8") as file:
            file.write(text)
    sys.exit(any(kind == report.FAILED for kind, _ in verdicts.values()))


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volley", default="target/debug/volley", help="the binary to start")
    parser.add_argument("--port", type=int, default=18420, help="its REST port, and three more")
    parser.add_argument("--url", help="a running cluster, instead")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th test")
    parser.add_argument("--only", help="only tests with this in their names")
    parser.add_argument("--jobs", type=int, default=4, help="tests at a time")
    parser.add_argument("--write", help="write the table there")
    parser.add_argument("--results", help="write every test's result there, as JSON")
    return parser.parse_args()


def serve(client, case):
    """Lists of outputs, or the refusal, or a defect as text."""
    name = f"node.{case.name}"
    try:
        client.register(name, case.directory)
        try:
            client.load(name)
            names = [port.name for port in case.outputs]
            answers = []
            for given, _ in case.sets:
                made = client.infer(name, case.inputs, given)
                answers.append([made[name] for name in names])
            return answers
        except Refused as refused:
            return refused
        finally:
            client.remove(name)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def judge(case, served, python, reason):
    """What a case comes to: a kind and, where there is more to say, what."""
    answered = isinstance(served, list)
    lacking = case.lacking()
    if lacking:
        refused = isinstance(served, Refused) and served.status < 500
        return (report.LACKING, lacking) if refused else (report.FAILED, f"not refused: {served}")
    wanted = [wanted for _, wanted in case.sets]
    wrong = differences(served, wanted, case.rtol, case.atol) if answered else str(served)
    same = python is not None and answered and not differences(served, python, SAME_RTOL, SAME_ATOL)
    if not wrong:
        return report.PASSED, "same" if same else None
    if python is None:
        if answered or (isinstance(served, Refused) and served.status < 500):
            return report.UNSUPPORTED, reason
        return report.FAILED, f"{served} (Python's: {reason})"
    if same:
        return report.DEVIATING, wrong
    return report.FAILED, wrong


def differences(found, wanted, rtol, atol):
    """The first difference between lists of outputs, or None."""
    for one, other in zip(found, wanted, strict=True):
        for left, right in zip(one, other, strict=True):
            if what := difference(left, right, rtol, atol):
                return what
    return None


if __name__ == "__main__":
    main()
