#!/usr/bin/env python3
"""`millrace-bench recover` with real shards and workers, small: every push is counted once, and all processes soon
continue.

    recover_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import etcd_members

PROGRAMS = Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/bin").resolve()
TIMEOUT_S = 100
SPARED = ("--spare", "--dimension", 1 << 18, "--density", 0.05, "--kills", 2, "--joins", 1, "--rounds", 10, "--workers", 2, "--parts-per-shard", 2, "--json")


def recover(*arguments):
    command = [PROGRAMS / "millrace-bench", "recover", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


class Recover(unittest.TestCase):
    def test_KilledShardsAndAJoinerLoseNothing(self):
        ended = recover("--dimension", 1 << 18, "--kills", 3, "--joins", 2, "--rounds", 10, "--workers", 3, "--parts-per-shard", 2, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        result = json.loads(ended.stdout.strip().split("\n")[-1])
        for name in ("steps_lost", "double_counted", "wrong_weights"):
            self.assertEqual(result[name], 0)
        self.assertEqual(len(result["kills"]), 3)
        self.assertEqual(len(result["joins"]), 2)
        for kill in result["kills"]:
            self.assertGreaterEqual(kill["first_update_s"], kill["ready_s"])
        self.assertEqual(result["first_update_s"], max(kill["first_update_s"] for kill in result["kills"]))
        for join in result["joins"]:
            self.assertGreater(join["takes_part_s"], join["has_weights_s"])
            self.assertGreater(join["rounds_meanwhile"], 0)
        # Three workers, except in the rounds without one; every step has the pushes of all members.
        self.assertLess(result["pushes"], 3 * result["steps"])
        self.assertGreater(result["pushes"], 2 * result["steps"])

    def test_ASpareTakesTheNumberOfEachKilledShard(self):
        self.assert_spared(recover(*SPARED))

    def assert_spared(self, ended, least_s=0.3):
        self.assertEqual(ended.returncode, 0, ended.stderr)
        result = json.loads(ended.stdout.strip().split("\n")[-1])
        self.assertEqual([result[name] for name in ("steps_lost", "double_counted", "wrong_weights")], [0, 0, 0])
        self.assertEqual((result["spare"], len(result["kills"]), len(result["joins"])), (True, 2, 1))
        for kill in result["kills"]:
            self.assertGreaterEqual(kill["ready_s"], least_s, "a spare takes no number before")
            self.assertGreaterEqual(kill["first_update_s"], kill["ready_s"])

    @unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
    def test_ASpareTakesTheNumberByATableInEtcd(self):
        """The lease in etcd may last longer than the kill: the refused connection decides. Of a stopped shard the lease decides."""
        with tempfile.TemporaryDirectory() as folder:
            etcd = etcd_members.Members(folder, 1)
            try:
                etcd.leader()
                self.assert_spared(recover("--table", etcd.table("/recover"), *SPARED))
                self.assertGreater(etcd.keys("/recover/"), 0, "the table is in etcd")
                # The last renewal may be half a second before the stop; the lease lasts 2 s.
                self.assert_spared(recover("--table", etcd.table("/stopped"), "--stop", *SPARED), 1.3)
            finally:
                etcd.end()

    def test_RecoverRefusesInvalidOptions(self):
        for sentence, flags in (("no room to mark", ["--dimension", 1024]), ("loses something", ["--codec", "gap+qsgd4"]),
                                ("--workers 2 at least", ["--workers", 1]),
                                ("--shards 2 at least", ["--spare", "--shards", 1]), ("keeps its lease", ["--spare", "--stop"])):
            ended = recover(*flags)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(sentence, ended.stderr)


if __name__ == "__main__":
    unittest.main()
