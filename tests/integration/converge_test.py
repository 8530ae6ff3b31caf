#!/usr/bin/env python3
"""`millrace-bench converge` and `millrace-bench crowd` with real shards and workers, as small as they go: a slow worker is hidden, the plot is
one; many workers are threads of few processes.

    converge_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import random
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

PROGRAMS = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin").resolve()
TIMEOUT_S = 240


def bench(*arguments):
    command = [PROGRAMS / "millrace-bench", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def converge(folder, *arguments):
    return bench("converge", "--folder", folder, *arguments)


def made_up_rows(count):
    draw = random.Random(1)
    lines = []
    for _ in range(count):
        features = sorted(draw.sample(range(1, 17), 4))
        lines.append(f"{1 if features[0] < 4 else -1:+d} " + " ".join(f"{index}:1" for index in features))
    return "\n".join(lines) + "\n"


class Converge(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.data = self.folder / "rows.svm"
        self.data.write_text(made_up_rows(400), encoding="utf-8")

    def test_ASlowWorkerIsHiddenByTheModesThatLeaveWorkersOut(self):
        plot = self.folder / "plot.svg"
        ended = converge(self.folder, "--data", self.data, "--workers", 3, "--shards", 1, "--rounds", 30, "--points", 5, "--batch", 8,
                         "--lr", 0.25, "--select", "none", "--reselect", "none", "--compute-time", "3ms", "--slow-worker", "0:20", "--only",
                         "synchronous,staleness-16,quorum", "--plot", plot, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        result = json.loads(ended.stdout.strip().split("\n")[-1])
        self.assertEqual(result["slow_worker"], {"worker": 0, "factor": 20.0})
        rows = {row["algorithm"]: row for row in result["rows"]}
        self.assertEqual(list(rows), ["synchronous", "staleness-16", "quorum"])
        for row in rows.values():
            self.assertEqual(row["curve"][0]["round"], 0)
            self.assertEqual(row["curve"][-1]["round"], row["rounds"])
            self.assertGreaterEqual(row["rounds"], 30)
            self.assertEqual(row["curve"][-1]["log_loss"], row["log_loss"])
            self.assertLess(row["log_loss"], row["curve"][0]["log_loss"])
        self.assertEqual(rows["synchronous"]["contributors"], 3)
        self.assertLess(rows["synchronous"]["rounds_per_s"], 1000 / (3 * 20))
        for name in ("staleness-16", "quorum"):
            self.assertLess(rows[name]["contributors"], 3)
            self.assertLess(rows[name]["slow_steps"], rows["synchronous"]["slow_steps"])
            self.assertGreater(rows[name]["rate_over_synchronous"], 2)  # 10 and more on a quiet machine
        lines = xml.etree.ElementTree.parse(plot).findall("{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(lines), 2 * len(rows))

    def test_InvalidOptionsAreRefusedBeforeAnyProcessStarts(self):
        for sentence, flags in (("there is no row 'other'", ["--only", "other"]), ("--slow-worker 4 of --workers 4", ["--compute-time", "1ms", "--slow-worker", "4:2"]),
                                ("--compute-time, which is 0", ["--slow-worker", "1:2"]), ("WORKER:FACTOR", ["--slow-worker", "1"]),
                                ("select", ["--select", "best"])):
            ended = converge(self.folder, "--data", self.data, *flags)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(sentence, ended.stderr)
            self.assertNotIn("shard 0", ended.stderr)


class Crowd(unittest.TestCase):
    def test_EveryRowsUpdateIsTheOraclesHoweverManyWorkersThereAre(self):
        ended = bench("crowd", "--workers", "1,7", "--processes", 2, "--dimension", 4096, "--density", 0.01, "--rounds", 2, "--warmup", 0, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        rows = json.loads(ended.stdout.strip().split("\n")[-1])["rows"]
        self.assertEqual([(row["workers"], row["agrees_with_oracle"]) for row in rows], [(1, True), (7, True)])
        self.assertEqual(rows[0]["time_per_byte_over_first"], 1)
        self.assertNotIn("memory_over_stream", rows[0])
        self.assertGreater(rows[1]["bytes_up"], 8 * 41)  # raw pairs of a step, and envelopes

    def test_InvalidOptionsAreRefusedBeforeAnyProcessStarts(self):
        for sentence, flags in (("numbers that increase", ["--workers", "4,4"]), ("loses something", ["--codec", "gap+qsgd4"])):
            ended = bench("crowd", *flags)
            self.assertEqual((ended.returncode, ended.stderr.count("\n")), (2, 1), ended.stderr)
            self.assertIn(sentence, ended.stderr)


if __name__ == "__main__":
    unittest.main()
