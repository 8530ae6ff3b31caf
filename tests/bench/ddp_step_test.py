#!/usr/bin/env python3
"""Runs ddp_step.py with a tiny network: each exchange leaves the same gradients at all ranks, and the report has its
figures. It checks no time.

    ddp_step_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import json
import subprocess
import sys
import unittest

PROGRAMS, PACKAGE = sys.argv[1:3]
del sys.argv[1:3]

import ddp_step  # pylint: disable=wrong-import-position
from measurements import MEASUREMENTS  # pylint: disable=wrong-import-position
from results import figure_values  # pylint: disable=wrong-import-position

TIMEOUT_S = 1400
WIDTH, LAYERS = 128, 2  # a weight is over the size below which Millrace sends tensors dense
SCHEMES = ["f32", "bf16", "millrace", "millrace_reselect", "passes"]


class DdpStep(unittest.TestCase):
    def test_EveryExchangeMovesItsBytesAndTheReportHasItsFigures(self):
        ended = subprocess.run([sys.executable, ddp_step.__file__, "--programs", PROGRAMS, "--package", PACKAGE, "--width", str(WIDTH), "--layers", str(LAYERS),
                                "--rounds", "2", "--warmup", "1", "--json"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if ended.returncode == ddp_step.SKIPPED:
            self.skipTest(ended.stdout.strip())
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout.splitlines()[-1])
        rows = {row["scheme"]: row for row in report["rows"]}
        self.assertEqual([*rows], SCHEMES)
        ring = 4 * LAYERS * (WIDTH * WIDTH + WIDTH) * 2 * (ddp_step.RANKS - 1) / ddp_step.RANKS
        self.assertGreater(rows["f32"]["bytes_sent"], ring)
        self.assertGreater(rows["bf16"]["bytes_sent"], ring / 2)
        self.assertLess(rows["bf16"]["bytes_sent"], rows["f32"]["bytes_sent"])
        self.assertGreater(rows["millrace"]["bytes_sent"], 0)
        self.assertLess(rows["millrace"]["bytes_sent"], rows["bf16"]["bytes_sent"])
        self.assertLess(rows["passes"]["bytes_sent"], rows["millrace"]["bytes_sent"])
        for figure in MEASUREMENTS["ddp_step"].figures:
            self.assertEqual(len(figure_values(figure, report)), 1, figure.name)


def record(scheme, talks, number, rank, seconds, checksum=1.0):
    return {"rank": rank, "round": number, "scheme": scheme, "talks": talks, "seconds": seconds, "processor_s": 0.01 * (rank + 1) * (2 if talks else 1),
            "shards_processor_s": 0.02, "bytes_sent": 10, "bytes_received": 20, "checksum": checksum}


class Steps(unittest.TestCase):
    def records(self):
        """Alone a step takes 1 s, rank 1 a half more. The exchange adds 10 s, 5 s and 1 s, in round 1 twice as much, to the last rank."""
        added = {"f32": 10, "bf16": 5, "millrace": 1}
        return [record(scheme, talks, number, rank, 1 + rank / 2 + (seconds * (number + 1) if talks else 0))
                for number in (-1, 0, 1) for scheme, seconds in added.items() for talks in (False, True) for rank in (0, 1)]

    def test_CommunicationIsTheLastRanksTimeBeyondTheStepAlone(self):
        rows = {row["scheme"]: row for row in ddp_step.rows_of(ddp_step.Steps(self.records()), dict.fromkeys(("f32", "bf16", "millrace"), ""))}
        self.assertEqual([rows[scheme]["communication_ms"] for scheme in rows], [15_000, 7_500, 1_500])
        self.assertEqual([rows[scheme]["alone_ms"] for scheme in rows], [1_500] * 3)
        self.assertAlmostEqual(rows["millrace"]["over_f32"], 0.1)
        self.assertAlmostEqual(rows["millrace"]["over_bf16"], 0.2)
        self.assertAlmostEqual(rows["millrace"]["processor_ms"], 30)
        self.assertEqual(rows["millrace"]["rounds"], 2)

    def test_DifferentGradientsAfterAnExchangeAreAFailure(self):
        records = self.records()
        ddp_step.Steps([*records, record("f32", False, 0, 2, 1.0, checksum=2.0)])
        with self.assertRaisesRegex(ddp_step.Failed, "f32, round 1: the ranks have different gradients"):
            ddp_step.Steps([*records, record("f32", True, 1, 2, 1.0, checksum=2.0)])


if __name__ == "__main__":
    unittest.main()
