#!/usr/bin/env python3
"""What users of training programs hand in by mistake: other options at one worker, other labels, files that cannot be replaced.

    train_inputs_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import ctypes
import json
import os
import unittest
from pathlib import Path

from commands import TIMEOUT_S, WithServers, made_up_rows, run, start

MS_BIND = 4096


def bind(source, target):
    """Mounts one file over another; skips where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None) != 0:
        raise unittest.SkipTest("mounts need root")
    return lambda: libc.umount(os.fsencode(target))


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
        worker = start("train", *self.flags(), "--train", data, "--compute-ms", 50, "--batch", 2, "--epochs", 1, "-o", model)
        self.assertIn("worker 0 of 1", worker.stdout.readline())  # after the check
        model.mkdir()
        _, err = worker.communicate(timeout=TIMEOUT_S)
        self.assertEqual(worker.returncode, 6, err)
        kept = err.strip().split("what was to be in it is in ")[1]
        ended = run("eval", "--model", kept, "--data", data, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertGreater(json.loads(ended.stdout)["accuracy"], 0.5)


if __name__ == "__main__":
    unittest.main()
