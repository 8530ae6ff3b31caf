"""Two shards that a test starts by hand with a table of its choice, and a reproducible training over them."""

import json
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, made_up_rows, run, start

SHARDS = 2
WORKERS = 2


class StartFailed(Exception):
    """A shard's sentence about a start that failed."""


def unready(http):
    """Returns the reason of a 503 at /readyz; "": it is ready."""
    try:
        with urllib.request.urlopen(f"http://{http}/readyz", timeout=120):
            return ""
    except urllib.error.HTTPError as refused:
        if refused.code != 503:
            raise
        return refused.read().decode("utf-8")


class Cluster:
    """Shards by hand, with a table for all of them."""

    def __init__(self, folder, table, *flags):
        self.folder, self.table, self.flags = Path(folder), table, flags
        self.hosts = ["127.0.0.1"] * SHARDS
        self.enter = [[]] * SHARDS  # commands that run a shard's program elsewhere, as in a network namespace
        self.programs = PROGRAMS  # of the shards that start from now on
        self.drain = "0s"
        self.key_flags = ()
        self.processes = [None] * SHARDS
        self.lines = [None] * SHARDS
        self.spares = []

    def try_to_start(self, shard):
        """Starts the shard. Returns the sentence with which it ended instead; empty: it runs."""
        line = self.lines[shard]
        try:
            self.start(shard)
        except StartFailed as failed:
            self.lines[shard] = line
            return str(failed)
        return ""

    def start(self, shard, *flags):
        listen = self.lines[shard]["address"] if self.lines[shard] else f"{self.hosts[shard]}:0"
        with open(self.folder / f"shard-{shard}.log", "a", encoding="utf-8") as log:
            self.processes[shard] = subprocess.Popen(
                [*self.enter[shard], self.programs / "millrace-server", "--shard", str(shard), "--shards", str(SHARDS), "--table", self.table,
                 "--listen", listen, "--http", f"{self.hosts[shard]}:0", "--json", "--drain", self.drain, *self.key_flags, *self.flags, *flags],
                stdout=subprocess.PIPE, stderr=log, text=True)
        line = json.loads(self.processes[shard].stdout.readline())
        if "error" in line:
            raise StartFailed(line["error"])
        self.lines[shard] = line

    def start_spare(self, *flags, host="127.0.0.1", enter=()):
        """Starts a spare that may take any number. Returns its process; it has said that it waits."""
        with open(self.folder / "spare.log", "a", encoding="utf-8") as log:
            spare = subprocess.Popen([*enter, PROGRAMS / "millrace-server", "--spare", "--table", self.table, "--listen", f"{host}:0", "--http", f"{host}:0",
                                      "--json", "--drain", self.drain, *self.key_flags, *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        self.spares.append(spare)
        if json.loads(spare.stdout.readline()) != {"event": "waiting"}:
            raise AssertionError("the spare does not wait")
        return spare

    def becomes(self, spare, shard):
        """Waits until the spare has the shard's number. Returns its start line."""
        line = json.loads(spare.stdout.readline())
        if (line["event"], line["shard"]) != ("listening", shard):
            raise AssertionError(line)
        self.spares.remove(spare)
        self.processes[shard], self.lines[shard] = spare, line
        return line

    def servers(self):
        return ",".join(line["address"].removeprefix("tcp://") for line in self.lines)

    def kill(self, shard):
        self.processes[shard].kill()
        self.processes[shard].communicate()

    def end(self):
        """Ends all processes by SIGTERM. Shards and spares end in order; one that a test has killed has ended already."""
        left = [process for process in self.processes + self.spares if process and process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGTERM)
        for process in self.processes + self.spares:
            if process:
                process.communicate(timeout=TIMEOUT_S)
        codes = [process.returncode for process in left]
        if any(codes):
            raise AssertionError(f"processes ended by SIGTERM with {codes}")

    def status(self, shard):
        with urllib.request.urlopen(f"http://{self.lines[shard]['http']}/status", timeout=120) as answer:
            return json.load(answer)

    def waits_until_unready(self, http, reason):
        """Waits until /readyz answers 503 with a reason that has these words. /healthz answers 200."""
        self.wait_for(lambda: unready(http) and reason in unready(http), f"/readyz does not answer 503 with {reason!r}")
        with urllib.request.urlopen(f"http://{http}/healthz", timeout=120) as answer:
            if answer.status != 200:
                raise AssertionError(f"/healthz: {answer.status}")

    def steps(self, shard=0):
        return max((job["steps_decided"] for job in self.status(shard)["jobs"]), default=0)

    def wait_for_steps(self, more):
        """Waits until every shard has decided `more` steps from now on."""
        for shard in range(SHARDS):
            first = self.steps(shard)
            deadline = time.monotonic() + TIMEOUT_S
            while self.steps(shard) < first + more:
                if time.monotonic() > deadline:
                    raise AssertionError(f"shard {shard} decides no steps: {self.status(shard)}")
                time.sleep(0.02)

    def wait_for(self, condition, what):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(what)
            time.sleep(0.02)


class ShardsByHand(unittest.TestCase):
    """A folder with rows for each test; the same rows make the same model, bit for bit."""

    epochs = 20  # of 100 steps each
    models = {}  # of undisturbed runs, by their epochs and flags

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        # Far apart, so that each shard holds a range of the tensor.
        rows = re.sub(r"(\d+):", lambda index: f"{int(index[1]) * 700}:", made_up_rows(400, 5))
        (self.folder / "rows.svm").write_text(rows, encoding="utf-8")

    def own_cluster(self, table, *flags):
        """Returns a cluster whose shards the test starts. They end with the test."""
        cluster = Cluster(self.folder, table, *flags)
        self.addCleanup(cluster.end)
        return cluster

    def cluster(self, table, *flags, programs=PROGRAMS, drain="0s"):
        cluster = self.own_cluster(table, *flags)
        cluster.programs, cluster.drain = programs, drain
        for shard in range(SHARDS):
            cluster.start(shard)
        return cluster

    def train_flags(self, cluster, model, worker):
        return ["--servers", cluster.servers(), "--job", "etcd", "--worker", worker, "--workers", WORKERS, "--train", self.folder / "rows.svm", "--batch", 2,
                "--epochs", self.epochs, "--lr", 0.5, "--reproducible", "--json", "-o", f"{model}.{worker}"]

    def start_worker(self, cluster, model, worker, *flags):
        return start("train", *self.train_flags(cluster, model, worker), *flags)

    def workers(self, cluster, model, *flags):
        return [self.start_worker(cluster, model, worker, *flags) for worker in range(WORKERS)]

    def model(self, processes, model):
        """Waits for the workers; returns the bytes of their one model."""
        for process in processes:
            _, err = process.communicate(timeout=TIMEOUT_S + self.epochs)
            self.assertEqual(process.returncode, 0, err)
        models = {Path(f"{model}.{worker}").read_bytes() for worker in range(WORKERS) if Path(f"{model}.{worker}").exists()}
        self.assertEqual(len(models), 1)
        return models.pop()

    def undisturbed(self, *flags):
        """Returns the model of a run without faults. One run serves all tests of the same length and flags."""
        key = (self.epochs, flags)
        if key not in self.models:
            cluster = self.cluster(self.folder / "undisturbed.db")
            self.models[key] = self.model(self.workers(cluster, self.folder / "undisturbed", *flags), self.folder / "undisturbed")
            cluster.end()
        return self.models[key]


class WithKeys(ShardsByHand):
    """Shards, spares and workers prove keys, and encrypt their messages."""

    def setUp(self):
        super().setUp()
        self.keys = self.folder / "keys"
        made = run("keys", "new", "cluster", "worker", "--folder", self.keys)
        self.assertEqual(made.returncode, 0, made.stderr)

    def own_cluster(self, table, *flags):
        cluster = super().own_cluster(table, *flags)
        cluster.key_flags = ("--key", self.keys / "cluster.key", "--allowed-keys", self.keys)
        return cluster

    def train_flags(self, cluster, model, worker):
        return [*super().train_flags(cluster, model, worker), "--key", self.keys / "worker.key", "--server-key", self.keys / "cluster.pub"]
