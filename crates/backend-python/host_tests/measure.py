"""CPU time per piece of a generator: bare, and through the host with a reader of frames.

Run: python3 measure.py [threads|async|single]
"""

import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from support import Client  # noqa: E402

STREAMS, PIECES = 64, 200
SYNC = '''
concurrency = %d
def generate(prompt: str):
    for word in prompt.split():
        yield word + " "
'''
ASYNC = '''
async def generate(prompt: str):
    for word in prompt.split():
        yield word + " "
'''


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process, to the nanosecond."""
    with open("/proc/%d/schedstat" % pid) as file:
        main = int(file.read().split()[0])
    total = 0
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, task)) as file:
            total += int(file.read().split()[0])
    return max(total, main) / 1e9


def bare(text: str) -> float:
    """Microseconds per piece of the generator alone."""
    code = {}
    exec(SYNC % 1, code)
    begin = time.process_time()
    count = sum(1 for _ in range(STREAMS) for _ in code["generate"](text))
    return (time.process_time() - begin) / count * 1e6


def through_host(model: str, text: str) -> None:
    """Prints the CPU per piece of the host and of the reader."""
    with tempfile.TemporaryDirectory() as directory:
        with open(directory + "/model.py", "w") as file:
            file.write(model)
        client = Client(directory)
        client.finish(client.prompt(10_000, text))
        best = None
        for run in range(5):
            before, own, frames = cpu_of(client.process.pid), time.process_time(), client.frames
            begin = time.perf_counter()
            answers = [client.prompt(run * 100 + at, text, credit=256) for at in range(STREAMS)]
            client.finish(*answers)
            wall = time.perf_counter() - begin
            count = STREAMS * PIECES
            used = (cpu_of(client.process.pid) - before) / count * 1e6
            reader = (time.process_time() - own) / count * 1e6
            row = (used, reader, client.frames - frames, wall)
            best = row if best is None or row < best else best
            assert all(len(answer.texts()) == PIECES for answer in answers)
        print("host %.2f us per piece, reader %.2f us, %d frames, %.1f ms" % (
            best[0], best[1], best[2], best[3] * 1e3))
        client.close()


if __name__ == "__main__":
    text = " ".join("word%d" % at for at in range(PIECES))
    print("bare %.3f us per piece" % min(bare(text) for _ in range(5)))
    kinds = {"single": SYNC % 1, "threads": SYNC % STREAMS, "async": ASYNC}
    for kind in sys.argv[1:] or kinds:
        print(kind, end=": ")
        through_host(kinds[kind], text)
