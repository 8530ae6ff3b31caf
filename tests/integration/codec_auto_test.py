#!/usr/bin/env python3
"""Jobs whose codecs are chosen on the way: their reports, and that the result is that of codecs that were named.

    codec_auto_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import re
import time
import unittest
import urllib.request

from commands import TIMEOUT_S, WithServers, made_up_rows, run, start
from reserved_ports import ReservedPorts

WHY = re.compile(r"^(dense|[a-z_0-9]+\+[a-z_0-9]+): [\d.]+ (ns|us|ms|s) against .*, density [\d.e-]+$")


class Automatic(WithServers):
    def rows(self):
        return self.path("rows.svm", made_up_rows(3000, 2))

    @staticmethod
    def status(address):
        with urllib.request.urlopen(f"http://{address}/status", timeout=120) as answer:
            return json.loads(answer.read().decode("utf-8"))

    def test_TheResultIsThatOfNamedCodecs(self):
        flags = ["--train", self.rows(), "--test", self.rows(), "--epochs", 2, "--batch", 50, "--lr", 0.5]
        named = self.train(2, *flags, job="named")
        chosen = self.train(2, *flags, "--codec-up", "auto", "--codec-down", "auto", "--audit", job="chosen")
        for one, other in zip(named, chosen):
            self.assertEqual(other["epochs"][-1]["held_out"], one["epochs"][-1]["held_out"])
            self.assertEqual(other["audit"]["imbalance"], 0)

    def test_StatusAndLogSayWhy(self):
        ports = ReservedPorts(1)
        self.addCleanup(ports.close)
        address = f"127.0.0.1:{ports.numbers[0]}"
        worker = start("train", *self.flags(job="why"), "--train", self.rows(), "--epochs", 1000, "--batch", 50, "--http", address,
                       "--codec-up", "auto", "--codec-down", "auto", "--link-rate", "100mbit", "--verbose", "--compute-time", "5ms")
        try:
            self.poll(lambda: self.says(address), worker)
            up = self.poll(lambda: self.status(address).get("codecs_up"), worker)
            down = self.poll(self.shards_say, worker)
        finally:
            worker.terminate()
            _, log = worker.communicate(timeout=TIMEOUT_S)
        self.assertRegex(up[0]["codec"], WHY)
        self.assertIn("at 100 Mbit/s", up[0]["codec"])
        self.assertRegex(down[0]["codec"], WHY)
        self.assertIn("at 1 Gbit/s", down[0]["codec"], "the shards' link is their own")
        self.assertRegex(log, "tensor '[^']+' goes up as [^\\n]+ against ")

    def shards_say(self):
        jobs = [job for shard in self.cluster["shards"] for job in self.status(shard["http"])["jobs"] if job["name"] == "why"]
        return next((job["codecs_down"] for job in jobs if "codecs_down" in job), None)

    def says(self, address):
        try:
            return self.status(address)
        except OSError:
            return None

    def poll(self, ask, worker):
        deadline = time.monotonic() + TIMEOUT_S
        while not (said := ask()):
            self.assertIsNone(worker.poll(), "the worker has ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        return said

    def test_TrainRefusesInvalidAutoCodecOptions(self):
        self.refused(2, "codec_up: ", "train", *self.flags(), "--train", "none", "--codec-up", "auto+qsgd4:l2")
        self.refused(2, "auto[+VALUE]", "train", *self.flags(), "--train", "none", "--codec-up", "auto+gap")
        self.refused(2, "--link-rate: '-1'", "train", *self.flags(), "--train", "none", "--link-rate", "-1")


class Explained(unittest.TestCase):
    def test_ExplainComparesEveryCandidateWithItsEstimate(self):
        ended = run("bench", "codec", "--explain", "--dimension", 20000, "--density", 0.05, "--repeats", 2, "--link-rate", "100mbit", "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        said = json.loads(ended.stdout)
        self.assertRegex(said["why"], WHY)
        rows = {row["algorithm"]: row for row in said["rows"]}
        self.assertLessEqual({"dense", "raw+raw", "gap+raw", "adaptive+raw", "bitmap+raw"}, set(rows))
        self.assertIn(said["chosen"], rows)
        self.assertEqual(said["best"], min(rows.values(), key=lambda row: row["measured_us"])["algorithm"])
        for name in ("dense", "raw+raw", "bitmap+raw"):
            self.assertEqual(rows[name]["expected_bytes"], rows[name]["bytes"])
        text = run("bench", "codec", "--explain", "--dimension", 20000, "--repeats", 2)
        self.assertRegex(text.stdout.split("\n")[0], WHY)

    def test_NothingToChooseIsRefused(self):
        self.assertEqual(run("bench", "codec", "--explain", "--codec", "gap").returncode, 2)


if __name__ == "__main__":
    unittest.main()
