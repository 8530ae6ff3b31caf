#!/usr/bin/env python3
"""Every program says the version of the build, which CMakeLists.txt alone knows.

Takes the folder of the programs, and the source tree."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

PROGRAMS, SOURCE = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
VERSION = re.search(r"^project\(millrace VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE).group(1)
TIMEOUT_S = 240


class Version(unittest.TestCase):
    def served(self, program, *flags):
        """Returns the software fields of the program's /status."""
        command = [PROGRAMS / program, *flags, "--http", "127.0.0.1:0", "--json"]
        with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                line = json.loads(process.stdout.readline())
                with urllib.request.urlopen(f"http://{line['http']}/status", timeout=TIMEOUT_S) as answer:
                    return json.load(answer)["software"]
            finally:
                process.kill()

    def test_EveryProgramHasTheFlag(self):
        # Programs of benchmarks, tests and examples have "_" in their names.
        programs = sorted(path.name for path in PROGRAMS.iterdir() if re.fullmatch(r"millrace(-\w+)*", path.name))
        self.assertEqual(programs, ["millrace", "millrace-bench", "millrace-peer", "millrace-server", "millrace-switch", "millrace-switch-bench"])
        for program in programs:
            said = subprocess.run([PROGRAMS / program, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual(said.returncode, 0, said.stderr)
            self.assertRegex(said.stdout, rf"\A{program} {re.escape(VERSION)}(\n| )")
            self.assertEqual(said.stderr, "")

    def test_ServersShowItInTheirStatus(self):
        with tempfile.TemporaryDirectory() as folder:
            jobs = Path(folder) / "jobs.json"
            jobs.write_text('{"jobs": []}', encoding="utf-8")
            self.assertEqual(self.served("millrace-server", "--table", Path(folder) / "table", "--listen", "tcp://127.0.0.1:0"), f"millrace {VERSION}")
            self.assertEqual(self.served("millrace-switch", "run", "--listen", "127.0.0.1:0", "--jobs", jobs), f"millrace {VERSION}")

    def test_NoSourceFileHasACopy(self):
        literal = re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])")
        # protocol/vectors/ has messages of their day: a test makes them again and compares.
        copies = [
            path.relative_to(SOURCE).as_posix()
            for folder in ("kernels", "protocol", "monitoring", "server", "switch_agg", "worker", "deploy")
            for path in sorted((SOURCE / folder).rglob("*"))
            if path.is_file() and path.suffix != ".md" and "vectors" not in path.parts and literal.search(path.read_text(encoding="utf-8", errors="replace"))
        ]
        self.assertEqual(copies, [])


if __name__ == "__main__":
    unittest.main()
