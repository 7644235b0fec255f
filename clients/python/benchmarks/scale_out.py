"""A million texts through Spark and Ray Data, beside a single exchange.

    scale_out.py exchange client spark spark-killed ray ray-killed [--rows 1000000]

Starts three coordinators and two workers, embeds the texts in each of the ways that are named, and
checks that each row came back exactly once with the answer to its own text. The ways that end in
`-killed` lose an executor (Spark) or an actor (Ray) with SIGKILL while they run. Prints one line
for each way. scripts/bench-spark.sh makes the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import flight

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from cluster import Cluster, free_ports, until  # noqa: E402

MODEL = "text-embed"
BATCH = 1_000
FILES = 16


def texts(rows):
    return pa.table({"id": pa.array(rows, pa.int64()), "text": [text(row) for row in rows]})


def text(row):
    return "row " + "word " * (row % 5) + "end"


def write_input(folder, rows):
    folder.mkdir()
    size = -(-rows // FILES)
    for number in range(FILES):
        part = texts(range(number * size, min((number + 1) * size, rows)))
        pq.write_table(part, folder / f"part-{number:02}.parquet", row_group_size=10_000)


def check(table, rows, tokens):
    """Each id once, and the number of tokens that its own text has."""
    ids = table["id"].to_numpy()
    assert len(ids) == rows, f"{len(ids)} rows instead of {rows}"
    assert numpy.array_equal(numpy.sort(ids), numpy.arange(rows)), "an id is missing or twice"
    found = table["tokens"].to_numpy()
    assert numpy.array_equal(found, tokens[ids % 5]), "a row has the answer to another text"
    assert pc.all(pc.equal(pc.list_value_length(table["embedding"]), 16)).as_py()


def wait_for_a_third(cluster, rows):
    """Returns when about a third of the rows that are sent from now on is answered."""
    before = cluster.answered(MODEL)
    enough = before + rows // 1024 // 3
    until("a third of the rows is answered", lambda: cluster.answered(MODEL) >= enough, 3_600)


def exchange(cluster, rows, tokens, _):
    """One DoExchange with nothing but pyarrow, as crates/bench/peers/bulk.py."""
    client = flight.connect(cluster.flight[0])
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(MODEL))
    table = texts(range(rows)).select(["text"])
    began = time.perf_counter()
    writer.begin(table.schema)

    def write():
        for batch in table.to_batches(max_chunksize=BATCH):
            writer.write_batch(batch)
        writer.done_writing()

    writing = threading.Thread(target=write)
    writing.start()
    answers = pa.Table.from_batches([chunk.data for chunk in reader])
    writing.join()
    took = time.perf_counter() - began
    check(answers.append_column("id", pa.array(range(rows), pa.int64())), rows, tokens)
    return took


def client(cluster, rows, tokens, folder):
    """The client alone, from Parquet to Parquet in bounded memory."""
    source = ds.dataset(folder / "input").to_batches()
    began = time.perf_counter()
    with cluster.client() as made:
        stream = made.embed_stream(MODEL, source, column="text", keep=["id"])
        reader = stream.to_reader()
        with pq.ParquetWriter(folder / "client.parquet", reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    took = time.perf_counter() - began
    check(pq.read_table(folder / "client.parquet"), rows, tokens)
    return took


class Spark:
    """A master and two workers of Spark, each a process, and a session."""

    def __init__(self, folder):
        import pyspark

        self.home = Path(pyspark.__file__).parent
        self.processes = []
        port, web, *webs = free_ports(4)
        master = "org.apache.spark.deploy.master.Master"
        url = f"spark://127.0.0.1:{port}"
        self._start(
            folder, "master", master, "--host", "127.0.0.1", "--port", port, "--webui-port", web
        )
        until(
            "the master listens",
            lambda: "I have been elected leader" in self._log(folder, "master"),
        )
        for number, page in enumerate(webs, 1):
            name = f"spark-worker-{number}"
            worker = "org.apache.spark.deploy.worker.Worker"
            options = ["--host", "127.0.0.1", "-c", 1, "-m", "1g", "--webui-port", page]
            self._start(folder, name, worker, *options, "-d", folder / name, url)
        registered = "Registering worker"
        until("both workers", lambda: self._log(folder, "master").count(registered) == 2)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(url).config("spark.executor.memory", "700m")
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.ui.enabled", "false"
        )
        builder = builder.config("spark.sql.files.maxPartitionBytes", 128 << 10)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        self.session = builder.config("spark.log.level", "ERROR").getOrCreate()

    def _start(self, folder, name, *arguments):
        environment = dict(os.environ, SPARK_HOME=str(self.home), SPARK_LOCAL_IP="127.0.0.1")
        with open(folder / f"{name}.log", "wb") as log:
            program = [str(self.home / "bin/spark-class"), *map(str, arguments)]
            self.processes.append(
                subprocess.Popen(program, stdout=log, stderr=log, env=environment)
            )

    @staticmethod
    def _log(folder, name):
        return (folder / f"{name}.log").read_text(errors="replace")

    def executors(self):
        """The processes of executors of our workers."""
        ours = {process.pid for process in self.processes}
        return [
            pid
            for pid, parent, command in processes()
            if parent in ours and "CoarseGrainedExecutorBackend" in command
        ]

    def stop(self):
        self.session.stop()
        for process in self.processes:
            process.terminate()
            process.wait()


def processes():
    """The id, the parent and the command of each process of this machine."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            yield int(folder.name), int(stat[1]), command


def spark(cluster, rows, tokens, folder, kill=False):
    from volley_client.spark import map_embed

    running = Spark(folder)
    out = folder / "spark"
    try:
        session = running.session
        # The JVMs and the Python workers are warm when the time begins.
        session.range(4).repartition(4).mapInArrow(lambda batches: batches, "id long").count()
        frame = session.read.parquet(str(folder / "input"))
        killed = []

        def lose():
            wait_for_a_third(cluster, rows)
            killed.append(running.executors()[0])
            os.kill(killed[0], signal.SIGKILL)

        losing = threading.Thread(target=lose)
        began = time.perf_counter()
        if kill:
            losing.start()
        vectors = map_embed(frame, cluster.urls, MODEL, column="text", keep=["id"])
        vectors.write.parquet(str(out))
        took = time.perf_counter() - began
        if kill:
            losing.join()
            assert killed, "an executor was killed"
    finally:
        running.stop()
    check(pq.read_table(out), rows, tokens)
    shutil.rmtree(out)
    return took


def spark_killed(*arguments):
    return spark(*arguments, kill=True)


def ray(cluster, rows, tokens, folder, kill=False):
    import ray

    from volley_client.ray import Embed

    ray.init(
        num_cpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=512 << 20
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    out = folder / "ray"
    try:
        killed = []

        def lose():
            wait_for_a_third(cluster, rows)
            actors = [pid for pid, _, command in processes() if "MapWorker" in command]
            killed.append(actors[0])
            os.kill(killed[0], signal.SIGKILL)

        losing = threading.Thread(target=lose)
        began = time.perf_counter()
        if kill:
            losing.start()
        vectors = ray.data.read_parquet(
            str(folder / "input"), override_num_blocks=2 * FILES
        ).map_batches(
            Embed,
            fn_constructor_args=(cluster.urls, MODEL),
            fn_constructor_kwargs={"column": "text", "keep": ["id"]},
            batch_format="pyarrow",
            batch_size=16_384,
            concurrency=2,
        )
        vectors.write_parquet(str(out))
        took = time.perf_counter() - began
        if kill:
            losing.join()
            assert killed, "an actor was killed"
    finally:
        ray.shutdown()
    check(pq.read_table(out), rows, tokens)
    shutil.rmtree(out)
    return took


def ray_killed(*arguments):
    return ray(*arguments, kill=True)


WAYS = {
    "exchange": exchange,
    "client": client,
    "spark": spark,
    "spark-killed": spark_killed,
    "ray": ray,
    "ray-killed": ray_killed,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    unknown = [way for way in args.ways if way not in WAYS]
    if unknown:
        parser.error(f"there is no way '{unknown[0]}'; known are {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input(folder / "input", args.rows)
        (folder / "cluster").mkdir()
        with Cluster(folder / "cluster", coordinators=3, workers=2) as cluster:
            cluster.deploy_encoder(MODEL)
            with cluster.client() as made:
                warm = made.embed(MODEL, [text(row) for row in range(5)])
            tokens = warm["tokens"].to_numpy()
            assert len(set(tokens)) == 5, "texts differ in their tokens"
            for way in args.ways or list(WAYS):
                took = WAYS[way](cluster, args.rows, tokens, folder)
                line = {"way": way, "rows": args.rows, "seconds": round(took, 1)}
                print(json.dumps({**line, "rows_per_s": round(args.rows / took)}), flush=True)


if __name__ == "__main__":
    main()
