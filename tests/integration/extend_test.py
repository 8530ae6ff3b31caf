#!/usr/bin/env python3
"""A new algorithm of each kind costs its file, its word in a list, its row in a document (kernels/base/DESIGN.md).

    extend_test.py FOLDER_OF_PROGRAMS SOURCE_FOLDER

Takes the three steps of each folder's README in a copy of the tree, builds the programs there, and uses each algorithm.
The compiler cache has all other objects. Exits 77 (skipped, for ctest) without a compiler cache."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import made_up_rows

SOURCE = Path(sys.argv.pop(1) if len(sys.argv) > 1 else ".").resolve()
FILES = SOURCE / "tests/integration/extend"
TARGETS = ["millrace_command", "millrace-server", "millrace-bench"]
TIMEOUT_S = 1200

# The word, its list, the list's macro for one word, the folder of its file; its document, the head of its table, its row.
KINDS = [
    ("first", "kernels/select/selection_list.h", "SELECTION", "kernels/select",
     "protocol/wire/job_spec.md", "| number | name | selects |", "| 15 | first | the first k | ours |"),
    ("wide", "kernels/codec/codec_list.h", "INDEX_CODEC", "kernels/codec/index",
     "protocol/wire/index_codecs.md", "| number | name |", "| 24 | `wide` | yes | none | u64 each | ours |"),
    ("flipped", "kernels/codec/codec_list.h", "VALUE_CODEC", "kernels/codec/value",
     "protocol/wire/value_codecs.md", "| number | name |", "| 20 | `flipped` | yes | inverted bits | none | ours |"),
    ("signs", "kernels/optimize/optimizer_list.h", "OPTIMIZER", "kernels/optimize",
     "protocol/wire/job_spec.md", "| number | name | rule |", "| 5 | signs | w −= rate sign(g) | ours |"),
    ("gathered", "worker/peer/algorithms/allreduce_list.h", "ALLREDUCE", "worker/peer/algorithms",
     "worker/peer/algorithms/DESIGN.md", "| number, name |", "| 14 `gathered` | log2 P | (P − 1) k | ours |"),
    ("plain_sgd", "worker/training/optimizers/optimizer_list.h", "OPTIMIZER", "worker/training/optimizers",
     "worker/peer/README.md", "| name | description |", "| `plain_sgd` | SGD | ours |"),
]


def with_word(text, macro, word):
    """The list with one more word at its end."""
    lines = text.split("\n")
    last = max(at for at, line in enumerate(lines) if line.startswith(f"  {macro}("))
    width = next((len(line) for line in lines if line.endswith("\\") and f"({macro})" in line), 0)
    lines[last] = lines[last].ljust(width - 1) + "\\"
    lines.insert(last + 1, f"  {macro}({word})")
    return "\n".join(lines)


def with_row(text, head, row):
    """The document with one more row at the end of the table."""
    lines = text.split("\n")
    at = next(at for at, line in enumerate(lines) if line.startswith(head))
    while lines[at].startswith("|"):
        at += 1
    lines.insert(at, row)
    return "\n".join(lines)


def changed(path, change, *arguments):
    path.write_text(change(path.read_text(encoding="utf-8"), *arguments), encoding="utf-8")


class Extend(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="millrace-extend-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.tree = Path(cls.folder.name) / "tree"
        cls.bin = cls.tree / "build/dev/bin"
        listed = cls.output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], SOURCE)
        for name in filter(None, listed.split("\0")):
            if (SOURCE / name).is_file():
                (cls.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(SOURCE / name, cls.tree / name)
        for word, list_file, macro, folder, document, head, row in KINDS:
            shutil.copy(FILES / f"{word}.cc.in", cls.tree / folder / f"{word}.cc")
            changed(cls.tree / list_file, with_word, macro, word)
            changed(cls.tree / document, with_row, head, row)
        cls.output(["git", "init", "-q"], cls.tree)
        cls.output(["git", "add", "-A"], cls.tree)
        # As the tree's own build, so that the compiler cache has the rest; without tests and CUDA.
        cls.output(["cmake", "--preset", "dev", "-DMILLRACE_BUILD_TESTS=OFF", "-DMILLRACE_CUDA=OFF"], cls.tree)
        targets = cls.output(["ninja", "-C", "build/dev", "-t", "targets", "all"], cls.tree)
        cls.has_peers = bool(re.search(r"^millrace-peer:", targets, re.M))
        cls.output(["cmake", "--build", "--preset", "dev", "--target", *TARGETS, *(["millrace-peer"] if cls.has_peers else [])],
                   cls.tree)

    @classmethod
    def output(cls, command, folder=None):
        ended = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S,
                               check=False)
        if ended.returncode != 0:
            raise AssertionError(f"{command}: {ended.returncode}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}")
        return ended.stdout

    def report(self, program, *arguments):
        return json.loads(self.output([self.bin / program, *arguments, "--json"]).strip().split("\n")[-1])

    def test_TheLintIsClean(self):
        self.output([sys.executable, "tests/lint/lint.py"], self.tree)

    def test_TheBenchmarksHaveARowOfEach(self):
        selections = {row["algorithm"]: row for row in self.report("millrace-bench", "select", "--dimension", 4096, "--repeats", 1)["rows"]}
        self.assertEqual(selections["first"]["selected_over_k"], 1)
        codecs = {row["algorithm"] for row in self.report("millrace-bench", "codec", "--dimension", 4096, "--repeats", 1)["rows"]}
        self.assertLessEqual({"wide", "flipped"}, codecs)

    def test_TheAllreduceSums(self):
        report = self.report("millrace-bench", "simulate", "--ranks", 5, "--dimension", 4096, "--algorithm", "gathered")
        self.assertTrue(all(row["correct"] for row in report["rows"]), report)

    def test_AJobTrainsWithThem(self):
        rows = Path(self.folder.name) / "rows.svm"
        rows.write_text(made_up_rows(600, 3), encoding="utf-8")
        server = subprocess.Popen([self.bin / "millrace", "serve", "--shards", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            servers = json.loads(server.stdout.readline())["servers"]
            report = self.report("millrace", "train", "--servers", servers, "--job", "extended", "--train", rows, "--batch", 16,
                                 "--epochs", 4, "--store", "signs:0.01", "--select", "first:0.9", "--codec-up", "wide+flipped")
        finally:
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(timeout=240), 0)
            server.stdout.close()
        losses = [epoch["loss"] for epoch in report["epochs"]]
        self.assertLess(losses[-1], 0.9 * losses[0])

    def test_TheTrainingOptimizerTrains(self):
        if not self.has_peers:
            self.skipTest("no MPI")
        rows = Path(self.folder.name) / "peer_rows.svm"
        rows.write_text(made_up_rows(600, 3), encoding="utf-8")
        report = self.report("millrace-peer", "train", "--train", rows, "--optimizer", "plain_sgd", "--lr", 1, "--epochs", 4)
        losses = [epoch["loss"] for epoch in report["epochs"]]
        self.assertLess(losses[-1], 0.9 * losses[0])


if __name__ == "__main__":
    if shutil.which("ccache") is None:
        print("extend_test: no ccache, so the copy would be compiled in full")
        sys.exit(77)
    unittest.main()
