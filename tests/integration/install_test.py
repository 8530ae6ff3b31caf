#!/usr/bin/env python3
"""cmake --install of the programs: completions, manual pages, units, configurations that the programs take, dashboards.

    install_test.py FOLDER_OF_PROGRAMS BUILD_FOLDER SOURCE_TREE [unittest arguments]

deploy/packages.sh --test installs the packages and runs the services.
"""

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAMS, BUILD, SOURCE = (Path(sys.argv.pop(1)).resolve() for _ in range(3))
TIMEOUT_S = 120
# Those that every build has.
NAMES = ("millrace", "millrace-server", "millrace-switch", "millrace-switch-bench", "millrace-bench")
EXPOSURE_MAX = 2.5
UNITS = ("millrace-server@.service", "millrace-spare@.service", "millrace-switch.service")


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, **more)


class Installation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not all((PROGRAMS / name).exists() for name in NAMES):
            raise unittest.SkipTest("this build lacks programs")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name) / "root"
        for component in ("server", "switch", "tools"):
            ended = run("cmake", "--install", BUILD, "--component", component, env=os.environ | {"DESTDIR": str(cls.root)})
            assert ended.returncode == 0, ended.stderr

    def path(self, end):
        """The installed file whose path ends so, below any prefix."""
        found = [path for path in self.root.rglob(Path(end).name) if str(path).endswith("/" + end)]
        self.assertEqual(len(found), 1, end)
        return found[0]

    def text(self, end):
        return self.path(end).read_text(encoding="utf-8")

    def test_HasThePrograms(self):
        for name in NAMES:
            self.assertTrue(os.access(self.path("bin/" + name), os.X_OK), name)
        for name in ("netlab.sh", "switch-host.sh"):
            self.assertTrue(os.access(self.path("share/millrace/" + name), os.X_OK), name)

    def test_NoFileLinksToCuda(self):
        """A program with CUDA kernels starts on a machine without a driver."""
        files = [path for folder in ("bin", "python") for path in (PROGRAMS.parent / folder).rglob("*") if path.is_file()]
        linked = {path.name: run("readelf", "-dW", path).stdout for path in files}
        linked = {name: re.findall(r"\(NEEDED\).*\[(.+)\]", text) for name, text in linked.items()}
        self.assertIn("libc.so.6", linked["millrace"])
        for name, libraries in linked.items():
            self.assertFalse([library for library in libraries if library.startswith(("libcuda", "libnv"))], name)

    def test_HasCompletions(self):
        for name in NAMES:
            self.assertIn(f"complete -o filenames -F _{name} {name}", self.text("bash-completion/completions/" + name))
            zsh = next(path for path in self.root.rglob("_" + name) if "zsh" in str(path))
            self.assertTrue(zsh.read_text(encoding="utf-8").startswith(f"#compdef {name}\n"))

    def pages(self):
        """{name: roff} of the manual pages of programs that every build has."""
        return {path.name.removesuffix(".1.gz"): gzip.decompress(path.read_bytes()).decode("utf-8") for path in self.root.rglob("*.1.gz")}

    def test_AManualPageHasEveryFlagOfItsCommand(self):
        pages = self.pages()
        for path in (SOURCE / "tests/integration/help").glob("*.txt"):
            command = path.stem.replace("_", "-")
            if command.startswith("millrace-peer") or command == "millrace-bench-peers":
                continue  # builds with MPI have them
            with self.subTest(command):
                said = pages[command].replace("\\-", "-")
                self.assertRegex(said, rf'(?m)^\.SH NAME\n{command} - \S')
                self.assertIn(".SH SYNOPSIS\n.B " + command.split("-")[0], said)
                for flag in re.findall(r"^ +(?:-\w,)?(--[a-z][a-z0-9-]*)", path.read_text(encoding="utf-8"), re.MULTILINE):
                    self.assertRegex(said, rf"(?m)^(\\fB(-\w,)?|  ){flag}\b", command)

    def test_FormattersAcceptEveryManualPage(self):
        if shutil.which("groff") is None:
            self.skipTest("there is no groff here")
        for name, roff in self.pages().items():
            ended = run("groff", "-man", "-Tutf8", "-ww", "-Z", input=roff)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""), name)

    def test_UnitsNameInstalledFiles(self):
        for unit in UNITS:
            command = re.search(r"^ExecStart=(\S+)(?: run| --spare)? --config (\S+)$", self.text(unit), re.MULTILINE)
            program, config = command.groups()
            self.assertTrue((self.root / program.lstrip("/")).exists(), program)
            self.assertTrue((self.root / config.lstrip("/").replace("%i", "0")).exists(), config)

    def test_ASupervisorStartsASpareAgainWhoseNumberWasTaken(self):
        """Code 5 of a shard: a restart would take the number back. Of a spare: it waits for the next one."""
        codes = {unit: re.search(r"^RestartPreventExitStatus=(.*)$", self.text(unit), re.MULTILINE)[1].split() for unit in UNITS[:2]}
        self.assertEqual(codes, {UNITS[0]: ["2", "3", "5"], UNITS[1]: ["2", "3"]})
        differences = [line for line in self.text(UNITS[1]).splitlines() if line not in self.text(UNITS[0]).splitlines()]
        self.assertIn(" --spare ", next(line for line in differences if line.startswith("ExecStart=")))

    def test_TheSandboxLeavesLittleExposed(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("there is no systemd-analyze here")
        for unit in UNITS:
            # An offline check needs the name of an instance.
            path = self.root / unit.replace("@.", "@0.")
            path.write_text(self.text(unit), encoding="utf-8")
            ended = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX * 10:.0f}", path)
            path.unlink()
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def starts_by(self, command, *instead):
        """The program must start by its installed configuration, with flags in place of the machine's ports and folders."""
        process = subprocess.Popen([str(word) for word in (*command, "--json", *instead)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual(json.loads(line)["event"], "listening")

    def test_TheProgramsTakeTheirConfigurations(self):
        with tempfile.TemporaryDirectory() as folder:
            ports = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
            self.starts_by((PROGRAMS / "millrace-server", "--config", self.path("millrace/server-0.toml")), *ports,
                           "--table", folder + "/table.db", "--store-dir", folder)
            self.starts_by((PROGRAMS / "millrace-switch", "run", "--config", self.path("millrace/switch.toml")), *ports,
                           "--jobs", self.path("millrace/jobs.json"))

    def test_HasTheDashboardsAndTheRules(self):
        monitoring = SOURCE / "monitoring"
        paths = [*monitoring.glob("dashboards/*.json"), *monitoring.glob("rules/*.yml"), monitoring / "prometheus.yml"]
        self.assertGreater(len(paths), 3)
        for path in paths:
            installed = self.path(f"share/millrace/monitoring/{path.relative_to(monitoring)}")
            self.assertEqual(installed.read_bytes(), path.read_bytes())


if __name__ == "__main__":
    unittest.main()
