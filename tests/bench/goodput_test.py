#!/usr/bin/env python3
"""Runs goodput.py with few failures in short rows: each kind strikes, the job recovers, and no push is lost. It checks no rate.

    goodput_test.py BUILD_FOLDER [unittest arguments]

Kinds that this machine cannot have are skipped: partitions need network namespaces and nft.
"""

import contextlib
import io
import json
import random
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

PROGRAMS = sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev"

import goodput  # pylint: disable=wrong-import-position
from measurements import MEASUREMENTS  # pylint: disable=wrong-import-position
from results import figure_values  # pylint: disable=wrong-import-position

KILLS = 2


def report(kind, *more):
    """Returns the exit code, and the report of short rows."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = goodput.main(["--programs", PROGRAMS, "--kill", kind, "--mtbf", "2s", "--kills", str(KILLS), "--quiet", "1s", "--json", *more])
    return code, json.loads(said.getvalue())


class Goodput(unittest.TestCase):
    def row(self, kind):
        if lacking := goodput.faults.KINDS[kind].lacks(SimpleNamespace(switch=goodput.Path(PROGRAMS) / "bin/millrace-switch")):
            self.skipTest(lacking)
        code, said = report(kind)
        self.assertEqual((code, len(said["rows"])), (0, 1))
        row = said["rows"][0]
        self.assertEqual((row["kind"], row["kills"]), (kind, KILLS))
        self.assertGreater(row["useful_pushes_per_s"], 0)
        self.assertGreater(row["recovery_p50_s"], 0)
        self.assertGreaterEqual(row["seconds"], 2 * KILLS)
        for name, row["mtbf_s"] in (("goodput", 10), ("goodput_600s", 600)):  # the figures name the rows of the measurement
            for figure in MEASUREMENTS[name].figures:
                wanted = figure.path[1]
                if (wanted["kind"], wanted["mtbf_s"]) == (kind, row["mtbf_s"]):
                    self.assertEqual(len(figure_values(figure, said)), 1, figure.name)
        return row

    def test_AKilledWorkerLosesNoPushWithoutAReason(self):
        self.row("workers")

    def test_AKilledShardLosesNoPushWithoutAReason(self):
        self.row("shards")

    def test_AKilledMemberOfEtcdLosesNoPush(self):
        self.row("etcd")

    def test_AKilledSwitchLosesNoPush(self):
        self.assertGreater(self.row("switch")["switch_turns"], 0)

    def test_APartitionLosesNoPush(self):
        self.assertGreater(self.row("partition")["partitioned_s"], KILLS * goodput.faults.PARTITION_S[0])

    def test_KindsMeasuredAtOnceHaveARowEach(self):
        code, said = report("workers,shards", "--at-once")
        self.assertEqual((code, [row["kind"] for row in said["rows"]]), (0, ["workers", "shards"]))

    def test_AFailedKindLeavesTheRowsOfTheOthers(self):
        """The first process prints no row, the second one prints one."""
        ends = iter(((1, '{"rows": []}'), (0, '{"rows": [{"kind": "shards"}]}')))

        @contextlib.contextmanager
        def process(*_arguments, **_flags):
            code, text = next(ends)
            yield SimpleNamespace(returncode=code, communicate=lambda: (text, None), terminate=lambda: None)

        with mock.patch.object(goodput.subprocess, "Popen", process):
            rows, code = goodput.measured_at_once(SimpleNamespace(kill=["workers", "shards"]), [])
        self.assertEqual((rows, code), ([{"kind": "shards"}], 1))

    def test_ALongTimeHasAnIndexForEachPush(self):
        """A worker takes at most one step in each time of computation."""
        for mtbf, kills in (10, 12), (600, 3), (3600, 20):
            time_s = mtbf * kills + 2 * 60
            with mock.patch.object(goodput.punisher.Cluster, "__init__", lambda job, *_: job.__dict__.update(settings=[], dimension=1 << 22)):
                job = goodput.Job(None, None, mock.Mock(), goodput.steps_in(time_s), kills)
            self.assertGreater(job.chunk * goodput.COMPUTE_MS, 1000 * time_s)
            self.assertGreaterEqual(job.dimension, job.chunk * (goodput.punisher.WORKERS + kills))
            self.assertEqual(job.chunk % goodput.faults.WINDOW, 0)

    def test_PushesWithoutAnIndexFailTheRow(self):
        with mock.patch.object(goodput, "steps_in", lambda _: 1), mock.patch.object(goodput.punisher, "CHUNK", 16), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            code, answer = report("shards")
        self.assertEqual((code, answer), (1, {"rows": []}))
        self.assertRegex(said.getvalue(), "has made [0-9]+ pushes, and has 16 indices")

    def test_EveryKindHasGoalsAtEachTimeBetweenFailures(self):
        figures = [*MEASUREMENTS["goodput"].figures, *MEASUREMENTS["goodput_600s"].figures]
        rows = {(figure.path[1]["kind"], figure.path[1]["mtbf_s"]) for figure in figures if figure.path[2] == "goodput" and figure.goal}
        self.assertEqual(rows, {(kind, mtbf) for kind in goodput.faults.KINDS for mtbf in (10, 60, 600)})


class Times(unittest.TestCase):
    def test_ARowHasItsFailuresWithinItsTime(self):
        """Strikes take no time here, and the clock is the test's."""
        now = [0.0]
        at = []

        def read_until(end):
            now[0] = max(now[0], end)

        def strike(_job, _draw):
            at.append(now[0])
            return 0.5, {"partitioned_s": 0.25}

        job = SimpleNamespace(read_until=read_until, fault=SimpleNamespace(strike=strike))
        with mock.patch.object(goodput.time, "monotonic", lambda: now[0]):
            recoveries, sums, lasted = goodput.disturbed(job, 100, 1000, random.Random(7))
        self.assertEqual((recoveries, sums, lasted), ([0.5] * 1000, {"partitioned_s": 250}, 100))
        self.assertEqual(at, sorted(at))
        self.assertTrue(0 <= at[0] and at[-1] <= 100)
        self.assertAlmostEqual(sum(at) / len(at), 50, delta=5)


class Usage(unittest.TestCase):
    def refused(self, words, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            goodput.main(["--programs", PROGRAMS, *arguments])
        self.assertEqual(ended.exception.code, 2)
        self.assertIn(words, said.getvalue())

    def test_GoodputRefusesInvalidKillOptions(self):
        self.refused("the kinds are", "--kill", "workers,clouds")
        self.refused("must be over 0", "--kill", "workers", "--kills", "0")
        self.refused("one for each time", "--kill", "workers", "--mtbf", "10s,60s", "--kills", "1,2,3")
        self.refused("path switch has no mode", "--kill", "switch", "--mode", "partial")


if __name__ == "__main__":
    unittest.main()
