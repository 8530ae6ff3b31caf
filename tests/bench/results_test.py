#!/usr/bin/env python3
"""Tests of results.py and measure.py on made-up runs, and on commands that print made-up reports."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import measure
import results
from measurements import AT_LEAST, AT_MOST, EACH, MEASUREMENTS, Figure, Goal, Measurement

SPEED = Measurement("speed", "Made up", "A made-up measurement.", "echo '{\"rows\": [{\"algorithm\": \"a\", \"ms\": 2.0}]}'",
                    (Figure("a, ms", ("rows", {"algorithm": "a"}, "ms"), Goal(AT_MOST, 2.5)),), repetitions=3)
RATIO = Measurement("ratio", "Made up", "Another one.", "made-up --json",
                    (Figure("b over a", ("b",), Goal(AT_LEAST, 4), over=("a",)), Figure("largest kill", ("kills", EACH, "s"), pick=max),
                     Figure("kills", ("kills", EACH, "s"), scale=1000)))


def run_of(measurement="speed", **changes):
    fields = {"schema": 1, "measurement": measurement, "date": "2026-01-02T03:04:05Z", "commit": "0123abc", "load": "quiet",
              "machine": {"cpu": "Made-up CPU", "cores": 2, "card": None}, "command": "made-up --json",
              "repetitions": [{"rows": [{"algorithm": "b", "ms": 9}, {"algorithm": "a", "ms": ms}]} for ms in (1.0, 4.0, 2.0)]}
    fields.update(changes)
    return {key: value for key, value in fields.items() if value is not None}


class WithFolder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        table = {one.name: one for one in (SPEED, RATIO)}
        for module in (results, measure):
            self.enterContext(mock.patch.object(module, "MEASUREMENTS", table))

    def write(self, name, fields):
        text = fields if isinstance(fields, str) else json.dumps(fields)
        (self.folder / name).write_text(text, encoding="utf-8")

    def main(self, *arguments):
        """The exit code of results.py, and its errors."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = results.main(["--runs", str(self.folder), "--page", str(self.folder / "PAGE.md"), *arguments])
        return code, errors.getvalue()

    def page(self):
        self.assertEqual(self.main(), (0, ""))
        return (self.folder / "PAGE.md").read_text(encoding="utf-8")


class Pages(WithFolder):
    def test_ARowHasMedianSpreadAndNumber(self):
        self.write("speed.json", run_of())
        page = self.page()
        self.assertIn("| a, ms | ≤ 2.5 | 2 | 1 to 4 | 3 |", page)
        self.assertIn("- 2026-01-02, commit 0123abc, Made-up CPU, 2 cores; load: `quiet`.", page)
        self.assertIn("```\nmade-up --json\n```", page)

    def test_AMissedGoalIsMarked(self):
        self.write("speed.json", run_of(repetitions=[{"rows": [{"algorithm": "a", "ms": 3}]}]))
        self.assertIn("| a, ms | ≤ 2.5, missed | 3 |  | 1 |", self.page())

    def test_AQuotientAndTheValuesOfAListAreRows(self):
        self.write("ratio.json", run_of("ratio", repetitions=[{"a": 2, "b": 9, "kills": [{"s": 0.1}, {"s": 0.4}]}]))
        page = self.page()
        self.assertIn("| b over a | ≥ 4 | 4.50 |  | 1 |", page)
        self.assertIn("| largest kill |  | 0.400 |  | 1 |", page)
        self.assertIn("| kills |  | 250 | 100 to 400 | 2 |", page)

    def test_TheNewestOfTwoRunsCounts(self):
        self.write("speed.json", run_of(date="2026-05-01T00:00:00Z", commit="bbbbbbb"))
        self.write("speed-before.json", run_of(date="2026-04-30T00:00:00Z", commit="aaaaaaa"))
        page = self.page()
        self.assertIn("commit bbbbbbb", page)
        self.assertNotIn("aaaaaaa", page)

    def test_AMeasurementWithoutARunHasItsSection(self):
        page = self.page()
        self.assertIn("### speed\n\nA made-up measurement.\n\nNo run yet.\n", page)

    def test_LongCommandsAndNotesAreWrapped(self):
        self.write("speed.json", run_of(command="made-up " + "--flag value " * 20, note="Some words. " * 20))
        self.assertLessEqual(max(map(len, self.page().splitlines())), results.COLUMNS_MAX)

    def test_AReportInAnotherFileIsRead(self):
        self.write("report.txt", {"result": {"a": 1, "b": 5, "kills": [{"s": 1}]}})
        self.write("ratio.json", run_of("ratio", repetitions=None, file=str(self.folder / "report.txt")))
        self.assertIn("| b over a | ≥ 4 | 5 |  | 1 |", self.page())

    def test_CheckComparesAndWritesNothing(self):
        self.write("speed.json", run_of())
        code, errors = self.main("--check")
        self.assertEqual(code, 1)
        self.assertIn("differs from the page", errors)
        self.assertFalse((self.folder / "PAGE.md").exists())
        self.page()
        self.assertEqual(self.main("--check"), (0, ""))
        self.write("speed.json", run_of(commit="fffffff"))
        self.assertEqual(self.main("--check")[0], 1)

    def test_NumbersHaveThreeDigits(self):
        shown = {0: "0", 7: "7", 2.0002: "2.00", 0.12345: "0.123", 703.4: "703", 12345.6: "12,346", 0.00001234: "1.23e-05", -1.5: "-1.50"}
        for value, text in shown.items():
            self.assertEqual(results.number_text(value), text)


class WrongRuns(WithFolder):
    def expect(self, told, fields, name="speed.json"):
        self.write(name, fields)
        code, errors = self.main()
        self.assertEqual(code, 1)
        self.assertIn(f"results: {name}: ", errors)
        self.assertIn(told, errors)

    def test_MalformedJsonIsAnError(self):
        self.expect("Expecting", '{"schema": 1,')
        self.expect("want one JSON object", "[1]")

    def test_AMissingFieldIsAnError(self):
        for field in ("schema", "measurement", "date", "commit", "machine", "load", "command"):
            self.expect(f"no field {field}", run_of(**{field: None}))
        self.expect("one of the fields", run_of(repetitions=None))

    def test_AnUnknownFieldIsAnError(self):
        self.expect("unknown field extra", run_of(extra=1))
        self.expect("one of the fields", run_of(file="report.json"))

    def test_AWrongFieldIsAnError(self):
        for told, changes in (("schema 2", {"schema": 2}), ("no measurement 'none'", {"measurement": "none"}), ("want the form", {"date": "yesterday"}),
                              ("no commit's hash", {"commit": "main"}), ("load 'low'", {"load": "low"}), ("command is empty", {"command": " "}),
                              ("repetitions is empty", {"repetitions": []}), ("field schema is no int", {"schema": True}),
                              ("field repetitions is no list", {"repetitions": {}}), ("of machine", {"machine": {"cpu": "x"}}),
                              ("of a wrong type", {"machine": {"cpu": "x", "cores": "2", "card": None}}),
                              ("neither cpu nor card", {"machine": {"cpu": None, "cores": 2, "card": None}})):
            with self.subTest(told):
                self.expect(told, run_of(**changes))

    def test_AMissingFigureIsAnError(self):
        for report in ({}, {"rows": []}, {"rows": {}}, {"rows": [{"algorithm": "b", "ms": 1}]}, {"rows": [{"algorithm": "a"}]}, [], 1, None):
            with self.subTest(report):
                self.expect("figure 'a, ms': a repetition has no rows", run_of(repetitions=[report]))

    def test_AFigureThatIsNoFiniteNumberIsAnError(self):
        for value in (None, "2", True, [1]):
            self.expect("no finite number", run_of(repetitions=[{"rows": [{"algorithm": "a", "ms": value}]}]))
        for word in ("NaN", "Infinity", "-Infinity"):
            self.expect(f"{word} is no number", json.dumps(run_of()).replace("4.0", word))
        self.expect("no finite number", json.dumps(run_of()).replace("4.0", "1e999"))
        self.expect("a divisor", run_of("ratio", repetitions=[{"a": 0, "b": 9, "kills": [{"s": 1}]}]))

    def test_AWrongFileKeepsThePageAsItIs(self):
        self.write("speed.json", run_of())
        page = self.page()
        self.expect("no field date", run_of(date=None), "wrong.json")
        self.assertEqual((self.folder / "PAGE.md").read_text(encoding="utf-8"), page)

    def test_AMissingReportFileIsAnError(self):
        self.expect("No such file", run_of(repetitions=None, file=str(self.folder / "absent.txt")))


class Measuring(WithFolder):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(measure, "busy_share", lambda: self.busy))
        self.enterContext(mock.patch.object(measure, "say", lambda text: self.said.append(text)))
        self.busy, self.said = 0.0, []
        self.settings = SimpleNamespace(commit="0123abc", environment=dict(os.environ), repetitions=0, runs=self.folder, again=False)

    def measure(self, command=SPEED.command):
        one = Measurement(SPEED.name, SPEED.subject, SPEED.title, command, SPEED.figures, repetitions=2)
        return measure.measure_all([one], self.settings)

    def test_ARunFileHasTheReportsAndTheirOrigin(self):
        self.assertEqual(self.measure(), [])
        fields = results.load(self.folder / "speed.json")
        self.assertEqual(fields["repetitions"], 2 * [{"rows": [{"algorithm": "a", "ms": 2.0}]}])
        self.assertEqual((fields["commit"], fields["load"], fields["command"]), ("0123abc", "quiet", SPEED.command))
        self.assertIn("[1/1] speed: repetition 2 of 2", self.said[-1])
        self.assertIn("| a, ms | ≤ 2.5 | 2 | 2 to 2 | 2 |", self.page())

    def test_ARunFileHasNoFolderOfTheMachine(self):
        self.settings.environment["MILLRACE_SHARED"] = "/made/up"
        self.measure("echo '{\"rows\": [{\"algorithm\": \"a\", \"ms\": 2.0}], \"trace\": \"/made/up/trace.npz\"}'")
        fields = results.load(self.folder / "speed.json")
        self.assertEqual([report["trace"] for report in fields["repetitions"]], 2 * ["$MILLRACE_SHARED/trace.npz"])

    def test_OtherWorkOnTheMachineMarksARunAsShared(self):
        self.busy = 0.5
        self.measure()
        self.assertEqual(results.load(self.folder / "speed.json")["load"], "shared")

    def test_ARunOfThePresentCommitIsSkipped(self):
        self.measure()
        self.assertEqual(self.measure("false"), [])
        self.assertIn("skipped", self.said[-1])
        self.settings.again = True
        self.assertEqual(self.measure("false"), ["speed"])
        self.settings.again, self.settings.commit = False, "4567def"
        self.assertEqual(self.measure("false"), ["speed"])

    def test_AFailureLeavesTheRunFileAsItWas(self):
        self.measure()
        before = (self.folder / "speed.json").read_bytes()
        self.settings.again = True
        for command, told in (("echo broken >&2; exit 3", "exit code 3: broken"), ("echo no report", "no line with a JSON object"),
                              ("echo '{'", "its output"), ("echo '{\"rows\": []}'", "a repetition has no rows"),
                              ("echo '{\"rows\": [{\"algorithm\": \"a\", \"ms\": NaN}]}'", "NaN is no number")):
            with self.subTest(command):
                self.assertEqual(self.measure(command), ["speed"])
                self.assertIn(told, self.said[-1])
                self.assertEqual(os.listdir(self.folder), ["speed.json"])
                self.assertEqual((self.folder / "speed.json").read_bytes(), before)

    def test_ACommandThatCannotRunHereIsLeftOut(self):
        self.assertEqual(self.measure("echo 'no device' >&2; exit 77"), [])
        self.assertIn("left out: no device", self.said[-1])
        self.assertEqual(os.listdir(self.folder), [])

    def test_ACommandHasAnHourOrTheHoursOfItsMeasurement(self):
        with mock.patch.object(measure, "HOUR_SECONDS", 0.1):
            self.assertEqual(self.measure("exec sleep 60"), ["speed"])
            self.assertIn("no end after 0 s", self.said[-1])
            one = Measurement(SPEED.name, SPEED.subject, SPEED.title, f"sleep 0.2 && {SPEED.command}", SPEED.figures, repetitions=1, hours=600)
            self.assertEqual(measure.measure_all([one], self.settings), [])

    def test_AllLeavesOutWhatTakesHours(self):
        one = Measurement(SPEED.name, SPEED.subject, SPEED.title, SPEED.command, SPEED.figures, repetitions=1)
        slow = Measurement("slow", SPEED.subject, SPEED.title, SPEED.command, SPEED.figures, repetitions=1, hours=2)
        (self.folder / measure.PROGRAM).touch()
        with mock.patch.object(measure, "MEASUREMENTS", {"speed": one, "slow": slow}), mock.patch.object(measure, "commit", lambda: "0123abc"), \
                mock.patch.object(measure, "measure", lambda one, _settings, _progress: self.said.append(one.name)), mock.patch.object(measure.signal, "signal"):
            for arguments, measured in ((["--all"], ["speed"]), (["slow"], ["slow"])):
                self.said.clear()
                measure.main([*arguments, "--programs", str(self.folder), "--runs", str(self.folder)])
                self.assertEqual([name for name in self.said if name in ("speed", "slow")], measured)

    def test_WrongArgumentsAreUsageErrors(self):
        for arguments in ([], ["--all", "speed"], ["absent"], ["speed", "--repetitions", "-1"]):
            with self.subTest(arguments), contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                measure.main(arguments)
            self.assertEqual(ended.exception.code, 2)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(measure.main(["speed", "--programs", str(self.folder)]), 2)
        self.assertIn("build the release preset", errors.getvalue())

    @unittest.skipUnless((results.ROOT / ".git").exists(), "no repository, whose commit a run file has")
    def test_ASignalEndsTheCommandToo(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                program, told = self.folder / measure.PROGRAM, self.folder / "pid"
                program.write_text(f"#!/bin/sh\necho $$ > {told}.part && mv {told}.part {told}\nexec sleep 60\n", encoding="utf-8")
                program.chmod(0o755)
                words = [sys.executable, measure.__file__, "select_1_percent", "--programs", self.folder, "--runs", self.folder]
                with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
                    try:
                        while not told.exists() and process.poll() is None:
                            time.sleep(0.01)
                        command = int(told.read_text(encoding="utf-8"))
                        process.send_signal(number)
                        output = process.communicate(timeout=30)[0]
                    finally:
                        process.kill()
                self.assertEqual(process.returncode, measure.INTERRUPTED, output)
                self.assertIn("interrupted", output)
                with self.assertRaises(ProcessLookupError):
                    os.kill(command, 0)
                told.unlink()


class Table(unittest.TestCase):
    def test_NamesFitFilesAndHeadings(self):
        for name, one in MEASUREMENTS.items():
            self.assertRegex(name, r"^[a-z0-9_-]+$")
            self.assertEqual(one.name, name)
            self.assertTrue(one.figures and one.repetitions >= 1, name)
            titles = [figure.name for figure in one.figures if not figure.name.startswith("the same")]
            self.assertEqual(len(titles), len(set(titles)), name)

    def test_SubjectsAreTogether(self):
        subjects = [one.subject for one in MEASUREMENTS.values()]
        self.assertEqual(len(set(subjects)), sum(1 for at, subject in enumerate(subjects) if at == 0 or subjects[at - 1] != subject))


if __name__ == "__main__":
    unittest.main()
