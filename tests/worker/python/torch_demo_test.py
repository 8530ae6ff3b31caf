#!/usr/bin/env python3
"""deploy/demo.sh --torch without its set-up: figures and plot of recorded rows, small runs, Ctrl-C.

    torch_demo_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import contextlib
import gzip
import importlib.util
import io
import json
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

DEMO = torch_required.ROOT / "worker/python/demo"
sys.path[:0] = [str(DEMO), str(DEMO.parent / "examples")]
import curves  # noqa: E402
import lab  # noqa: E402
import torch_demo  # noqa: E402

PNG = b"\x89PNG\r\n\x1a\n"  # begins a picture
# Rows of runs on four hosts behind 100 Mbit/s, shortened.
RECORDED = [
    {"name": "f32", "label": "dense f32 over gloo", "rows": [[0, 4.2, 0.0, 0], [10, 3.0, 16.0, 760_000_000], [20, 2.6, 32.0, 1_520_000_000]]},
    {"name": "bf16", "label": "dense bf16 over gloo", "rows": [[0, 4.2, 0.0, 0], [10, 3.0, 8.0, 380_000_000], [20, 2.61, 16.0, 760_000_000]]},
    {"name": "millrace", "label": "Millrace topk:0.01", "rows": [[0, 4.2, 0.0, 0], [20, 2.9, 4.0, 40_000_000], [40, 2.5, 8.0, 80_000_000]]},
]


def recorded():
    return json.loads(json.dumps(RECORDED))


class Figures(unittest.TestCase):
    def test_LinesOfTheExample_AreRows(self):
        self.assertEqual(curves.row_of("[default0]:step 20: held-out loss 2.9012 a character, 4.05 s\n"), (20, 2.9012, 4.05))
        self.assertIsNone(curves.row_of("step 20: 4.2 kB up and 16.9 kB down a step"))

    def test_TimeToALoss_IsOnTheLineBetweenRows(self):
        rows = RECORDED[2]["rows"]
        self.assertAlmostEqual(curves.seconds_to(rows, 2.7), 6.0)
        self.assertEqual(curves.seconds_to(rows, 2.9), 4.0)
        self.assertEqual(curves.seconds_to(rows, 5.0), 0.0)
        self.assertIsNone(curves.seconds_to(rows, 2.4))

    def test_Runs_AreComparedAtTheLossOfTheDenseRuns(self):
        runs = recorded()
        target = curves.with_figures(runs)
        self.assertAlmostEqual(target, 2.61 * 1.01)
        figures = runs[2]["figures"]
        self.assertEqual((figures["steps"], figures["bytes_a_step"], figures["seconds_a_step"]), (40, 2_000_000, 0.2))
        self.assertAlmostEqual(figures["seconds_to_target"], 4 + 4 * (2.9 - target) / 0.4)
        table = curves.table_of(runs, target)
        self.assertEqual(len(table), 5)
        self.assertIn("to loss 2.636", table[0])
        self.assertRegex(table[4], r"^Millrace topk:0.01 +40 +2.500 +8.0 s +200 ms +2.0 MB +6.6 s$")
        self.assertIn("Beside dense bf16 over gloo, a step of Millrace moves 19.0 x fewer bytes in 4.0 x less time. "
                      "It reaches the dense runs' loss", curves.sentence_of(runs))

    def test_LossThatIsNotReached_IsReported(self):
        runs = recorded()
        runs[2]["rows"].pop()
        target = curves.with_figures(runs)
        self.assertTrue(curves.table_of(runs, target)[4].endswith(" -"))
        self.assertIn("did not reach the dense runs' loss", curves.sentence_of(runs))

    def test_OneRunAlone_HasNoComparison(self):
        runs = recorded()[2:]
        target = curves.with_figures(runs)
        self.assertIsNone(target)
        self.assertEqual(curves.sentence_of(runs), "")
        self.assertEqual(len(curves.table_of(runs, target)), 3)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "python3-matplotlib is missing")
    def test_Plot_IsAPicture(self):
        runs = recorded()
        with tempfile.TemporaryDirectory() as folder:
            source, picture = Path(folder) / "demo.json", Path(folder) / "demo.png"
            source.write_text(json.dumps({"runs": runs, "target": curves.with_figures(runs), "title": "recorded"}), encoding="utf-8")
            subprocess.run([sys.executable, DEMO / "plot.py", source, picture], check=True)
            data = picture.read_bytes()
            self.assertEqual(data[:8], PNG)
            self.assertGreater(int.from_bytes(data[16:20], "big"), 800)


class Options(unittest.TestCase):
    def refused(self, sentence, *arguments):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as ended:
            torch_demo.options(arguments)
        self.assertEqual(ended.exception.code, 2)
        self.assertIn(sentence, errors.getvalue())

    def test_Defaults_AreFourRanksBehindHundredMegabits(self):
        args = torch_demo.options([])
        self.assertEqual((args.ranks, args.shards, args.link_rate, args.runs), (4, 2, "100mbit", ["f32", "bf16", "millrace"]))
        self.assertEqual(torch_demo.options(["--steps", "7"]).millrace_steps, 11)

    def test_UnusableOptions_AreRefused(self):
        self.refused("--runs takes some of f32,bf16,millrace", "--runs", "f32,f64")
        self.refused("each once", "--runs", "f32,f32")
        self.refused("--report-every is at least 1", "--report-every", "0")
        self.refused("--millrace-steps is at least 1", "--millrace-steps", "0")

    def test_TextOfAFreshMachine_IsItsLicences(self):
        with tempfile.TemporaryDirectory() as folder:
            args = torch_demo.options(["--folder", folder])
            path, description = torch_demo.licences(args)
            with gzip.open(path, "rt", encoding="utf-8") as file:
                self.assertGreater(len(file.read()), 100_000)
            self.assertIn("licences of Debian", description)


class FailedRank(unittest.TestCase):
    class Ranks:
        """Is Processes: a rank of the bf16 run fails, others report their steps."""

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start_ranks(self, _, arguments):
            return arguments

        def lines_of(self, arguments):
            if "bf16" in arguments:
                raise torch_demo.Failed("rank0 ended with code 1", 1)
            return [f"step {step}: held-out loss {3 - step}.0 a character, {step}.00 s" for step in (0, 1)]

    def test_FailedRank_EndsTheDemoWithItsError(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as table, \
                contextlib.redirect_stderr(io.StringIO()) as said, mock.patch.object(torch_demo, "Processes", self.Ranks), \
                mock.patch.object(torch_demo.signal, "signal"), \
                mock.patch.object(sys, "argv", ["demo", "--link-rate", "none", "--steps", "1", "--folder", folder, "--runs", "f32,bf16"]):
            self.assertEqual(torch_demo.main(), 1)
        self.assertEqual(table.getvalue(), "")
        self.assertIn("rank0 ended with code 1", said.getvalue())


@unittest.skipUnless(torch_required.BUILT, "the package millrace is not built")
class Runs(unittest.TestCase):
    """Two ranks and one shard, on the loopback or in namespaces."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        text = Path(self.folder.name) / "text.gz"
        with gzip.open(text, "wt", encoding="utf-8") as file:
            file.write("to be, or not to be: that is the question.\n" * 200)
        self.words = [sys.executable, str(DEMO / "torch_demo.py"), "--ranks", "2", "--shards", "1", "--report-every",
                      "2", "--width", "32", "--layers", "1", "--batch", "1", "--data", str(text), "--folder", self.folder.name,
                      "--build", str(torch_required.PACKAGE.parent)]

    def processes_left(self):
        """Returns the command lines of this test's processes."""
        left = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode(errors="replace").replace("\0", " ")
                if self.folder.name in words:
                    left.append(words)
        return left

    def check_runs(self, link_rate, link):
        """All runs: the table, the numbers and the picture."""
        done = subprocess.run([*self.words, "--link-rate", link_rate, "--steps", "2", "--millrace-steps", "4"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("dense f32 over gloo", done.stdout)
        self.assertIn("dense bf16 over gloo", done.stdout)
        self.assertIn("Millrace topk:0.03", done.stdout)
        self.assertIn("step 4 of 4, loss", done.stderr)
        report = json.loads((Path(self.folder.name) / "demo.json").read_text(encoding="utf-8"))
        self.assertEqual(report["link"], link)
        self.assertEqual([[row[0] for row in run["rows"]] for run in report["runs"]], [[0, 2], [0, 2], [0, 2, 4]])
        for run in report["runs"]:
            self.assertGreater(run["rows"][-1][3], 0)
            self.assertLess(run["rows"][-1][1], run["rows"][0][1])
        if importlib.util.find_spec("matplotlib"):
            self.assertEqual((Path(self.folder.name) / "demo.png").read_bytes()[:8], PNG)
        else:
            self.assertIn("no plot: python3-matplotlib is missing", done.stderr)
        self.assertEqual(self.processes_left(), [])

    def test_RunsOnTheLoopback_PrintTableNumbersAndPicture(self):
        self.check_runs("none", None)

    def test_RunsBehindLinks_PrintTableNumbersAndPicture(self):
        if missing := lab.lacking():
            self.skipTest(f"no network namespaces: {missing}")
        self.check_runs("100mbit", "100mbit")

    def test_ControlC_EndsAllProcesses(self):
        demo = subprocess.Popen([*self.words, "--link-rate", "none", "--runs", "f32", "--steps", "1000000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        with demo:
            lines = []
            for line in demo.stderr:
                lines.append(line)
                if "step 0 of 1000000" in line:
                    demo.send_signal(signal.SIGINT)
                    break
            rest = demo.stderr.read()
        self.assertEqual(demo.returncode, 130, "".join(lines) + rest)
        self.assertIn("interrupted: all processes have ended", rest)
        self.assertEqual(self.processes_left(), [])


if __name__ == "__main__":
    unittest.main()
