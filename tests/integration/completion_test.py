#!/usr/bin/env python3
"""The completion scripts: bash completes commands, flags and a flag's words from them; zsh accepts them.

    completion_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAMS = Path(sys.argv.pop(1)).resolve()
TIMEOUT_S = 120
# Those that every build has.
NAMES = ("millrace", "millrace-server", "millrace-switch", "millrace-switch-bench", "millrace-bench")


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **more)


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.scripts = {}
        for shell in ("bash", "zsh"):
            ended = run(PROGRAMS / "millrace", "completion", shell)
            assert ended.returncode == 0, ended.stderr
            path = Path(cls.folder.name) / f"all.{shell}"
            path.write_text(ended.stdout, encoding="utf-8")
            cls.scripts[shell] = path

    def completed(self, *words):
        """What bash offers for the last of `words`."""
        line = " ".join(f"'{word}'" for word in words)
        ended = run("bash", "--norc", "-c", f"source {self.scripts['bash']}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
                    f"_{words[0]}; printf '%s\\n' \"${{COMPREPLY[@]}}\"", cwd=self.folder.name)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        return ended.stdout.split()

    def test_BashCompletesCommands(self):
        self.assertEqual(self.completed("millrace", "trai"), ["train"])
        self.assertEqual(self.completed("millrace", "data", "sy"), ["synthetic"])
        self.assertEqual(self.completed("millrace-switch", "r"), ["run"])
        self.assertEqual(self.completed("millrace", "completion", "b"), ["bash"])

    def test_BashCompletesFlags(self):
        self.assertEqual(self.completed("millrace", "train", "--lr-s"), ["--lr-schedule"])
        self.assertEqual(self.completed("millrace-server", "--abandon"), ["--abandon-after"])
        self.assertEqual(self.completed("millrace-server", "--table", "x", "--shard"), ["--shard", "--shards", "--shard-memory-bytes-max"])
        self.assertEqual(self.completed("millrace", "train", "--print"), [], "it is not for people")

    def test_BashCompletesTheWordsOfAFlag(self):
        self.assertEqual(self.completed("millrace", "train", "--mode", "p"), ["partial"])
        self.assertEqual(self.completed("millrace", "train", "--model", ""), ["lr", "svm", "l2svm"])
        self.assertEqual(self.completed("millrace", "train", "--path", ""), ["server", "switch"])
        self.assertEqual(self.completed("millrace", "train", "--model", "=", "s"), ["svm"])
        self.assertEqual(self.completed("millrace", "train", "--lr", ""), [], "a number")

    def test_BashCompletesFilesWhereAFlagTakesOne(self):
        (Path(self.folder.name) / "rows.svm").touch()
        (Path(self.folder.name) / "saves").mkdir(exist_ok=True)
        self.assertEqual(self.completed("millrace", "train", "--train", "ro"), ["rows.svm"])
        self.assertEqual(self.completed("millrace-server", "--store-dir", "s"), ["saves"])

    def test_EveryProgramHasItsScript(self):
        for shell, path in self.scripts.items():
            text = path.read_text(encoding="utf-8")
            for name in NAMES:
                self.assertIn(f"# Completion of {name} for {shell}", text)
                own = run(PROGRAMS / name, "--print-completion", shell)
                self.assertEqual((own.returncode, own.stderr), (0, ""))
                self.assertIn(own.stdout.strip(), text)

    def test_ZshAcceptsTheScript(self):
        if shutil.which("zsh") is None:
            self.skipTest("there is no zsh here")
        ended = run("zsh", "-n", self.scripts["zsh"])
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        ended = run("zsh", "-f", "-c", f"autoload -U compinit && compinit -D -u && source {self.scripts['zsh']} && print -l $_comps[{NAMES[0]}] $_comps[{NAMES[1]}]")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertEqual(ended.stdout.split(), [f"_{name}" for name in NAMES[:2]])

    def test_AnotherShellIsRefused(self):
        ended = run(PROGRAMS / "millrace", "completion", "fish")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("bash, zsh", ended.stderr)


if __name__ == "__main__":
    unittest.main()
