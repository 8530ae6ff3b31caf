#!/usr/bin/env python3
"""Every --help is as its golden text, a flag has one name, one unit and one meaning in all programs, and refuses wrong values.

    help_test.py FOLDER_OF_PROGRAMS SOURCE_TREE [unittest arguments]
    help_test.py --write FOLDER_OF_PROGRAMS SOURCE_TREE      writes the golden texts (tests/integration/help/)
"""

import functools
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

UNITS = ("DURATION", "RATE", "SIZE", "FILE", "FOLDER", "HOST")
WRITE = "--write" in sys.argv and sys.argv.pop(sys.argv.index("--write"))
PROGRAMS, SOURCE = (Path(sys.argv.pop(1)).resolve() for _ in range(2))
GOLDEN = SOURCE / "tests/integration/help"
NAMES = ("millrace", "millrace-server", "millrace-switch", "millrace-switch-bench", "millrace-peer", "millrace-bench")
TIMEOUT_S = 240
# The answer of a build without MPI to a command.
WITHOUT_MPI = re.compile(r"without MPI|has no MPI")
FLAG_LINE = re.compile(r"^ +(?:-\w,)?(--[a-z][a-z0-9-]*)(?: (\S+))?", re.MULTILINE)
# In every program.
OWN = {"--help", "--version", "--config"}


# (form of a value in help, a value that the flag does not take, words of the refusal about valid values)
WRONG = [(re.compile(form), value, words) for form, value, words in (
    (r"(UINT|INT|FLOAT):\S+\.\.", "many", "is not a number from "),
    (r"NUMBER", "many", "it takes a "),
    (r"\w+:\{", "nothing", "is not one of "),
    (r"\w+\|", "nothing", "known are "),
    (r"DAY", "2027-02-30", "is no day: write it as "),
    (r"DURATION", "10", "is not a duration: give a number with "),
    (r"RATE", "many", "is not a rate: "),
    (r"SIZE", "many", "is not a size: give a whole number of bytes"),
    (r"HOST:PORT|LIST|ADDRESS", "somewhere", "is not an address: give "),
    (r"FILE|FOLDER|NAME", "", "it is empty"),
)]
# The same by flag, of values with a grammar of their own.
WRONG_TEXTS = {
    "--algorithm": ("sums", "there "),
    "--codec": ("gap+nothing", "codec 'gap+nothing' is not "),
    "--codec-down": ("gap+nothing", "codec 'gap+nothing' is not "),
    "--codec-up": ("gap+nothing", "codec 'gap+nothing' is not "),
    "--grid": ("16384", "is not a grid: 'auto' or "),
    "--layers": ("wide", "is not a number from 1 to "),
    "--lr-schedule": ("sometimes", "constant, inverse[:EPOCHS], "),
    "--method": ("best", "there are three_lc, "),
    "--momentum": ("fast", "is not a momentum: 'none', or "),
    "--only": ("best", "there is no row 'best'; there are "),
    "--quantizer": ("gap+nothing", "codec 'gap+nothing' is not "),
    "--reselect": ("largest", "is not a re-selection: 'none' or "),
    "--select": ("largest:0.1", "known are none, topk"),
    "--slow-worker": ("3", "is not WORKER:FACTOR"),
    "--store": ("fast", "is not an optimizer; known are "),
    "--switch-codec": ("gap", "is not a switch_codec: 'auto' or "),
}
# Flags without a wrong value, and the reason.
TAKES_ANY = {
    "--data": "any other text is a file",
    "--job": "any text is a name",
    "--reason": "any text is a reason",
    "--pmd": "any other text is a device of DPDK",
}
# A command's other flags, with which it gets as far as its check of a text.
OTHER_FLAGS = {"--codec": {("millrace-bench", "codec"): ["--explain"]}}
A_VALUE = {"FILE": "/no/such/file", "LIST": "127.0.0.1:9", "HOST:PORT": "127.0.0.1:9", "DURATION": "1ms", "RATE": "1gbit", "FLOAT": "0.1",
           "UINT": "8"}


def help_of(program, command=()):
    with tempfile.TemporaryDirectory() as home:
        ended = subprocess.run([PROGRAMS / program, *command, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                               env={**os.environ, "HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": home})
    assert (ended.returncode, ended.stderr) == (0, ""), (program, command, ended.stderr)
    said = (ended.stdout.rstrip("\n") + "\n").replace(home, "HOME").replace(str(PROGRAMS), "PROGRAMS")
    # Versions belong to the build, and differ.
    return re.sub(r"^(millrace-switch(?:-bench)? )\d.*$", r"\1VERSION", said, flags=re.MULTILINE)


def ended_of(key, *arguments):
    """Returns (exit code, standard error, standard output) of a command with these arguments."""
    ended = subprocess.run([PROGRAMS / key[0], *key[1:], *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
                           stdin=subprocess.DEVNULL)
    return ended.returncode, ended.stderr, ended.stdout


by_command_line = functools.cache(ended_of)  # two tests need the refusals of the command line


def commands_of(said):
    listed = re.search(r"^Subcommands:\n((?:  .*\n)+)", said, re.MULTILINE)
    return re.findall(r"^  (\w+)", listed.group(1), re.MULTILINE) if listed else []


@functools.cache
def all_helps():
    """{(program, command words): text}, of the programs that this build has."""
    helps = {}

    def add(program, command):
        said = help_of(program, command)
        if WITHOUT_MPI.search(said.split("\n", 1)[0]):
            return
        helps[(program, *command)] = said
        for name in commands_of(said):
            add(program, (*command, name))

    for program in NAMES:
        if (PROGRAMS / program).exists():
            add(program, ())
    return helps


def golden_of(key):
    return GOLDEN / ("_".join(key) + ".txt")


def flags_of(said):
    """{flag: form of its value, or ""} of a help."""
    flags = {}
    for flag, form in FLAG_LINE.findall(said):
        form = form.split("=")[0].split(":")[0] if form.isupper() or ":" in form or "=" in form else ""
        flags[flag] = form
    return flags


def forms_of(said):
    """{flag: form of its value as help has it} of the flags of a help that take a value."""
    lines = re.findall(r"^ +(?:-\w,)?(--[a-z][a-z0-9-]*) ((?:[A-Z]{3}|[a-z_]+\|)\S*)( REQUIRED)?", said, re.MULTILINE)
    return {flag: form + required for flag, form, required in lines if flag not in OWN}


def options():
    """The flags of options of a job and of a worker: worker/OPTIONS.md."""
    page = (SOURCE / "worker/OPTIONS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- `(\w+)` \(([^)]*)\)", page, re.MULTILINE)
    return {(re.findall(r"`(--[\w-]+)`", kind) or ["--" + name.replace("_", "-")])[0] for name, kind in rows}


def program_of(word):
    return word if word == "millrace" else "millrace-" + word


def table():
    """{flag: (value, programs)} of deploy/FLAGS.md."""
    page = (SOURCE / "deploy/FLAGS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(--[\w-]+)` \| (.*?) \| .*? \| (.*?) \|$", page, re.MULTILINE)
    return {flag: (value, set(NAMES) if programs == "all" else {program_of(word) for word in programs.split(", ")})
            for flag, value, programs in rows}


class Help(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.helps = all_helps()

    def test_EveryHelpIsItsGoldenText(self):
        for key, said in self.helps.items():
            with self.subTest(" ".join(key)):
                path = golden_of(key)
                self.assertTrue(path.exists(), f"{path} is not there: run help_test.py --write")
                self.assertMultiLineEqual(said, path.read_text(encoding="utf-8"), "help_test.py --write renews the golden texts")

    def test_NoGoldenTextIsOfACommandThatIsGone(self):
        known = {golden_of(key).name for key in self.helps}
        programs = {key[0] for key in self.helps}
        for path in GOLDEN.glob("*.txt"):
            if path.name.split("_")[0].removesuffix(".txt") in programs and "peers" not in path.name:
                self.assertIn(path.name, known)

    def test_EveryCommandHasExamplesAndAFileOfFlags(self):
        for key, said in self.helps.items():
            if commands_of(said):
                continue
            with self.subTest(" ".join(key)):
                examples = said.split("Examples", 1)[-1].split("\n\n")[0]
                self.assertGreaterEqual(len(re.findall(rf"\b{key[0]}\b", examples)), 2, "two examples")
                self.assertIn("--config", flags_of(said))

    def test_EveryFlagIsInTheTableWithItsPrograms(self):
        listed = table()
        known = options()
        used = {}
        for key, said in self.helps.items():
            for flag in set(flags_of(said)) - OWN:
                used.setdefault(flag, set()).add(key[0])
        for flag, programs in sorted(used.items()):
            with self.subTest(flag):
                if flag not in known:
                    self.assertIn(flag, listed, "deploy/FLAGS.md has every flag that is no option of worker/OPTIONS.md")
                if flag in listed:
                    self.assertEqual(sorted(programs - listed[flag][1]), [], "deploy/FLAGS.md lacks these programs of it")
        built = {key[0] for key in self.helps}
        for flag, (_, programs) in listed.items():
            if flag not in OWN:
                self.assertEqual(sorted((programs & built) - used.get(flag, set())), [], f"deploy/FLAGS.md: programs that have no {flag}")
        if len(built) == len(NAMES):
            self.assertEqual(sorted(set(listed) - set(used) - OWN), [], "flags of the table that no program has")

    def test_AFlagHasOneUnitInAllPrograms(self):
        forms = {}
        for key, said in self.helps.items():
            for flag, form in flags_of(said).items():
                if form in UNITS:
                    forms.setdefault(flag, {}).setdefault(form, " ".join(key))
        listed = table()
        for flag, found in forms.items():
            with self.subTest(flag):
                self.assertEqual(len(found), 1, found)
                if flag in listed:
                    self.assertEqual(listed[flag][0].split(":")[0], *found, "the value in deploy/FLAGS.md")

    def test_NoFlagHasATimesUnitInItsName(self):
        for key, said in self.helps.items():
            for flag in flags_of(said):
                if (" ".join(key), flag) == ("millrace trace", "--seconds"):
                    continue  # whole seconds, as in /trace?seconds=
                self.assertNotRegex(flag, "-(ns|us|ms|seconds|minutes|mb|mib|gb|kbit|mbit)$", " ".join(key))


class WrongValues(unittest.TestCase):
    """Every flag of every command refuses a wrong value, on the command line and in a file, before the command does anything."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.file = Path(folder.name) / "flags.toml"
        cls.cases = [(key, flag, *cls.wrong_value(flag, form), cls.others(key, flag, forms))
                     for key, said in all_helps().items() if not commands_of(said)
                     for forms in [forms_of(said)] for flag, form in forms.items() if flag not in TAKES_ANY]

    @staticmethod
    def wrong_value(flag, form):
        if form.startswith("TEXT") and not form.startswith("TEXT:{"):
            return WRONG_TEXTS[flag]
        return next((value, words) for pattern, value, words in WRONG if pattern.match(form))

    @staticmethod
    def others(key, flag, forms):
        """The flags that the command requires beside this one, with values that it takes."""
        required = [(other, form) for other, form in forms.items() if form.endswith(" REQUIRED") and other != flag]
        values = [(other, next(value for start, value in A_VALUE.items() if form.startswith(start))) for other, form in required]
        return [*OTHER_FLAGS.get(flag, {}).get(key, []), *(word for pair in values for word in pair)]

    def refusal(self, key, arguments):
        code, said, printed = by_command_line(key, *arguments)
        self.assertEqual(code, 2, (printed, said))
        return said

    def test_AreRefusedWithTheFlagAndTheValidOnes(self):
        for key, flag, value, words, others in self.cases:
            with self.subTest(f"{' '.join(key)} {flag}={value}"):
                said = self.refusal(key, [*others, flag, value])
                self.assertIn(flag, said)
                self.assertIn(words, said)

    def test_AreRefusedAlikeInAFile(self):
        # A file's texts go through the checks of the command line: one flag of each kind of value, in each command.
        one_of_each = {(key, words): (key, flag, value, others) for key, flag, value, words, others in self.cases}
        for key, flag, value, others in one_of_each.values():
            with self.subTest(f"{' '.join(key)} {flag}={value}"):
                self.file.write_text(f'{flag.removeprefix("--")} = "{value}"\n', encoding="utf-8")
                in_a_file = ended_of(key, *others, "--config", self.file)
                self.assertEqual(in_a_file, by_command_line(key, *others, flag, value))
                self.assertEqual(in_a_file[0], 2)

    def test_EveryExceptionIsNeeded(self):
        forms = {}
        for said in all_helps().values():
            forms |= forms_of(said)
        self.assertEqual([flag for flag in (*TAKES_ANY, *WRONG_TEXTS) if flag not in forms], [])


def write():
    GOLDEN.mkdir(exist_ok=True)
    for key, said in all_helps().items():
        golden_of(key).write_text(said, encoding="utf-8")


if __name__ == "__main__":
    write() if WRITE else unittest.main()
