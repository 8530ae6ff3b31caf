#!/usr/bin/env python3
"""Runs hostile_rate.py in tiny windows: every attack reaches the shard, the job lives, and the shard's memory grows
by at most its limit. It checks no rate.

    hostile_rate_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

import attackers  # pylint: disable=wrong-import-position
import hostile_rate  # pylint: disable=wrong-import-position
from commands import PROGRAMS  # pylint: disable=wrong-import-position
from measurements import MEASUREMENTS  # pylint: disable=wrong-import-position
from results import figure_values  # pylint: disable=wrong-import-position

TIMEOUT_S = 540


class HostileRate(unittest.TestCase):
    def test_EveryAttackHasConnectionsAndTheReportHasItsFigures(self):
        ended = subprocess.run([sys.executable, hostile_rate.__file__, "--programs", PROGRAMS, "--seconds", "0.5", "--pairs", "1", "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)
        rows = {row["kind"]: row for row in report["rows"]}
        self.assertEqual([*rows], [*hostile_rate.KINDS])
        for row in rows.values():
            with self.subTest(row["kind"]):
                self.assertGreater(row["connections"], 0)
                self.assertGreater(row["held_max"], 0)
                self.assertLessEqual(row["growth_over_limit"], 1)
                self.assertEqual(len(row["ratios"]), 1)
        for kind in ("unfinished", "slow_reader", "hello_flood", "replay"):
            self.assertGreater(rows[kind]["messages"], 0, kind)
        for figure in MEASUREMENTS["hostile_rate"].figures:
            self.assertEqual(len(figure_values(figure, report)), 1, figure.name)


class Recordings(unittest.TestCase):
    def test_ARecordingHasTheHandshakeAndTheFirstWholeMessage(self):
        greeting, ready = b"g" * attackers.GREETING_BYTES, b"\x04\x05ready"
        message = b"\x01\x01e" + b"\x02" + (3).to_bytes(8, "big") + b"pay"
        whole = greeting + ready + message
        for cut in range(len(whole)):
            self.assertIsNone(attackers.Recording.of(whole[:cut]))
        self.assertEqual(attackers.Recording.of(whole + b"\x00\x01x"), attackers.Recording([greeting + ready], message))


if __name__ == "__main__":
    unittest.main()
