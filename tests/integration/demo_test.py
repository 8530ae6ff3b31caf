#!/usr/bin/env python3
"""`millrace demo`, small: a shard and a worker are killed on the way, and the result is the same.

    demo_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import gzip
import json
import tempfile
import unittest
from pathlib import Path

from commands import made_up_rows, run

SMALL = ("--dimension", 1024, "--workers", 3, "--batch", 4, "--epochs", 8, "--dense-steps", 2, "--lr", 0.5)


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        # The files of an earlier run are used unchanged.
        for name, count, seed in (("debian-1024.svm.gz", 900, 5), ("debian-1024.test.svm.gz", 200, 6)):
            with gzip.open(Path(cls.folder.name) / name, "wt", encoding="utf-8") as file:
                file.write(made_up_rows(count, seed))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def demo(self, *arguments):
        ended = run("demo", "--folder", self.folder.name, *SMALL, *arguments, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return {row["algorithm"]: row for row in json.loads(ended.stdout.strip().split("\n")[-1])["rows"]}

    def test_AKilledShardChangesNoBitAndAKilledWorkerLittle(self):
        rows = self.demo("--kill")
        self.assertEqual(list(rows), ["natural", "natural-killed", "sparse", "sparse-killed", "dense"])
        self.assertIs(rows["natural-killed"]["same_model"], True)
        self.assertEqual(rows["natural-killed"]["log_loss"], rows["natural"]["log_loss"])
        self.assertNotIn("same_model", rows["natural"])
        # The steps without the worker have fewer rows of data in them.
        self.assertIs(rows["sparse-killed"]["same_model"], False)
        self.assertLess(rows["sparse-killed"]["log_loss"], 0.5)
        self.assertEqual(sorted(path.name for path in Path(self.folder.name).glob("*.model")), [])
        self.assertFalse((Path(self.folder.name) / "demo.state").exists())

    def test_RowsTakeTheModeOfTrain(self):
        rows = self.demo("--mode", "partial", "--quorum", 2, "--deadline", "5ms")
        self.assertEqual(list(rows), ["natural", "sparse", "dense"])
        self.assertLess(rows["natural"]["log_loss"], 0.5)

    def test_RowsAreTrainedAsynchronously(self):
        rows = self.demo("--mode", "asynchronous")
        self.assertLess(rows["natural"]["log_loss"], 0.5)
        self.assertLess(rows["sparse"]["log_loss"], 0.6)

    def test_RowsTakeTheStoreOfTrain(self):
        rows = self.demo("--store", "adagrad:0.1")
        self.assertLess(rows["natural"]["log_loss"], 0.5)


if __name__ == "__main__":
    unittest.main()
