#!/usr/bin/env python3
"""The track record of simulators, models and fuzzers: mutations that put each fault back, and runs that find it again.

    tests/sim/record.py                  writes the tables of RECORD.md
    tests/sim/record.py --check          applies every mutation to the tree in memory, and compares RECORD.md
    tests/sim/record.py --run [NAME...]  builds each mutation in build/record, and demands that its test finds it; its
                                         output is build/record/NAME.log, and its verdict goes to runs.json
    tests/sim/record.py --seeds N        runs N new seeds of each simulator, and adds them to seeds.json

A mutation is tests/sim/record/NAME.patch: headers, an empty line, a unified diff. RECORD.md explains the headers.
Needs Python's standard library; --run and --seeds need a build's packages, and a tree without other changes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATCHES = HERE / "record"
PAGE = HERE / "RECORD.md"
SEEDS = PATCHES / "seeds.json"
RUNS = PATCHES / "runs.json"
TREE = ROOT / "build/record/tree"
HEADERS = ("Fault", "Found-by", "Test", "Seeds", "Fails-with")
FINDERS = ("simulator", "model", "fuzzer", "punisher", "unstated")
FOUND_BY = re.compile(rf"({'|'.join(FINDERS)}) [0-9a-f]{{8}}")
SEEDS_OF = re.compile(r"scripted|(?P<not>not within )?(?P<count>[1-9]\d*)(?: from (?P<first>[1-9]\d*))?(?:, not run yet)?")
SEED = re.compile(r"\bseed (\d+)")
CHUNK = 25  # seeds a process; fewer than 100, from which on tests demand a coverage
TIMEOUT_S = 900
COLUMNS_MAX = 120  # of a document
# The first new seed of a simulator is behind these and all seeds of seeds.json.
NEW_SEEDS_FROM = 20_000_000
SIMULATORS = {
    "ClusterSim.EverySeedKeepsTheLawAndMakesProgress": "cluster_sim_test",
    "ClusterSim.EverythingAsynchronousKeepsTheLawAndMakesProgress": "cluster_sim_test",
    "SwitchSim.EverySeedKeepsTheLawAndEndsWithTheProductionAggregator": "switch_sim_test",
    "RackSim.EverySeedKeepsTheLawAndEnds": "rack_sim_test",
}
BEGIN, END = "<!-- {}: written by record.py -->", "<!-- end of {} -->"


class Wrong(Exception):
    """A mutation, a page or a run that is not as it must be."""


@dataclass(frozen=True)
class Mutation:
    """One fault: its headers, and the files as the diff makes them."""

    name: str
    fault: str
    found_by: str
    test: str
    seeds: str
    fails_with: str
    diff: str

    @property
    def target(self):
        return self.test.split()[0]

    @property
    def which(self):
        return self.test.split()[1]

    def is_fuzzer(self):
        return self.target.endswith("_fuzz")

    def search(self):
        """First seed, number of seeds, whether they find the fault. None: the test has no seeds."""
        match = SEEDS_OF.fullmatch(self.seeds)
        if match["count"] is None:
            return None
        return int(match["first"] or 1), int(match["count"]), match["not"] is None


def read_mutation(path):
    head, _, diff = path.read_text(encoding="utf-8").partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    if tuple(fields) != HEADERS:
        raise Wrong(f"{path.name}: its headers are not {', '.join(HEADERS)}")
    if not FOUND_BY.fullmatch(fields["Found-by"]):
        raise Wrong(f"{path.name}: Found-by is one of {', '.join(FINDERS)}, and a commit of 8 digits")
    if not SEEDS_OF.fullmatch(fields["Seeds"]):
        raise Wrong(f"{path.name}: Seeds is 'scripted', 'N', 'N from FIRST' or 'not within N', perhaps with ', not run yet'")
    if len(fields["Test"].split()) != 2:
        raise Wrong(f"{path.name}: Test is a program and its filter, or a fuzzer and its input")
    re.compile(fields["Fails-with"])
    return Mutation(path.stem, *fields.values(), diff)


def mutations(names=()):
    found = [read_mutation(path) for path in sorted(PATCHES.glob("*.patch"))]
    unknown = set(names) - {one.name for one in found}
    if unknown:
        raise Wrong(f"no mutation {', '.join(sorted(unknown))} in {PATCHES}")
    return [one for one in found if not names or one.name in names]


def apply(mutation, read):
    """The mutated files by path. A hunk must be in its file exactly once; line numbers do not count."""
    files = {}
    for section in re.split(r"^--- a/", mutation.diff, flags=re.MULTILINE)[1:]:
        path, _, body = section.partition("\n")
        text = files.get(path) or read(path)
        hunks = re.split(r"^@@ .*@@.*\n", body, flags=re.MULTILINE)
        if len(hunks) < 2 or hunks[0].strip() != f"+++ b/{path}":
            raise Wrong(f"{mutation.name}: no unified diff of {path}")
        for hunk in hunks[1:]:
            lines = hunk.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            if before == after or text.count(before) != 1:
                raise Wrong(f"{mutation.name}: a hunk is {text.count(before)} times in {path}, not once")
            text = text.replace(before, after)
        files[path] = text
    if not files:
        raise Wrong(f"{mutation.name}: it changes nothing")
    return files


def read_source(path):
    file = ROOT / path
    if not file.is_file():
        raise Wrong(f"{path} does not exist")
    return file.read_text(encoding="utf-8")


def check_test(mutation, tests):
    if mutation.is_fuzzer():
        if not (ROOT / "tests/fuzz/corpus" / mutation.target / mutation.which).is_file():
            raise Wrong(f"{mutation.name}: no input {mutation.which} of {mutation.target}")
        return
    suite, _, name = mutation.which.partition(".")
    if not re.search(rf"^TEST(?:_F|_P)?\({suite}, {name}\)", tests, re.MULTILINE):
        raise Wrong(f"{mutation.name}: no test {mutation.which}")


def code(text):
    return f"`{text}`"


def fault_table():
    rows = ["| fault | mutation | seeds |", "|---|---|---|"]
    rows += [f"| {one.fault} | {one.name} | {one.seeds} |" for one in mutations()]
    long = [row for row in rows if len(row) > COLUMNS_MAX]
    if long:
        raise Wrong(f"a row has more than {COLUMNS_MAX} columns, give it a shorter Fault: {long[0]}")
    return "\n".join(rows)


def run_table():
    """The finder of each fault, and the last run that found its mutation again."""
    runs = read_json(RUNS)
    rows = ["| mutation | found by | last run | verdict |", "|---|---|---|---|"]
    for one in mutations():
        last = runs.get(one.name, {"commit": "none", "verdict": ""})
        rows.append(f"| {one.name} | {one.found_by} | {last['commit']} | {last['verdict']} |")
    return "\n".join(rows)


def rule_table():
    """The rules that a test of tests/models leaves out: each is a fault of the protocol that a model shows."""
    text = (ROOT / "tests/models/rounds/CMakeLists.txt").read_text(encoding="utf-8")
    rows = ["| rule left out | verdict | search |", "|---|---|---|"]
    for verdict, rule, options in re.findall(r"^(broken|stuck)_by\((\S+) ([^)]*)\)", text, re.MULTILINE):
        walks = re.search(r"--walks (\d+)", options)
        seed = re.search(r"--seed (\d+)", options)
        search = f"{int(walks[1]):,} walks{f' of seed {seed[1]}' if seed else ''}" if walks else "all states"
        rows.append(f"| {code(rule)} | {'violation' if verdict == 'broken' else 'stuck'} | {search} |")
    return "\n".join(rows)


def seed_table():
    sums = {}
    for tests in read_json(SEEDS).values():
        for test, seeds in tests.items():
            sums[test] = sums.get(test, 0) + seeds
    rows = ["| test | seeds |", "|---|---|"]
    return "\n".join(rows + [f"| {code(test)} | {seeds:,} |" for test, seeds in sorted(sums.items())])


TABLES = {"faults": fault_table, "runs": run_table, "rules": rule_table, "seeds": seed_table}


def page():
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = BEGIN.format(name), END.format(name)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise Wrong(f"{PAGE.name} lacks the marks of table {name}")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n\n{table()}\n\n{end}{rest.split(end)[1]}"
    return text


def check():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.cc"))
    wrong = []
    for one in mutations():
        try:
            apply(one, read_source)
            check_test(one, tests)
        except Wrong as error:
            wrong.append(str(error))
    if wrong:
        raise Wrong("\n".join(wrong))
    if page() != PAGE.read_text(encoding="utf-8"):
        raise Wrong(f"{PAGE.name} differs from its tables: run tests/sim/record.py")


def shell(*command, cwd=TREE, **more):
    return subprocess.run([str(part) for part in command], cwd=cwd, text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)


class Copy:
    """A copy of the tree in which mutations are built. Its files keep their times where they keep their bytes."""

    def __init__(self):
        self.apart = {}  # CMakeLists.txt -> sources that units leave out, so that a mutation compiles one file
        for one in mutations():
            for path in apply(one, read_source):
                folder = Path(path).parent
                while not (ROOT / folder / "CMakeLists.txt").is_file():
                    folder = folder.parent
                source = str(Path(path).relative_to(folder))
                if source.endswith(".cc"):
                    self.apart.setdefault(str(folder / "CMakeLists.txt"), set()).add(source)
        self.mutated = {}
        listed = shell("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
        self.paths = {path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()}
        TREE.mkdir(parents=True, exist_ok=True)
        for path in self.paths:
            self.write(path)
        self.configured = set()

    def write(self, path):
        data = (ROOT / path).read_bytes()
        if path in self.mutated:
            data = self.mutated[path].encode()
        for source in sorted(self.apart.get(path, ())):
            data += f"set_source_files_properties({source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n".encode()
        target = TREE / path
        if target.is_file() and target.read_bytes() == data:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod((ROOT / path).stat().st_mode)

    def mutate(self, mutation):
        changed = set(self.mutated)
        self.mutated = apply(mutation, read_source) if mutation else {}
        for path in changed | set(self.mutated):
            self.write(path)

    def build(self, target):
        """Builds a test program or a fuzzer; returns its path."""
        preset, folder = ("fuzz", "asan") if target.endswith("_fuzz") else ("dev", "dev")
        if folder not in self.configured:
            configured = shell("cmake", "--preset", preset)
            if configured.returncode != 0:
                raise Wrong(f"cmake --preset {preset}:\n{configured.stdout}")
            self.configured.add(folder)
        built = shell("ninja", "-j2", "-C", f"build/{folder}", target)
        if built.returncode != 0:
            raise Wrong(f"{target} does not build:\n{built.stdout[-3000:]}")
        return next(path for path in (TREE / f"build/{folder}/tests").rglob(target) if path.is_file())


def run_test(program, mutation, first=None, count=None):
    """Exit status and output of the test; with seeds, of these seeds alone."""
    environment = dict(os.environ)
    command = [program, f"--gtest_filter={mutation.which}"]
    if mutation.is_fuzzer():
        command = [program, ROOT / "tests/fuzz/corpus" / mutation.target / mutation.which]
    if first is not None:
        environment.update(MILLRACE_SIM_FIRST_SEED=str(first), MILLRACE_SIM_SEEDS=str(count),
                           MILLRACE_SEEDS=f"{first}:{first + count - 1}")
    try:
        done = shell(*command, env=environment, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return 124, f"no end within {TIMEOUT_S} s"
    if done.returncode == 0 and not mutation.is_fuzzer() and "[  PASSED  ] 1 test." not in done.stdout:
        raise Wrong(f"{mutation.name}: {mutation.which} did not run:\n{done.stdout[-1000:]}")
    return done.returncode, done.stdout


def search(program, mutation):
    """Runs the test until it fails. Returns the failing seed (0: of no seed) or None, and the output."""
    plan = mutation.search()
    if plan is None:
        status, output = run_test(program, mutation)
        return (0 if status != 0 else None), output
    first, count, _ = plan
    output = ""
    for begin in range(first, first + count, CHUNK):
        status, output = run_test(program, mutation, begin, min(CHUNK, first + count - begin))
        if status == 0:
            continue
        named = SEED.search(output)
        return (int(named[1]) if named else begin), output
    return None, output


def judge(mutation, seed, output):
    """The verdict of a run; raises Wrong where the run contradicts the headers."""
    plan = mutation.search()
    if plan is not None and not plan[2]:
        if seed is not None:
            raise Wrong(f"{mutation.name}: seed {seed} finds it, and its header says 'not within'")
        return "not found"
    if seed is None:
        raise Wrong(f"{mutation.name}: {mutation.which} does not find it")
    if not re.search(mutation.fails_with, output):
        raise Wrong(f"{mutation.name}: it failed for another reason than '{mutation.fails_with}':\n{output[-3000:]}")
    return f"seed {seed}" if plan is not None else "found"


def report_row(name, test, verdict, seconds):
    print(f"{name:28} {verdict:16} {seconds:6.0f} s  {test}", flush=True)


def run(names):
    chosen = mutations(names)
    commit = clean_commit()
    copy = Copy()
    wrong = []
    for test in sorted({one.test for one in chosen}):
        began = time.monotonic()
        sample = next(one for one in chosen if one.test == test)
        plan = sample.search()
        status, output = run_test(copy.build(sample.target), sample, *((plan[0], CHUNK) if plan else ()))
        if status != 0:
            raise Wrong(f"{test} fails without a mutation:\n{output[-3000:]}")
        report_row("(no mutation)", test, "passed", time.monotonic() - began)
    for one in chosen:
        began = time.monotonic()
        try:
            copy.mutate(one)
            seed, output = search(copy.build(one.target), one)
            (TREE.parent / f"{one.name}.log").write_text(output, encoding="utf-8")
            verdict = judge(one, seed, output)
            write_json(RUNS, {**read_json(RUNS), one.name: {"commit": commit, "verdict": verdict}})
        except Wrong as error:
            wrong.append(str(error))
            verdict = "WRONG"
        report_row(one.name, one.test, verdict, time.monotonic() - began)
    copy.mutate(None)
    PAGE.write_text(page(), encoding="utf-8")
    if wrong:
        raise Wrong("\n".join(wrong))


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_json(path, content):
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def clean_commit():
    """Returns the commit of the tree. Raises Wrong: the tree has changes beside those that this script writes."""
    ours = tuple(str(path.relative_to(ROOT)) for path in (SEEDS, RUNS, PAGE))
    changed = shell("git", "status", "--porcelain", cwd=ROOT).stdout.splitlines()
    if any(not line.endswith(ours) for line in changed):
        raise Wrong("runs and seeds belong to a commit: the tree has other changes")
    return shell("git", "rev-parse", "--short=8", "HEAD", cwd=ROOT).stdout.strip()


def add_seeds(count):
    """Runs the same number of new seeds of each simulator. Adds them where no seed found a violation."""
    commit = clean_commit()
    copy = Copy()
    for test, target in SIMULATORS.items():
        began = time.monotonic()
        first = NEW_SEEDS_FROM + 1 + sum(tests.get(test, 0) for tests in read_json(SEEDS).values())
        sample = Mutation("", "", "", f"{target} {test}", "", "", "")
        status, output = run_test(copy.build(target), sample, first, count)
        if status != 0:
            raise Wrong(f"{test}, seeds {first} to {first + count - 1}:\n{output[-6000:]}")
        seeds = read_json(SEEDS)
        of_commit = seeds.setdefault(commit, {})
        of_commit[test] = of_commit.get(test, 0) + count
        write_json(SEEDS, seeds)
        report_row(commit, test, f"{count} seeds", time.monotonic() - began)
    PAGE.write_text(page(), encoding="utf-8")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="every mutation applies, and RECORD.md is up to date")
    action.add_argument("--run", nargs="*", metavar="NAME", help="find mutations again, all without a name")
    action.add_argument("--seeds", type=int, metavar="N", help="run N new seeds of each simulator, and count them")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            check()
        elif options.run is not None:
            run(options.run)
        elif options.seeds is not None:
            if options.seeds < 1:
                raise Wrong("--seeds: at least 1")
            add_seeds(options.seeds)
        else:
            PAGE.write_text(page(), encoding="utf-8")
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
