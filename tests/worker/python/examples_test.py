#!/usr/bin/env python3
"""Programs of worker/python/examples against `millrace serve`, each worker a process.

    examples_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import ast
import json
import re
import subprocess
import sys
import unittest

from shards import ENVIRONMENT, PROGRAMS, ROOT, TIMEOUT_S

WORKERS = 2


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        command = [PROGRAMS / "millrace", "serve", "--shards", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drain", "0s",
                   "--json"]
        cls.serve = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cls.servers = json.loads(cls.serve.stdout.readline())["servers"]

    @classmethod
    def tearDownClass(cls):
        cls.serve.terminate()
        cls.serve.wait(timeout=TIMEOUT_S)
        cls.serve.stdout.close()

    def outputs(self, example, *arguments):
        """Returns the output of each worker; all must end with 0."""
        command = [sys.executable, ROOT / "worker/python/examples" / example, "--workers", WORKERS, "--servers", self.servers, *arguments]
        processes = [subprocess.Popen([*map(str, command), "--worker", str(worker)], env=ENVIRONMENT, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for worker in range(WORKERS)]
        texts = []
        for process in processes:
            out, error = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, error)
            texts.append(out)
        return texts

    def test_FlagsOfTheDescriptions_AreOnesOfTheNamedPrograms(self):
        for example in sorted((ROOT / "worker/python/examples").glob("*.py")):
            source = example.read_text(encoding="utf-8")
            description = ast.get_docstring(ast.parse(source))
            known = set(re.findall(r'"(--[\w-]+)"', source))
            for program in set(re.findall(r"\bmillrace serve\b|\bmillrace-server\b", description)):
                words = program.split()
                said = subprocess.run([PROGRAMS / words[0], *words[1:], "--help"], capture_output=True, text=True, check=True).stdout
                known |= set(re.findall(r"--[\w-]+", said))
            with self.subTest(example.name):
                # Those of torchrun have underscores.
                self.assertEqual({flag for flag in re.findall(r"--[\w-]+", description) if "_" not in flag} - known, set())

    def test_NumpyLinear_FindsTheWeightsWithFewerBytes(self):
        for text in self.outputs("numpy_linear.py"):
            error, sent, dense = re.fullmatch(r"error ([\d.]+), sent (\d+) bytes instead of (\d+)\n", text).groups()
            self.assertLess(float(error), 0.05)
            self.assertLess(int(sent), int(dense) / 4)


if __name__ == "__main__":
    unittest.main()
