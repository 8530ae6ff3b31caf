#!/usr/bin/env python3
"""Runs clang-tidy on every translation unit of a build, at most `--jobs` at a time, and remembers what was clean.

    tests/lint/tidy.py --build build/dev [--jobs 2] [PATH-PREFIX …]

A unit is clean as long as its flags, .clang-tidy and every project file that it includes (as ninja recorded them) stay the
same; only those that changed are looked at again, in whichever clone on this machine: the notes lie in
$XDG_CACHE_HOME/millrace-lint (~/.cache/millrace-lint). What was found is printed file by file; exits 1 if anything was.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def units_of(build, prefixes):
    """[(source relative to ROOT, object, command)] of the project's own sources, one each."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    units = {}
    for entry in entries:
        source = os.path.relpath(entry["file"], ROOT)
        if source.startswith(("..", "build")) or not source.startswith(tuple(prefixes)):
            continue
        words = shlex.split(entry["command"])
        units.setdefault(source, (source, words[words.index("-o") + 1], entry["command"]))
    return list(units.values())


def dependencies_of(build):
    """object -> project files that it was compiled from; empty before the first build."""
    run = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=False)
    found, current = {}, None
    for line in run.stdout.split("\n"):
        if line and not line.startswith(" "):
            current = found.setdefault(line.split(":", 1)[0], [])
        elif line.strip() and current is not None:
            path = os.path.normpath(os.path.join(build, line.strip()))
            if path.startswith(ROOT + os.sep):
                current.append(path)
    return found


def digest_of(path, known={}):
    if path not in known:
        try:
            with open(path, "rb") as file:
                known[path] = hashlib.sha256(file.read()).hexdigest()
        except FileNotFoundError:
            known[path] = "absent"
    return known[path]


def key_of(unit, dependencies):
    source, target, command = unit
    parts = [source, command.replace(ROOT, ""), digest_of(os.path.join(ROOT, ".clang-tidy")), digest_of(os.path.join(ROOT, source))]
    parts += [digest_of(path) for path in sorted(dependencies.get(target, []))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def check(binary, build, source):
    started = time.monotonic()
    run = subprocess.run([binary, "-p", build, "--quiet", os.path.join(ROOT, source)], capture_output=True, text=True, check=False)
    return source, run.returncode, run.stdout + ("" if run.returncode == 0 else run.stderr), time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="a configured build folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--binary", default="clang-tidy-19")
    parser.add_argument("prefixes", nargs="*", default=[""], help="only sources below these, relative to the root")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "millrace-lint")
    os.makedirs(cache, exist_ok=True)
    dependencies = dependencies_of(build)
    keys = {unit[0]: key_of(unit, dependencies) for unit in units_of(build, arguments.prefixes)}
    todo = sorted(source for source, key in keys.items() if not os.path.exists(os.path.join(cache, key)))
    # Largest first: the last one to end should be a small one.
    todo.sort(key=lambda source: -os.path.getsize(os.path.join(ROOT, source)))
    failed, spent = [], []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for source, code, output, seconds in pool.map(lambda source: check(arguments.binary, build, source), todo):
            spent.append((seconds, source))
            if code == 0:
                open(os.path.join(cache, keys[source]), "w", encoding="utf-8").close()
            else:
                failed.append(source)
                print(f"--- {source}\n{output.strip()}", flush=True)
    for seconds, source in sorted(spent, reverse=True)[:3]:
        print(f"clang-tidy: {seconds:5.1f} s {source}")
    print(f"clang-tidy: {len(keys)} units, {len(todo)} looked at, {len(failed)} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
