#!/usr/bin/env python3
"""deploy/switch-host.sh: prints its actions, and performs them only on request. A program in bash's place takes its
commands, so that nothing of this machine changes.

Takes the source tree as its first argument."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(sys.argv.pop(1)).resolve() / "deploy" / "switch-host.sh"
PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
TOO_MANY = 9_999_999  # more than any machine has reserved


class SwitchHost(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.ran = self.folder / "ran"
        stand_in = self.folder / "bash"
        stand_in.write_text(f'#!/bin/sh\nshift\nprintf "%s\\n" "$*" >> {self.ran}\n', encoding="utf-8")
        stand_in.chmod(0o755)

    def run_script(self, *arguments, user=None):
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        return subprocess.run(["/bin/bash", SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False,
                              env=environment, user=user)

    def commands(self):
        return self.ran.read_text(encoding="utf-8").splitlines() if self.ran.exists() else []

    def test_WithoutApplyNothingIsRun(self):
        said = self.run_script("--pages", TOO_MANY)
        self.assertIn(said.returncode, (0, 1), said.stderr)
        self.assertEqual(self.commands(), [])
        if PAGES.exists():
            self.assertEqual(said.returncode, 1)
            self.assertIn(f"echo {TOO_MANY} > {PAGES}", said.stdout)
            self.assertIn("Nothing was changed. With --apply the indented commands are run.", said.stdout)
        self.assertIn("Cores", said.stdout)

    @unittest.skipUnless(os.geteuid() == 0 and PAGES.exists(), "needs root, and a kernel with huge pages")
    def test_ApplyRunsThePrintedCommands(self):
        said = self.run_script("--apply", "--pages", TOO_MANY)
        self.assertIn(f"echo {TOO_MANY} > {PAGES}", self.commands())
        for command in self.commands():
            self.assertIn(f"    {command}\n", said.stdout)

    @unittest.skipUnless(os.geteuid() == 0 and PAGES.exists(), "needs root, and a kernel with huge pages")
    def test_PagesThatTheKernelDoesNotReserveAreAFailure(self):
        """The program in bash's place reserves none, as a kernel without enough memory in one piece."""
        said = self.run_script("--apply", "--pages", TOO_MANY)
        self.assertEqual(said.returncode, 1, said.stdout)
        self.assertIn(f"of {TOO_MANY} huge pages", said.stderr)
        self.assertEqual(self.run_script("--apply", "--pages", 0).returncode, 0)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_ApplyNeedsRoot(self):
        # The source tree may be out of another user's reach.
        copy = self.folder / "switch-host.sh"
        copy.write_bytes(SCRIPT.read_bytes())
        self.folder.chmod(0o755)
        said = subprocess.run(["/bin/bash", copy, "--apply"], capture_output=True, text=True, timeout=240, check=False, user=65534)
        self.assertEqual(said.returncode, 3, said.stdout + said.stderr)
        self.assertEqual(self.commands(), [])

    def test_InvalidArgumentsAreReportedAndNoCommandRuns(self):
        for arguments, words in ((["--pages", "many"], "'many' is not a number"), (["--pages"], "needs a value"),
                                 (["--device", "eth0"], "is not a PCI address"), (["--cores", "a"], "is not a list"),
                                 (["--frob"], "unknown option '--frob'")):
            said = self.run_script("--apply", *arguments)
            self.assertEqual(said.returncode, 2, arguments)
            self.assertIn(words, said.stderr)
        self.assertEqual(self.commands(), [])

    def test_AMissingDeviceIsReported(self):
        said = self.run_script("--device", "ffff:ff:1f.7")
        self.assertEqual(said.returncode, 1)
        self.assertIn("there is no PCI device ffff:ff:1f.7", said.stderr)


if __name__ == "__main__":
    unittest.main()
