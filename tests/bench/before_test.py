#!/usr/bin/env python3
"""Tests of before.py on made-up programs, whose figures tell the builds and the runs apart."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import before
from measurements import Figure, Measurement

COUNTED = """#!/bin/sh
echo {name} >>{log}
runs=$(grep -c {name} {log})
echo "{{\\"ms\\": $((runs * {ms})), \\"only_{name}\\": 1}}"
"""
SPEED = Measurement("speed", "Made up", "A made-up measurement.", "made_up", (Figure("ms", ("ms",)), Figure("new", ("only_now",))))


class InTurns(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(before, "MEASUREMENTS", {"speed": SPEED}))
        for name, ms in (("before", 4), ("now", 3)):
            self.program(name, COUNTED.format(name=name, ms=ms, log=self.folder / "log"))

    def program(self, build, text):
        path = self.folder / build / "made_up"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def main(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = before.main([str(self.folder / "before"), str(self.folder / "now"), "speed", *arguments])
        return code, output.getvalue(), errors.getvalue()

    def test_EveryPairBeginsWithTheOtherBuild(self):
        code, output, errors = self.main("--pairs", "3")
        self.assertEqual(code, 0, errors)
        self.assertEqual((self.folder / "log").read_text(encoding="utf-8").split(), ["before", "now", "now", "before", "before", "now"])
        (row,) = json.loads(output)["rows"]
        self.assertEqual((row["figure"], row["before"], row["now"], row["ratios"], row["median"]), ("ms", [4, 8, 12], [3, 6, 9], [0.75] * 3, 0.75))
        self.assertRegex(errors, r"(?m)^ms +8 +6 +0\.750  0\.750 to 0\.750$")

    def test_AFailedCommandAndNoCommonFigureAreErrors(self):
        self.program("now", "#!/bin/sh\necho '{\"only_now\": 1}'\n")
        code, output, errors = self.main("--pairs", "1")
        self.assertEqual((code, output), (1, ""))
        self.assertIn("no figure that both builds have", errors)
        self.program("now", "#!/bin/sh\necho it broke >&2\nexit 3\n")
        code, output, errors = self.main("--pairs", "1")
        self.assertEqual((code, output), (1, ""))
        self.assertIn("exit code 3: it broke", errors)

    def test_NoOlderBuildIsNothingToMeasure(self):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(before.main(["", str(self.folder / "now"), "speed"]), 77)
        self.assertIn("MILLRACE_BEFORE", errors.getvalue())
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
            before.main([str(self.folder / "none"), str(self.folder / "now"), "speed"])


if __name__ == "__main__":
    unittest.main()
