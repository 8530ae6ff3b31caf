#!/usr/bin/env python3
"""What users of training programs hand in by mistake: other options at one worker, other labels, files that cannot be replaced.

    train_inputs_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import bz2
import ctypes
import json
import lzma
import os
import resource
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, WithServers, made_up_rows, millrace, run, start

MS_BIND = 4096


def bind(source, target):
    """Mounts one file over another; skips where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None) != 0:
        raise unittest.SkipTest("mounts need root")
    return lambda: libc.umount(os.fsencode(target))


class WorkersThatDiffer(WithServers):
    """All workers of a job must do the same to their weights, with the same rows."""

    def refused_second(self, words, first, second, data_of_second=None):
        """A worker with other options than the first one's is refused before it trains."""
        data = self.path("differ.svm", made_up_rows(60, 1))
        one = start("train", *self.flags(0, 2), "--train", data, *first)
        try:
            self.wait_for_worker()
            ended = run("train", *self.flags(1, 2), "--train", data_of_second or data, *second)
        finally:
            one.kill()
            one.communicate()
        self.assertEqual(ended.returncode, 5, ended.stderr)
        self.assertIn(words, ended.stderr)

    def wait_for_worker(self):
        """Until the servers know the job."""
        http = ",".join(shard["http"] for shard in self.cluster["shards"])
        deadline = time.monotonic() + TIMEOUT_S
        while self.job() not in run("status", *http.split(","), "--json").stdout:
            self.assertLess(time.monotonic(), deadline)

    def job(self):
        return self.id().rsplit(".", 1)[-1]

    def test_AnotherLearningRate(self):
        self.refused_second("recipe: lr=1 here, lr=0.01 there", ["--lr", 1], ["--lr", 0.01])

    def test_AnotherBatch(self):
        self.refused_second("recipe: batch=64 here, batch=8 there", [], ["--batch", 8])

    def test_AnotherL2(self):
        self.refused_second("recipe: l2=0 here, l2=0.001 there", [], ["--l2", 0.001])

    def test_AnotherNumberOfEpochs(self):
        self.refused_second("recipe: epochs=3 here, epochs=2 there", [], ["--epochs", 2])

    def test_AnotherModel(self):
        self.refused_second("recipe: model=lr here, model=svm there", [], ["--model", "svm"])

    def test_AnotherFile(self):
        other = self.path("other.svm", made_up_rows(60, 2))
        self.refused_second("recipe: data=", [], [], other)

    def test_LocalOptionsOfWorkersMayDiffer(self):
        data = self.path("own.svm", made_up_rows(60, 1))
        packed = self.path("own.svm.xz")
        packed.write_bytes(lzma.compress(data.read_bytes()))
        processes = [start("train", *self.flags(0, 2), "--train", data, "--json"),
                     start("train", *self.flags(1, 2), "--train", packed, "--json", "--compute-time", "1ms", "--test", data)]
        for process in processes:
            _, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)


class Files(WithServers):
    """Training and held-out rows as they come."""

    def evaluated(self, model, data):
        ended = run("eval", "--model-file", model, "--test", data, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return json.loads(ended.stdout)

    def trained(self, text, *more, name="rows.svm"):
        model = self.path(self.id().rsplit(".", 1)[-1] + ".model")
        ended = run("train", *self.flags(), "--train", self.path(name, text), "-o", model, *more)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return model

    ROWS = "1 1:1\n0 2:1\n" * 20

    def test_HeldOutRowsOfOneClass(self):
        one_class = self.path("one.svm", "1 1:1\n1 1:2\n")
        model = self.trained(self.ROWS, "--test", one_class)
        result = self.evaluated(model, one_class)
        self.assertEqual((result["rows"], result["positive_rows"], result["accuracy"]), (2, 2, 1.0))
        result = self.evaluated(model, self.path("zero.svm", "0 2:1\n"))
        self.assertEqual((result["positive_rows"], result["accuracy"]), (0, 1.0))
        self.refused(3, "its label 7 is none of those that the model was trained on", "eval", "--model-file", model, "--test",
                     self.path("seven.svm", "7 1:1\n"))

    def test_LabelsThatMeanSomethingElseAreRefused(self):
        model = self.trained(self.ROWS)
        self.refused(3, "none of those that the model was trained on (0 is negative, 1 is positive)", "eval", "--model-file", model,
                     "--test", self.path("12.svm", "1 1:1\n2 2:1\n"))
        self.assertEqual(self.evaluated(model, self.path("pm.svm", "+1 1:1\n-1 2:1\n"))["accuracy"], 1.0)

    def test_FeaturesThatTrainingLackedAreLeftOutAndCounted(self):
        new = self.path("new.svm", "1 1:1 9:1\n0 2:1 3:1 4000000000:1\n")
        model = self.trained(self.ROWS, "--test", new)
        result = self.evaluated(model, new)
        self.assertEqual((result["accuracy"], result["entries_left_out"]), (1.0, 3))
        self.assertIn("3 entries of features that training lacked are left out", run("eval", "--model-file", model, "--test", new).stdout)

    def test_AModelKnowsThatItsFeaturesCountFromZero(self):
        text = "1 0:1\n0 1:1\n" * 20
        self.refused(3, "--index-base 0", "train", *self.flags(), "--train", self.path("zero.svm", text))
        model = self.trained(text, "--index-base", 0)
        self.assertEqual(self.evaluated(model, self.path("zero.test.svm", "1 0:1\n0 1:1\n"))["accuracy"], 1.0)

    def test_CompressedFilesTrainTheSameModel(self):
        models = set()
        for suffix, compress in (("", bytes), (".bz2", bz2.compress), (".xz", lzma.compress)):
            data = self.path("rows.svm" + suffix)
            data.write_bytes(compress(made_up_rows(200, 3).encode()))
            model = self.path("packed.model")
            ended = run("train", *self.flags(job="packed" + suffix), "--train", data, "-o", model)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            models.add(model.read_bytes())
        self.assertEqual(len(models), 1)

    def test_AModelThatMemoryHasNoRoomForIsRefusedByTheLine(self):
        data = self.path("large.svm", "1 1:1\n1 4294967294:1\n0 1:1\n")

        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

        ended = subprocess.run(millrace("train", *self.flags(), "--train", data), capture_output=True, text=True, timeout=TIMEOUT_S,
                               check=False, preexec_fn=limit)
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("large.svm:2: its feature 4294967294 is the largest", ended.stderr)
        self.assertIn("17179869180 bytes", ended.stderr)


class Outputs(WithServers):
    """A result that was trained for is not lost because of the place that it was to go to."""

    def test_AnOutputThatCannotBeReplacedIsFoundOutBeforeTraining(self):
        data = self.path("rows.svm", made_up_rows(60, 1))
        for flag in ("-o", "--state"):
            target = self.path("mounted" + flag, "old")
            self.addCleanup(bind(self.path("source", "1"), target))
            ended = self.refused(6, "it is a mount of its own", "train", *self.flags(), "--train", data, flag, target)
            self.assertEqual(ended.stdout, "")

    def test_AModelThatCannotTakeItsPlaceAtTheEndIsKept(self):
        data = self.path("rows.svm", made_up_rows(60, 1))
        model = self.path("late.model")
        state = self.path("late.state")
        worker = start("train", *self.flags(0, 2), "--train", data, "-o", model, "--state", state)
        self.addCleanup(worker.kill)
        self.assertIn("worker 0 of 2", worker.stdout.readline())  # a pipe has the line at once; training needs the other worker
        model.mkdir()
        other = run("train", *self.flags(1, 2), "--train", data)
        _, err = worker.communicate(timeout=TIMEOUT_S)
        self.assertEqual(worker.returncode, 6, err)
        kept, state_said = err.strip().split("; its new contents are in ")[1].split("; ")
        self.assertEqual(state_said, f"the state is in {state}")
        self.assertTrue(state.exists())
        self.addCleanup(Path(kept).unlink)
        self.assertEqual(other.returncode, 0, other.stderr)  # its model has all rows of worker 0, which left as finished
        ended = run("eval", "--model-file", kept, "--test", data, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertGreater(json.loads(ended.stdout)["accuracy"], 0.5)


class Peers(unittest.TestCase):
    """The same at `millrace-peer train`, alone."""

    def setUp(self):
        if not (PROGRAMS / "millrace-peer").exists():
            self.skipTest("millrace-peer is not built")
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def ran(self, *arguments):
        return subprocess.run([str(PROGRAMS / "millrace-peer"), "train", *map(str, arguments)], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)

    def test_HeldOutRowsOfOneClassAndWithNewFeatures(self):
        train = self.folder / "train.svm"
        train.write_text("1 1:1\n0 2:1\n" * 20, encoding="utf-8")
        test = self.folder / "test.svm"
        test.write_text("1 1:1 9:1\n1 1:2\n", encoding="utf-8")
        model = self.folder / "model"
        ended = self.ran("--train", train, "--test", test, "--epochs", 5, "-o", model)
        if "has no MPI" in ended.stderr:
            self.skipTest("this build has no MPI")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("1 entries of features that training lacked are left out", ended.stdout)
        other = self.folder / "other.svm"
        other.write_text("1 1:1\n2 2:1\n", encoding="utf-8")
        evaluated = run("eval", "--model-file", model, "--test", other)
        self.assertEqual(evaluated.returncode, 3, evaluated.stderr)


if __name__ == "__main__":
    unittest.main()
