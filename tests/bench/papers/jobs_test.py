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
RESULT = {"commits": ["0123abc"], "curves": {NAMES[0]: [[{"step": 1}]], NAMES[1]: [[{"step": 2}]]}, "stale": [NAMES[0]]}


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
        self.assertEqual(here.stale, {NAMES[0]})

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
    def file_of(self, options, rule=jobs.CLIP_RULE):
        """Returns the file in which a training with these options of its State is kept."""
        made = []

        def make(_, name, run, kept):
            made.append(kept.name)
            kept.write_text(json.dumps({"name": name, "run": run, "commit": "0123abc"}), encoding="utf-8")

        with tempfile.TemporaryDirectory() as out, mock.patch.object(jobs.Jobs, "_make", make), mock.patch.object(jobs, "CLIP_RULE", rule):
            here = jobs.Jobs(SimpleNamespace(only=None, quick=False, out=Path(out), name="figure"))
            run = {"network": "lstm", "scheme": {"kind": "mill", "options": options}}
            self.assertEqual(here.run("lstm", run), here.run("lstm", run))
        name, = made  # the second call takes the kept one
        return name

    def test_NewRuleOfClip_RepeatsTrainingsWithClipAlone(self):
        self.assertNotEqual(self.file_of({"clip": 0.25}), self.file_of({"clip": 0.25}, rule=jobs.CLIP_RULE + 1))
        self.assertEqual(self.file_of({}), self.file_of({}, rule=jobs.CLIP_RULE + 1))


if __name__ == "__main__":
    unittest.main()
