#!/usr/bin/env python3
"""Checks the units of a build by clang: clang-tidy on what is shipped, and that every changed file compiles alone.

    tests/lint/tidy.py --build build/dev [--jobs 2] [--since COMMIT] [--all]

A build compiles several source files as one unit (MILLRACE_UNITY_FILES), and clang-tidy looks at the same units: one look at ten
files costs little more than one at a single file. Three kinds of checks:

    unit    clang-tidy on a unit of shipped code of which a file, or a header that it includes, has changed
    alone   clang-tidy on a changed source file by itself (of tests: its syntax), so that it compiles outside its unit, too
    header  the syntax of a header that is included twice and before all else, where it or a header that it includes has changed

"Changed" is since COMMIT, by default the one in tests/lint/green_commit.txt, for which all checks were clean; where that commit is not
in the repository, everything has changed. Checks that were clean are remembered by the contents of their files in
$XDG_CACHE_HOME/millrace-lint (~/.cache/millrace-lint). --all ignores both. Prints findings file by file, and exits 1 if there are any.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GREEN = "tests/lint/green_commit.txt"
# What decides about every check.
RULES = (".clang-tidy", "tests/lint/tidy.py")
SHIPPED = ("kernels/", "protocol/", "monitoring/", "server/", "worker/", "switch_agg/")
HEADERS = SHIPPED + ("tests/support/",)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# A Highway body is no header of its own: it is included once for each instruction set.
NO_HEADER = re.compile(r"-inl\.h$")


class Tree:
    """The project's files, and what each includes."""

    def __init__(self, root, build):
        self._root = root
        self._build = build
        self._includes = {}
        self._digests = {}
        self._closures = {}

    def read(self, path):
        with open(os.path.join(self._root, path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def _find(self, name, path):
        """Where `path` finds the project's file that it includes as "name"; None if it is not the project's."""
        for place in ("", "worker/include", os.path.dirname(path)):
            candidate = os.path.normpath(os.path.join(place, name))
            if os.path.isfile(os.path.join(self._root, candidate)):
                return candidate
        return None

    def includes(self, path):
        if path not in self._includes:
            found = (self._find(name, path) for name in INCLUDE.findall(self.read(path)))
            self._includes[path] = [name for name in found if name]
        return self._includes[path]

    def closure(self, path):
        """The file, and every project file that it includes, directly or not."""
        if path not in self._closures:
            seen, todo = set(), [path]
            while todo:
                current = todo.pop()
                if current not in seen:
                    seen.add(current)
                    todo += self.includes(current)
            self._closures[path] = frozenset(seen)
        return self._closures[path]

    def digest(self, path):
        if path not in self._digests:
            self._digests[path] = hashlib.sha256(self.read(path).encode()).hexdigest()
        return self._digests[path]


@dataclass(frozen=True)
class Entry:
    """A unit of the build: its file, how it is compiled, and the project's source files in it."""

    file: str
    words: tuple
    sources: tuple


def entries_of(build, tree):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        listed = json.load(file)
    entries = {}
    for item in listed:
        path = os.path.relpath(item["file"], ROOT)
        if os.path.realpath(item["file"]).startswith(os.path.join(os.path.realpath(build), "units") + os.sep):
            sources = tuple(INCLUDE.findall(tree.read(path)))
        elif path.startswith(("..", os.path.relpath(build, ROOT))):
            continue
        else:
            sources = (path,)
        entries.setdefault(item["file"], Entry(item["file"], tuple(shlex.split(item["command"])), sources))
    return list(entries.values())


@dataclass(frozen=True)
class Check:
    kind: str
    name: str
    command: tuple
    text: str  # standard input of the command
    files: frozenset


def syntax_command(entry, file):
    """The entry's command as clang's: it looks at `file` and writes nothing."""
    words = list(entry.words)
    at = words.index("-o")
    del words[at:at + 2]
    words = [word for word in words[1:] if word not in ("-c", entry.file)]
    return ("clang++-19", "-Wno-everything", *words, "-fsyntax-only", "-x", "c++", file)


def tidy_command(entry, file, options):
    return ("clang-tidy-19", "--quiet", *options, file, "--", *syntax_command(entry, file)[1:-4])


def checks_of(entries, tree, changed):
    """The checks that the changed files ask for; changed is None where everything has changed."""
    def touched(files):
        return changed is None or not changed.isdisjoint(files)

    checks, compiled_with = [], {}
    for entry in entries:
        shipped = all(source.startswith(SHIPPED) for source in entry.sources)
        closures = {source: tree.closure(source) for source in entry.sources}
        alone = [source for source in entry.sources if len(entry.sources) > 1 and changed is not None and source in changed]
        for source in alone:
            command = tidy_command(entry, source, ()) if shipped else syntax_command(entry, source)
            checks.append(Check("alone", source, command, "", closures[source]))
        together = frozenset().union(*closures.values())
        if shipped and any(touched(closures[source]) for source in entry.sources if source not in alone):
            # A unit includes source files: that is what it is for.
            options = ("--checks=-bugprone-suspicious-include",) if len(entry.sources) > 1 else ()
            name = os.path.relpath(entry.file, ROOT)
            checks.append(Check("unit", name, tidy_command(entry, name, options), "", together))
        for path in together:
            compiled_with.setdefault(path, entry)
    for path, entry in sorted(compiled_with.items()):
        if path.endswith(".h") and path.startswith(HEADERS) and not NO_HEADER.search(path) and touched(tree.closure(path)):
            text = f'#include "{path}"\n' * 2
            checks.append(Check("header", path, syntax_command(entry, "-"), text, tree.closure(path)))
    return checks


def changed_since(commit):
    """Paths that differ from `commit`, new ones included; None if it is not in the repository or the rules differ."""
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)

    if not commit or git("cat-file", "-e", commit + "^{commit}").returncode != 0:
        return None
    differs = git("diff", "--name-only", "--no-renames", "-z", commit)
    if differs.returncode != 0:
        return None
    changed = set(differs.stdout.split("\0"))
    changed |= set(git("ls-files", "--others", "--exclude-standard", "-z").stdout.split("\0"))
    return None if changed.intersection(RULES) else changed - {""}


def green_commit():
    try:
        with open(os.path.join(ROOT, GREEN), encoding="utf-8") as file:
            return next((line.strip() for line in file if line.strip() and not line.startswith("#")), "")
    except FileNotFoundError:
        return ""


def key_of(check, tree):
    parts = [check.kind, " ".join(check.command).replace(ROOT, "")]
    parts += [tree.digest(path) for path in RULES] + [tree.digest(path) for path in sorted(check.files)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def run(check):
    started = time.monotonic()
    done = subprocess.run(check.command, input=check.text, capture_output=True, text=True, check=False, cwd=ROOT)
    output = done.stdout + ("" if done.returncode == 0 else done.stderr)
    return check, done.returncode, output.strip(), time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="a configured build folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--since", help=f"look at what changed since this commit (default: the one in {GREEN})")
    parser.add_argument("--all", action="store_true", help="look at everything")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    tree = Tree(ROOT, build)
    since = arguments.since or green_commit()
    changed = None if arguments.all else changed_since(since)
    checks = checks_of(entries_of(build, tree), tree, changed)
    notes = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "millrace-lint")
    os.makedirs(notes, exist_ok=True)
    keys = {check: key_of(check, tree) for check in checks}
    todo = [check for check in checks if arguments.all or not os.path.exists(os.path.join(notes, keys[check]))]
    # Units first: the last one to end should be a small one.
    todo.sort(key=lambda check: ("unit", "alone", "header").index(check.kind))
    failed, spent = 0, []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for check, code, output, seconds in pool.map(run, todo):
            spent.append((seconds, check.name))
            if code == 0:
                open(os.path.join(notes, keys[check]), "w", encoding="utf-8").close()
            else:
                failed += 1
                print(f"--- {check.kind} {check.name}\n{output}", flush=True)
    for seconds, name in sorted(spent, reverse=True)[:3]:
        print(f"clang-tidy: {seconds:5.1f} s {name}")
    what = "everything" if changed is None else f"{len(changed)} files changed since {since[:12]}"
    kinds = ", ".join(f"{sum(check.kind == kind for check in todo)} of kind {kind}" for kind in ("unit", "alone", "header"))
    print(f"clang-tidy: {what}; {len(checks)} checks, {len(todo)} run ({kinds}), {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
