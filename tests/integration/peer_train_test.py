#!/usr/bin/env python3
"""`millrace-peer train` under mpirun: the ranks' shares, models, errors and ends.

    peer_train_test.py FOLDER_OF_THE_PROGRAMS

Exits 77 (skipped, for ctest) where there is no mpirun, or the build has no MPI."""

import json
import os
import random
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import mpi_ranks
from mpi_ranks import PROGRAM, PROGRAMS

RANKS = 3


def start(arguments, ranks=RANKS):
    return mpi_ranks.start(ranks, ["train", *arguments])


def run(arguments, ranks=RANKS):
    return mpi_ranks.run(ranks, ["train", *arguments], timeout=120)


def ranks_of(mpirun):
    return mpi_ranks.pids_of_ranks(mpirun, range(RANKS))


def rows_like_w8a(path, rows, seed, end="\n"):
    """Of 300 features a few each; the label follows a linear model but for a row in fifty."""
    draw = random.Random(seed)
    weights = [random.Random(at).gauss(0, 1) for at in range(300)]
    with open(path, "w", encoding="ascii", newline="") as file:
        for _ in range(rows):
            features = sorted(draw.sample(range(300), 12))
            positive = sum(weights[at] for at in features) > 0
            if draw.random() < 0.02:
                positive = not positive
            file.write(("+1" if positive else "-1") + "".join(f" {at + 1}:1" for at in features) + end)


class Train(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-peer-train-")
        cls.data = str(Path(cls.folder.name) / "train.svm")
        cls.test = str(Path(cls.folder.name) / "test.svm")
        rows_like_w8a(cls.data, 3_000, 1)
        rows_like_w8a(cls.test, 500, 2, "\r\n")
        cls.files = ["--train", cls.data, "--test", cls.test, "--batch", "100"]
        cls.quick = [*cls.files, "--epochs", "8", "--lr", "2"]
        cls.endless = [*cls.files, "--epochs", "1000000"]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def trained(self, arguments, ranks=RANKS):
        ended = run([*arguments, "--json"], ranks)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        result = json.loads(ended.stdout.strip().split("\n")[-1])
        self.assertEqual(result["ranks"], ranks)
        self.assertTrue(result["models_identical"])
        self.assertEqual(result["rows"], 3_000)
        self.assertEqual(result["features"], 300)
        losses = [epoch["loss"] for epoch in result["epochs"]]
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(result["epochs"][-1]["held_out_accuracy"], 0.75)
        return result

    def test_LogisticRegressionAndSvm(self):
        for model in ("lr", "svm"):
            for ranks in (1, 3):
                with self.subTest(model=model, ranks=ranks):
                    self.trained([*self.quick, "--model", model, "--l2", "1e-5", "--schedule", "inverse_sqrt:2"],
                                 ranks)

    def test_SelectionsCodecsAndThreads(self):
        for flags in (["--algorithm", "ssar_recursive_doubling", "--select", "topk:0.1", "--codec", "gap+qsgd4"],
                      ["--algorithm", "oktopk", "--select", "topk:0.1"], ["--threads", "3"],
                      ["--mpi-threads", "single", "--algorithm", "dense_ring"]):
            with self.subTest(flags=flags):
                self.trained([*self.quick, *flags])

    def test_CoordinateDescentGoesDownInEveryEpoch(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                result = self.trained([*self.files, "--optimizer", "scd", "--coordinates", "5", "--epochs", "10", "--l2", "1e-4",
                                       "--threads", "2"], ranks)
                objectives = [epoch["objective"] for epoch in result["epochs"]]
                self.assertEqual(objectives, sorted(objectives, reverse=True))

    def test_AsynchronousStepsOverlapAndTrain(self):
        for flags in (["--asynchronous", "1"], ["--asynchronous", "4", "--mpi-threads", "multiple"],
                      ["--asynchronous", "2", "--algorithm", "oktopk", "--select", "topk:0.1"],
                      ["--asynchronous", "1", "--optimizer", "scd", "--coordinates", "10"]):
            with self.subTest(flags=flags):
                rate = "1" if "scd" in flags else "2"
                result = self.trained([*self.files, "--epochs", "10", "--lr", rate, *flags])
                self.assertEqual(result["asynchronous"], int(flags[1]))

    def test_FullBatchesGiveTheSameLossForEveryNumberOfRanks(self):
        flags = ["--train", self.data, "--test", self.test, "--batch", "3000", "--epochs", "20", "--lr", "1"]
        losses = [self.trained(flags, ranks)["epochs"][-1]["loss"] for ranks in (1, 2, 3, 5)]
        for loss in losses[1:]:
            self.assertAlmostEqual(loss, losses[0], places=5)

    def test_TheModelIsWrittenAndEvaluated(self):
        model = str(Path(self.folder.name) / "a.model")
        ended = run([*self.quick, "-o", model])
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("3 ranks, 1 threads each; 3,000 rows, 300 features", ended.stdout)
        self.assertIn("held-out", ended.stdout)
        self.assertEqual(len(ended.stdout.strip().split("\n")), 2 + 8 + 1, ended.stdout)
        evaluated = subprocess.run([str(PROGRAMS / "millrace"), "eval", "--model", model, "--data", self.test], check=False,
                                   capture_output=True, text=True, timeout=60)
        self.assertEqual(evaluated.returncode, 0, evaluated.stderr)

    def refused(self, arguments, code, words):
        ended = run(arguments)
        self.assertEqual(ended.returncode, code, ended.stderr)
        self.assertEqual(ended.stderr.count(words), 1, ended.stderr)
        self.assertNotIn("interrupted", ended.stderr)

    def test_BadFilesAreToldOnce(self):
        def file(name, text):
            path = Path(self.folder.name) / name
            path.write_bytes(text)
            return ["--train", str(path)]
        self.refused(["--train", "/no/such/file"], 6, "/no/such/file: No such file or directory")
        self.refused(["--train", self.folder.name], 6, "no regular file")
        self.refused(file("empty", b""), 3, "it holds no rows")
        self.refused(file("labels", b"1:1 2:1\n" * 20), 3, "the label '1:1' is not a number")
        self.refused(file("one", b"1 1:1\n" * 20), 3, "two classes are needed")
        self.refused(file("gzip", b"\x1f\x8b\x08rest"), 3, "decompress it first")
        self.refused([*self.quick, "--dimension", "20"], 3, "is past the dimension, 20")
        self.refused([*self.quick, "-o", "/no/such/folder/model"], 6, "cannot write /no/such/folder/model:")

    def test_UsageIsSaidBeforeMpiStarts(self):
        for arguments, word in (([], "--train is required"), (["--algorithm", "no_such"], "ssar_split_allgather"),
                                (["--algorithm", "oktopk"], "--select topk"), (["--schedule", "linear"], "inverse_sqrt"),
                                (["--codec", "auto"], "--codec"), (["--lr", "1000", "--l2", "0.5"], "an l2 of 0.500000 is 1 or more"),
                                (["--select", "uniform:0.1"], "unbiased"),
                                (["--optimizer", "scd", "--model", "svm"], "lr alone"),
                                (["--optimizer", "scd", "--select", "topk:0.1"], "no --select"),
                                (["--asynchronous", "65"], "--asynchronous")):
            given = arguments and ["--train", self.data, *arguments]
            ended = subprocess.run([PROGRAM, "train", *given], capture_output=True, text=True, timeout=30, check=False)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(word, ended.stderr)

    def test_RanksWithOtherOptionsAreToldSo(self):
        ended = mpi_ranks.run_differing(["train", *self.quick, "--l2", "0.25"], ["train", *self.quick])
        self.assertNotEqual(ended.returncode, 0)
        for rank in range(RANKS):
            self.assertIn(f"millrace-peer train: rank {rank}: ", ended.stderr)
        self.assertIn("l2=0.25", ended.stderr)

    def test_SigtermToOneRankOrToMpirunEndsAllCleanly(self):
        model = Path(self.folder.name) / "never.model"
        for whom in ("rank", "mpirun"):
            with self.subTest(whom=whom), start([*self.endless, "-o", str(model)]) as mpirun:
                ranks = ranks_of(mpirun)
                # Until an epoch is told: from then on it trains.
                while not mpirun.stdout.readline().strip().startswith("2 "):
                    self.assertIsNone(mpirun.poll())
                os.kill(ranks[1] if whom == "rank" else mpirun.pid, signal.SIGTERM)
                try:
                    _, err = mpirun.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    mpirun.kill()
                    self.fail("ranks still run after 30 s")
                if whom == "rank":
                    self.assertEqual(mpirun.returncode, 7, err)
                    self.assertEqual(err.count("millrace-peer train: interrupted after step"), 1, err)
                self.assertNotEqual(mpirun.returncode, 0)
                self.assertFalse(model.exists())

    def test_AsynchronousStepsNeedAThreadThatMayCallMpi(self):
        self.refused([*self.quick, "--asynchronous", "1", "--mpi-threads", "funneled"], 2, "--mpi-threads serialized")

    def test_AStoppedRankIsNamed(self):
        for flags in ([], ["--asynchronous", "2"]):
            with self.subTest(flags=flags), start([*self.endless, "--silence-ms", "1500", *flags]) as mpirun:
                ranks = ranks_of(mpirun)
                while not mpirun.stdout.readline().strip().startswith("2 "):
                    self.assertIsNone(mpirun.poll())
                os.kill(ranks[2], signal.SIGSTOP)
                try:
                    _, err = mpirun.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    mpirun.kill()
                    self.fail("ranks still run after 60 s")
                self.assertRegex(err, "rank 0: .*rank 2 has not answered for 1500 ms")
                self.assertNotEqual(mpirun.returncode, 0)


if __name__ == "__main__":
    mpi_ranks.main()
