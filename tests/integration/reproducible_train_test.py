#!/usr/bin/env python3
"""`millrace train --reproducible`: the same model, to the bit, from one shard and from three, however they cut the tensor, from a switch,
and from peers (`millrace-peer train --reproducible`).

    reproducible_train_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, millrace, run, start

sys.argv.insert(1, str(PROGRAMS))  # mpi_ranks takes it off, too
import mpi_ranks  # noqa: E402

FEATURES = 30_000  # enough that three shards have a range each
WORKERS = 3
BATCH = 64  # a power of two: peers divide by the rows of a step, workers by their own and by the workers
STEPS = 8   # of an epoch
GRID_BLOCK = 4_096  # the block of a reproducible job that names no grid


def rows_of_words(rows, seed):
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = sorted({1 + int(draw.random() ** 3 * FEATURES) for _ in range(30)})
        label = 1 if sum(word % 2 for word in words) * 2 > len(words) else -1
        # Values of many magnitudes: sums of floats depend on their order.
        lines.append(" ".join([str(label)] + [f"{word}:{10 ** draw.uniform(-3, 1):.6g}" for word in words]))
    return "\n".join(lines) + "\n"


def rows_of_one_length(rows, seed):
    """Lines of as many bytes each, so that a share of the file's bytes is a share of its rows."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = sorted(draw.sample(range(10_000, FEATURES + 1), 12))
        label = "+1" if sum(word % 2 for word in words) * 2 > len(words) else "-1"
        lines.append(" ".join([label] + [f"{word}:{10 ** draw.uniform(-3, 0.9):8.6f}" for word in words]))
    return lines


def text_of(lines):
    return "\n".join(lines) + "\n"


def peers_are_here():
    if shutil.which("mpirun") is None or not Path(mpi_ranks.PROGRAM).exists():
        return False
    return "not in this build" not in subprocess.run([mpi_ranks.PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout


class Reproducible(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.data = Path(cls.folder.name) / "train.svm"
        cls.data.write_text(rows_of_words(1_200, 1), encoding="ascii")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def model(self, shards, *flags):
        """Returns the bytes of the model that `shards` shards and WORKERS workers make."""
        serve = subprocess.Popen(millrace("serve", "--shards", shards, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"),
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            servers = json.loads(serve.stdout.readline())["servers"]
            out = Path(self.folder.name) / f"model-{shards}"
            running = [start("train", "--servers", servers, "--job", "same", "--worker", worker, "--workers", WORKERS, "--train",
                             self.data, "--epochs", 2, "--audit", *flags,
                             *(["-o", out] if worker == 0 else []))
                       for worker in range(WORKERS)]
            for process in running:
                _, err = process.communicate(timeout=TIMEOUT_S)
                self.assertEqual(process.returncode, 0, err)
            return out.read_bytes()
        finally:
            serve.send_signal(signal.SIGTERM)
            self.assertEqual(serve.wait(timeout=240), 0)
            serve.stdout.close()

    def test_OneShardAndThreeMakeTheSameModel(self):
        for more in ([], ["--select", "topk:0.02"], ["--select", "topk:0.02", "--reselect", "topk:0.03"],
                     ["--select", "topk:0.02", "--momentum", "correction:0.5"]):
            with self.subTest(flags=more):
                flags = ["--reproducible", "--batch", 40, "--lr", 0.05, *more]
                self.assertEqual(self.model(1, *flags), self.model(3, *flags))

    def start_switch(self, job, reselect_k, lanes=1):
        """The address of a switch that has this job, as its default grid wants it, and as many lcores as the job lanes."""
        keys = Path(self.folder.name) / "keys"
        keys.mkdir(exist_ok=True)
        key = keys / f"{job}.key"
        key.touch(mode=0o600)
        key.write_text("0123456789abcdef" * 4 + "\n", encoding="ascii")
        windows = (FEATURES + 1 + GRID_BLOCK - 1) // GRID_BLOCK
        jobs = Path(self.folder.name) / "jobs.json"
        jobs.write_text(json.dumps({"jobs": [{"name": "same", "job": job, "key_file": str(key), "workers": WORKERS,
                                              "window_indices": GRID_BLOCK, "slots": windows, "lanes": lanes,
                                              **({"reselect_k": reselect_k} if reselect_k else {})}]}), encoding="utf-8")
        switch = subprocess.Popen([PROGRAMS / "millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", jobs, "--lcores", str(lanes), "--json"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(switch.communicate, timeout=TIMEOUT_S)
        self.addCleanup(switch.kill)
        return json.loads(switch.stdout.readline())["addresses"][0], key

    def model_of_peers(self, data, *flags):
        out = Path(self.folder.name) / "model-peers"
        ended = mpi_ranks.run(WORKERS, ["train", "--train", str(data), "--epochs", "2", "--batch", str(BATCH), "--lr", "1", *flags,
                                        "-o", str(out)])
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return out.read_bytes()

    def test_ShardsASwitchAndPeersMakeTheSameModelWithoutNamingAGrid(self):
        rows = rows_of_one_length(WORKERS * BATCH * STEPS, 7)
        self.data = Path(self.folder.name) / "even.svm"
        self.data.write_text(text_of(rows), encoding="ascii")
        # A worker takes every third row, a rank a third of the bytes: the same rows in the same order each.
        by_rank = Path(self.folder.name) / "even-by-rank.svm"
        by_rank.write_text(text_of([row for rank in range(WORKERS) for row in rows[rank::WORKERS]]), encoding="ascii")
        for number, (more, reselect) in enumerate((([], 0), (["--select", "topk:0.01"], 0),
                                                   (["--select", "topk:0.01", "--reselect", "topk:0.015"], 0.015))):
            with self.subTest(flags=more):
                flags = ["--reproducible", *more]
                run_flags = [*flags, "--batch", BATCH, "--lr", 1]
                models = {"shards": self.model(3, *run_flags)}
                address, key = self.start_switch(40 + number, math.ceil(reselect * (FEATURES + 1)))
                models["switch"] = self.model(2, *run_flags, "--path", "switch", "--switch-address", f"{address}", "--switch-job", 40 + number,
                                              "--switch-key", key)
                if reselect == 0:
                    address, key = self.start_switch(50 + number, 0, lanes=2)
                    models["two lanes"] = self.model(2, *run_flags, "--path", "switch", "--switch-address", f"{address}", "--switch-job", 50 + number,
                                                     "--switch-key", key, "--switch-lanes", 2)
                if peers_are_here():
                    models["peers"] = self.model_of_peers(by_rank, *flags)
                for name, model in models.items():
                    self.assertEqual(model, models["shards"], name)
        if not peers_are_here():
            self.skipTest("shards and the switch agree; there are no peers here (no mpirun, or a build without MPI)")

    def test_AGridThatIsTooLargeForASwitchIsRefusedWithWhatFits(self):
        ended = run("train", "--servers", "127.0.0.1:1", "--job", "refused", "--worker", 0, "--workers", 2, "--train", self.data,
                    "--reproducible", "--grid", "16384:-20", "--path", "switch", "--switch-address", "127.0.0.1:1", "--switch-job", 1, "--switch-key", "x")
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn("5376 indices a block at most", ended.stderr)
        self.assertIn("4096 on every path", ended.stderr)
        self.assertIn("--reproducible 4096:-20", " ".join(run("train", "--help").stdout.split()))

    def test_WhatCannotBeReproducedIsRefusedWithTheReason(self):
        for flags, sentence in ((["--staleness", 1], "mode synchronous"), (["--codec-up", "gap+qsgd4"], "without loss"),
                                (["--state", Path(self.folder.name) / "state"], "no snapshot")):
            ended = run("train", "--servers", "127.0.0.1:1", "--job", "refused", "--worker", 0, "--workers", 2, "--train", self.data,
                        "--reproducible", *flags)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(sentence, ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
