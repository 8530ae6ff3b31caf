#!/usr/bin/python3
"""Tests of jobs.py on made-up results: the sentences of --only, and trainings that are kept or taken over."""

import json
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jobs

NAMES = ("4 ranks, Dense", "4 ranks, TopkA")
RESULT = {"commits": ["0123abc"], "curves": {NAMES[0]: [[{"step": 1}]], NAMES[1]: [[{"step": 2}]]}}


class Only(unittest.TestCase):
    def setUp(self):
        self.out = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def jobs(self, only):
        self.notes = []
        return jobs.Jobs(SimpleNamespace(only=only, quick=False, out=self.out, name="figure", machine="a new one", note=self.notes.append), NAMES)

    def write(self, quick=False):
        (self.out / "figure.json").write_text(json.dumps({"quick": quick, "machine": "an old one", "result": RESULT}), encoding="utf-8")

    def refused(self, only):
        """Returns the sentence that the script ends with."""
        with self.assertRaises(SystemExit) as ended:
            self.jobs(only)
        self.assertIsInstance(ended.exception.code, str)
        return ended.exception.code

    def test_OtherTrainings_AreTakenOver(self):
        self.write()
        here = self.jobs("TopkA")
        self.assertEqual(here.taken_over(NAMES[0]), [{"rows": [{"step": 1}]}])
        self.assertIsNone(here.taken_over(NAMES[1]))

    def test_Page_NamesTheMachineOfOtherTrainings(self):
        self.write()
        self.assertEqual(self.jobs("TopkA").add_notes(None)["machines"], ["an old one", "a new one"])
        self.assertEqual(self.notes, ["Run with --only 'TopkA'. The rest is of commit 0123abc, on an old one."])

    def test_HalfOfTrainings_IsTheEarlierPagesWhereSomeAreTakenOver(self):
        self.assertEqual(jobs.half_of([{"note": "bf16"}, {"note": "bf16"}]), "bf16")
        self.assertIsNone(jobs.half_of([{"note": "bf16"}, {"rows": []}]))

    def test_PatternOfNoTraining_IsRefusedWithTheirNames(self):
        self.write()
        self.assertEqual(self.refused("lstm"), "--only: no training has 'lstm' in its name. Their names: 4 ranks, Dense; 4 ranks, TopkA")

    def test_BrokenPattern_IsRefused(self):
        self.write()
        self.assertIn("'(' is no regular expression", self.refused("("))

    def test_MissingJson_IsNamed(self):
        self.assertEqual(self.refused("Dense"), f"--only completes {self.out}/figure.json, which is missing: run the script without --only first")

    def test_JsonOfAQuickRun_IsRefused(self):
        self.write(quick=True)
        self.assertIn("--only completes a full run", self.refused("Dense"))


class Kept(unittest.TestCase):
    def test_TrainingOfTheSameRun_IsMadeOnce(self):
        made = []

        def make(_, name, run, kept):
            made.append(run)
            kept.write_text(json.dumps({"name": name, "run": run, "commit": "0123abc"}), encoding="utf-8")

        with tempfile.TemporaryDirectory() as out, mock.patch.object(jobs.Jobs, "_make", make):
            here = jobs.Jobs(SimpleNamespace(only=None, quick=False, out=Path(out), name="figure"))
            runs = [{"network": "lstm", "scheme": {"kind": "mill", "options": options}} for options in ({}, {"clip": 0.25})]
            self.assertEqual([here.run("lstm", run)["run"] for run in runs + runs], runs + runs)
        self.assertEqual(made, runs)

    def test_Page_NamesTheCommitsOfAContinuedScript(self):
        with tempfile.TemporaryDirectory() as out:
            notes = []
            here = jobs.Jobs(SimpleNamespace(only=None, quick=False, out=Path(out), name="figure", machine="one", note=notes.append))
            for commits in ({"0123abc"}, {"4567def", "0123abc"}):
                here.commits = commits
                here.add_notes(None)
        self.assertEqual(notes, ["Its trainings are of commits 0123abc, 4567def."])


if __name__ == "__main__":
    unittest.main()
