#!/usr/bin/env python3
"""The manuals name flags that programs have, and the pages of a program name all of its flags and exit codes.

    manuals_test.py FOLDER_OF_PROGRAMS SOURCE_TREE [unittest arguments]
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAMS, SOURCE = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
TIMEOUT_S = 240
COMMANDS = {
    "millrace": ["train", "eval", "data debian", "data synthetic", "status", "trace", "doctor", "cluster status",
                 "cluster drain", "cluster end", "cluster remove", "serve", "demo", "advise", "keys new", "keys public", "keys job", "completion"],
    "millrace-server": [""],
    "millrace-switch": ["run"],
    "millrace-switch-bench": ["traffic", "load"],
    "millrace-peer": ["train"],
    "millrace-bench": ["select", "codec", "reduce", "worker", "converge", "crowd", "recover", "serve", "peers", "simulate"],
}
MANUALS = ["README.md", "deploy/SECURITY.md", "worker/README.md", "worker/peer/README.md", "server/README.md", "switch_agg/README.md",
           "switch_agg/packet_io/DESIGN.md", "switch_agg/process/DESIGN.md", "deploy/OPERATING.md",
           "tests/bench/RESULTS.md"]
# Flags of other programs that the manuals name: CMake, mpirun, pkg-config, ctest, GoogleTest.
OTHERS = {"--preset", "--build", "--install", "--component", "--prefix", "--oversubscribe", "--mca", "--cflags", "--libs", "--gtest", "--target",
          # DPDK's own
          "--no-huge", "--iova-mode"}
# The sources whose sentences deploy/OPERATING.md explains.
SAYING = [path for folder in ("worker/cluster_status", "server", "switch_agg") for path in (SOURCE / folder).rglob("*.cc")]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


def text_of(path):
    return (SOURCE / path).read_text(encoding="utf-8")


def code_of(text):
    """The code blocks and code spans of a document."""
    blocks = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join(blocks + re.findall(r"`([^`]+)`", prose))


def help_of(program, command=""):
    said = subprocess.run([PROGRAMS / program, *command.split(), "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert said.returncode == 0, (program, command, said.stderr)
    return said.stdout


def flags_of(program, command=""):
    """The flags that the command's help lists, not those that its text mentions."""
    return set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z0-9-]*)", help_of(program, command), re.MULTILINE)) - {"--help"}


def literals_of(source):
    """The string literals of C++ text; neighbours are one."""
    literal = r'"((?:[^"\\\n]|\\.)*)"'
    return ["".join(re.findall(literal, group.group(0))).replace(r"\n", " ")
            for group in re.finditer(rf"{literal}(?:\s*{literal})*", source)]


def runs_of(quote):
    """The words of a quote that its program has in one literal: two or more, between numbers, names, verbs and "…"."""
    runs, run = [], []
    for word in [*quote.split(), "…"]:
        parts = "…" in word or re.search(r"\d", word) or re.fullmatch(r"workers?|shards?|waits?|is|are|'\w+',?", word)
        if not parts:
            run.append(word)
        if parts or word.endswith(":"):
            if len(run) > 1:
                runs.append(" ".join(run).strip("(").rstrip(")"))
            run = []
    return runs


class Manuals(unittest.TestCase):
    def test_EveryFlagThatIsNamedExists(self):
        known = set(OTHERS) | {"--help", "--version"}
        for program, commands in COMMANDS.items():
            for command in commands:
                known |= flags_of(program, command)
        for script in [*(SOURCE / "deploy").glob("*.sh"), *(SOURCE / "tests/bench").rglob("*.py"), *(SOURCE / "tests/bench").rglob("*.sh"),
                       *(SOURCE / "tests/lint").glob("*.py")]:
            known |= set(FLAG.findall(script.read_text(encoding="utf-8")))
        for manual in MANUALS:
            with self.subTest(manual):
                named = set(FLAG.findall(code_of(text_of(manual))))
                self.assertEqual(sorted(named - known), [])

    def test_APageOfAProgramNamesAllItsFlags(self):
        for program, command, manual in (("millrace-server", "", "server/README.md"), ("millrace-switch", "run", "switch_agg/README.md")):
            with self.subTest(program):
                named = set(FLAG.findall(text_of(manual)))
                self.assertEqual(sorted(flags_of(program, command) - named), [])

    def test_EveryExitCodeOfAHelpIsInTheOperatorsPage(self):
        section = text_of("deploy/OPERATING.md").split("\n## Exit codes\n")[1].split("\n## ")[0]
        listed = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for code in row.split(",")}
        for program in COMMANDS:
            codes = help_of(program).split("Exit codes")[1]
            said = {int(code) for row in re.findall(r"^ +(\d+(?:, \d+)*) ", codes, re.MULTILINE) for code in row.split(",")}
            with self.subTest(program):
                self.assertGreaterEqual(len(said), 5)
                self.assertEqual(sorted(said - listed), [])

    def test_EveryDiagnosisIsQuotedAsAProgramSaysIt(self):
        said = " ".join(" ".join(literals_of(path.read_text(encoding="utf-8"))) for path in SAYING)
        section = text_of("deploy/OPERATING.md").split("\n## What `millrace status` says\n")[1].split("\n### Exit code 11")[0]
        quotes = [quote for item in re.findall(r"^- (`.*?)(?=\n- |\n\n)", section, re.MULTILINE | re.DOTALL)
                  for quote in re.findall(r"`([^`]+)`", re.match(r"(?:`[^`]+`(?:, )?\s*)+", item).group(0))]
        quotes += re.findall(r"^### .*`([^`\n]+)`$", section, re.MULTILINE)
        self.assertGreater(len(quotes), 50)
        for quote in quotes:
            for run in runs_of(" ".join(quote.split())):
                with self.subTest(quote, run=run):
                    self.assertIn(run, said)


if __name__ == "__main__":
    unittest.main()
