#!/usr/bin/env python3
"""Checks the punisher's verdicts on the lives of made-up processes: which lost pushes it excuses, and which it does not."""

import tempfile
import types
import unittest
from pathlib import Path

import punisher_test as punisher

CHUNK = 100


class Verdicts(unittest.TestCase):
    """Worker 0 is killed once, as process 0; process 4 follows it. The other workers live to the end."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.counts = {"kills_of_shards": 1}

    def life(self, worker, serial, lines, weights=None):
        """A process that wrote these lines. Without weights it was killed."""
        log = self.folder / f"worker-{worker}-{serial}.out"
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if weights is not None:
            text = "".join(f"{index} 1\n" for index in weights)
            log.with_suffix(".weights").write_text(text, encoding="utf-8")
        made = punisher.Life(worker, serial, None, punisher.Log(str(log)), CHUNK)
        made.read()
        made.killed = weights is None
        return made

    def judge(self, killed, mode="synchronous", others=(), losses="lost 0 0 0 0 0"):
        """Judges a run whose final weights have no push of process 0: its save has two pushes, and holds none of them."""
        end = [losses, "kept", "finished 3 1"]
        lives = [[self.life(0, 0, killed), self.life(0, 4, ["holds 2 2", "joined 2", "push 0", "at 3 c", *end], [400])]]
        for worker in range(1, punisher.WORKERS):
            lives.append([self.life(worker, worker, ["joined 0", *others, "at 3 c", *end], [400])])
        cluster = types.SimpleNamespace(lives=lives, now=lambda worker: lives[worker][-1], counts=self.counts, chunk=CHUNK,
                                        killed_all=False)
        judge = punisher.Judge(cluster, types.SimpleNamespace(mode=mode))
        judge.check()
        return judge.missing

    def test_UpdatesThatTheKilledProcessHadAlone_MayBeGone(self):
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 0 0"]
        self.assertEqual(self.judge(killed)["void"], 2)
        self.assertEqual(self.judge(killed, others=("at 1 a", "at 2 other"))["void"], 2)

    def test_AnUpdateThatALivingWorkerHad_MayNot(self):
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 0 0"]
        with self.assertRaisesRegex(punisher.Failure, "push 0 of process 0 .* worker 1 had its update"):
            self.judge(killed, others=("at 1 a", "at 2 b"))

    def test_ALivingWorkerWhoseWeightsWereReplaced_ProvesNothing(self):
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 0 0"]
        self.assertEqual(self.judge(killed, others=("at 2 b", "replaced"))["void"], 2)

    def test_ALivingWorkerThatReportsALoss_IsNoWitness(self):
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 0 0"]
        self.assertEqual(self.judge(killed, others=("at 1 a", "at 2 b"), losses="lost 0 0 0 0 1")["void"], 2)

    def test_WithStaleness_AnAnswerIsOfAnEarlierPush(self):
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 0 0"]
        self.assertEqual(self.judge(killed, "staleness", ("at 1 a", "at 2 b"))["void"], 2)

    def test_AKilledProcess_ExcusesAsManyPushesAsItReports(self):
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 1 0"]
        missing = self.judge(killed)
        self.assertEqual((missing["counted as lost"], missing["void"]), (1, 1))

    def test_WithoutAKilledShard_NoCountedPushMayBeGone(self):
        self.counts = {"kills_of_shards": 0}
        killed = ["joined 0", "push 0", "at 1 a", "push 1", "at 2 b", "saved 2", "lost 0 0 0 1 0"]
        with self.assertRaisesRegex(punisher.Failure, "1 pushes were counted and are gone"):
            self.judge(killed)


if __name__ == "__main__":
    unittest.main()
