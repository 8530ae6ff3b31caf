#!/usr/bin/env python3
"""Names the tests or fuzzers of a configured build that a change can reach: deploy/test.sh builds and runs these alone.

    tests/lint/affected.py --build build/dev --labels '^(unit|sim)$' [--without LABELS] [--since COMMIT] [--all]
    tests/lint/affected.py --build build/asan --fuzzers [--since COMMIT] [--all]

Prints a line for each: its CMake target (- of a script), its name in ctest, and 1 where a change reaches it, else 0. A test is
reached if one of these has changed since COMMIT, by default the one in tests/lint/green_commit.txt, which CI has passed:

    a file that ninja names as an input of its program, such as a source or a schema of a library that it links
    a file that such a source includes, directly or not
    the CMakeLists.txt of a folder of such a file, or of a folder above it
    a seed of the fuzzer's corpus
    a file whose path has the prefix in a source_file("PREFIX…") of such a source (tests/support/tree_paths.h). A call
    whose argument does not begin with a string literal may read any file.
    what decides about PROGRAM, for a built_file("PROGRAM")
    any file of EVERYTHING below, or that CMake reads: it decides about all tests

Where COMMIT is not in the repository, everything has changed. --all says so, too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from typing import NamedTuple

from tidy import GREEN, INCLUDE, ROOT, Tree, changed_since, green_commit

EVERYTHING = ("CMakeLists.txt", "CMakePresets.json", "tests/CMakeLists.txt", "deploy/setup.sh", "deploy/test.sh",
              "tests/lint/affected.py", "tests/lint/tidy.py", "tests/support/tsan_suppressions.txt",
              # Rules of targets whose sources are in other folders.
              "tests/bench/CMakeLists.txt", "tests/integration/bare/CMakeLists.txt")
TREE_PATHS = "tests/support/tree_paths.cc"
# A use of tests/support/tree_paths.h: what it reads, and its string.
READS = re.compile(r"\b(source|built)_file\(\s*(?:\"([^\"]*)\")?")
ITS_DECLARATION = "tests/support/tree_paths.h"
CORPUS = "tests/fuzz/corpus"
NO_TARGET = "-"  # of a script, which every change reaches
SHARD = re.compile(r"_\d+$")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tests_of(build, labels, without):
    """(target, name in ctest) of the tests with one of the labels. A test that is cut in shards has a name for each."""
    wanted, unwanted, found = re.compile(labels), re.compile(without), []
    for test in json.loads(output("ctest", "--test-dir", build, "--show-only=json-v1"))["tests"]:
        named = next((item["value"] for item in test.get("properties", []) if item["name"] == "LABELS"), [])
        if any(wanted.search(label) for label in named) and not any(unwanted.search(label) for label in named):
            found.append(test["name"])
    targets = targets_of(build)
    return [(next((target for target in (name, SHARD.sub("", name)) if target in targets), NO_TARGET), name) for name in found]


def targets_of(build):
    lines = output("ninja", "-C", build, "-t", "targets", "all").split("\n")
    return {line.split(":")[0] for line in lines if line.endswith(": phony") and not line.startswith("cmake_object_order_depends_target_")}


def read_by_cmake(build):
    """The project's files that CMake reads, such as one that it makes a source of, without its own rules and packages'."""
    paths = (path.strip("'") for path in output("ninja", "-C", build, "-t", "inputs", "build.ninja").split("\n") if path)
    inside = {os.path.relpath(os.path.realpath(os.path.join(build, path)), os.path.realpath(ROOT)) for path in paths}
    return {path for path in inside if not path.startswith(("..", "build" + os.sep)) and "packaging" not in path.split(os.sep)
            and os.path.basename(path) != "CMakeLists.txt"}


def fuzzers_of(build):
    return [(name, name) for name in sorted(targets_of(build)) if name.endswith("_fuzz") and "/" not in name]


class Files(NamedTuple):
    """What decides about a target."""

    inputs: frozenset
    read: frozenset = frozenset()  # prefixes of paths


class Reach:
    """Which files decide about a target."""

    def __init__(self, build, tree):
        self._build = build
        self._tree = tree

    def _sources(self, path):
        """The project's files in an input: the sources of a unit, or the file itself."""
        absolute = os.path.realpath(os.path.join(self._build, path))
        inside = os.path.relpath(absolute, os.path.realpath(ROOT))
        if absolute.startswith(os.path.join(os.path.realpath(self._build), "units") + os.sep):
            return INCLUDE.findall(self._tree.read(inside))
        # Every test links tree_paths.cc. Those that use it include its header.
        if inside.startswith((".." + os.sep, "build" + os.sep)) or inside == TREE_PATHS or not os.path.isfile(absolute):
            return []
        return [inside]

    def files(self, target):
        """The files of a target, and the prefixes of the paths that it reads: "" where it may read any file."""
        todo, seen, files, read = [target], set(), set(), set()
        while todo:
            program = todo.pop()
            if program in seen:
                continue
            seen.add(program)
            sources = set()
            for path in output("ninja", "-C", self._build, "-t", "inputs", program).split("\n"):
                sources.update(self._sources(path) if path else [])
            of_program = frozenset().union(*(self._tree.closure(source) for source in sources))
            files |= of_program
            files |= {TREE_PATHS} if ITS_DECLARATION in of_program else set()
            if program != target:
                continue  # what a program reads of the tree is its user's affair
            for kind, named in self._reads(of_program):
                if kind == "built" and named:
                    todo.append(named)
                else:
                    read.add(named)
        return Files(frozenset(files), frozenset(read))

    def _reads(self, files):
        if ITS_DECLARATION not in files:
            return set()
        return {use for path in files if path != ITS_DECLARATION for use in READS.findall(self._tree.read(path))}


def rules_above(files):
    """The CMakeLists.txt of the files' folders, and of all folders above those."""
    folders = {os.path.dirname(path) for path in files}
    for folder in list(folders):
        while folder:
            folder = os.path.dirname(folder)
            folders.add(folder)
    return {os.path.join(folder, "CMakeLists.txt") for folder in folders}


def is_reached(target, files, changed, everything=frozenset(EVERYTHING)):
    """Whether a change of the paths `changed`, None for all, reaches the target with these Files.

    everything  what decides about all targets.
    """
    if changed is None or not changed.isdisjoint(everything):
        return True
    if any(path.startswith(prefix) for prefix in files.read for path in changed):
        return True
    if not changed.isdisjoint(files.inputs) or not changed.isdisjoint(rules_above(files.inputs)):
        return True
    return any(path.startswith(f"{CORPUS}/{target}/") for path in changed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="a configured build folder")
    parser.add_argument("--labels", help="tests with a label that this regular expression matches")
    parser.add_argument("--without", default="^$", help="no tests with a label that this regular expression matches")
    parser.add_argument("--fuzzers", action="store_true", help="fuzzers instead of tests")
    parser.add_argument("--since", help=f"what changed since this commit (default: the one in {GREEN})")
    parser.add_argument("--all", action="store_true", help="as if everything had changed")
    arguments = parser.parse_args()
    if arguments.fuzzers == bool(arguments.labels):
        parser.error("one of --labels and --fuzzers")
    since = arguments.since or green_commit()
    changed = None if arguments.all else changed_since(since)
    pairs = fuzzers_of(arguments.build) if arguments.fuzzers else tests_of(arguments.build, arguments.labels, arguments.without)
    reach = Reach(arguments.build, Tree(ROOT, arguments.build))
    everything = read_by_cmake(arguments.build).union(EVERYTHING)
    reached = {target: target == NO_TARGET or is_reached(target, reach.files(target), changed, everything) for target, _ in pairs}
    for target, name in pairs:
        print(target, name, int(reached[target]))
    what = "everything has changed" if changed is None else f"{len(changed)} files differ from {since[:12]}, which CI has passed"
    print(f"affected: {what}; they reach {sum(reached.values())} of {len(reached)} programs", file=sys.stderr)


if __name__ == "__main__":
    main()
