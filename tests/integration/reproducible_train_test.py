#!/usr/bin/env python3
"""`millrace train --reproducible`: the same model, to the bit, from one shard and from three, however they cut the tensor.

    reproducible_train_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import random
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from commands import TIMEOUT_S, millrace, run, start

FEATURES = 30_000  # so many that three shards have a range each
WORKERS = 3


def rows_of_words(rows, seed):
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = sorted({1 + int(draw.random() ** 3 * FEATURES) for _ in range(30)})
        label = 1 if sum(word % 2 for word in words) * 2 > len(words) else -1
        # Values of many magnitudes: sums of floats depend on their order.
        lines.append(" ".join([str(label)] + [f"{word}:{10 ** draw.uniform(-3, 1):.6g}" for word in words]))
    return "\n".join(lines) + "\n"


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
        """The bytes of the model that so many shards and WORKERS workers make."""
        serve = subprocess.Popen(millrace("serve", "--shards", shards, "--port", 0, "--http-port", 0, "--json"),
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            servers = json.loads(serve.stdout.readline())["servers"]
            out = Path(self.folder.name) / f"model-{shards}"
            running = [start("train", "--servers", servers, "--job", "same", "--worker", worker, "--workers", WORKERS, "--train",
                             self.data, "--epochs", 2, "--batch", 40, "--lr", 0.05, "--audit", *flags,
                             *(["-o", out] if worker == 0 else []))
                       for worker in range(WORKERS)]
            for process in running:
                _, err = process.communicate(timeout=TIMEOUT_S)
                self.assertEqual(process.returncode, 0, err)
            return out.read_bytes()
        finally:
            serve.send_signal(signal.SIGTERM)
            self.assertEqual(serve.wait(timeout=60), 0)
            serve.stdout.close()

    def test_OneShardAndThreeMakeTheSameModel(self):
        for more in ([], ["--select", "topk:0.02"], ["--select", "topk:0.02", "--reselect", "topk:0.03"],
                     ["--select", "topk:0.02", "--momentum", "correction:0.5"]):
            with self.subTest(flags=more):
                flags = ["--reproducible", "--grid", "4096:-20", *more]
                self.assertEqual(self.model(1, *flags), self.model(3, *flags))

    def test_WhatCannotBeReproducedIsRefusedWithTheReason(self):
        for flags, sentence in ((["--staleness", 1], "mode synchronous"), (["--codec-up", "gap+qsgd4"], "without loss"),
                                (["--state", Path(self.folder.name) / "state"], "no snapshot")):
            ended = run("train", "--servers", "127.0.0.1:1", "--job", "refused", "--worker", 0, "--workers", 2, "--train", self.data,
                        "--reproducible", *flags)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(sentence, ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
