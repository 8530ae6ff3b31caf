#!/usr/bin/env python3
"""Runs benchmarks and writes their run files, tests/bench/runs/NAME.json, from which results.py makes RESULTS.md.

    tests/bench/measure.py NAME…     the named measurements
    tests/bench/measure.py --all     every measurement that needs no person, and whose command ends within an hour
    tests/bench/measure.py --list    the names, with their commands

A measurement that has a run of the present commit is skipped (--again: it is not), so that an interrupted --all
continues. A command runs with the folder of the programs in front of PATH. Needs release builds:

    cmake --preset release && cmake --build --preset release --target millrace-bench millrace-switch-bench \\
      millrace_slot_machine millrace_span_timer millrace_session_bucket millrace-server millrace-switch millrace_command millrace_python \\
      punished_worker

Exit codes: 0 all measured or skipped; 1 a command failed; 2 usage, or no programs; 130 interrupted.
"""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import results
from measurements import MEASUREMENTS

NOT_HERE = 77
BUSY_SHARE_MAX = 0.05
BUSY_SECONDS = 1
HOUR_SECONDS = 3600
GRACE_SECONDS = 30
INTERRUPTED = 130
PROGRAM = "millrace-bench"


class Failed(Exception):
    """A command failed, or printed no JSON."""


class NotHere(Exception):
    """This machine lacks something that the command needs."""


def say(text):
    print(f"measure: {text}", flush=True)


def commit():
    """The present commit, marked "-dirty" where files other than the run files and their page have changes."""
    def git(*words):
        return subprocess.run(["git", "-C", results.ROOT, *words], capture_output=True, text=True, check=True).stdout.strip()
    runs, page = (path.relative_to(results.ROOT) for path in (results.RUNS, results.TARGET))
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{runs}", f":!{page}")
    return git("rev-parse", "--short=10", "HEAD") + ("-dirty" if changed else "")


def machine():
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return {"cpu": names[0] if names else "unnamed processor", "cores": len(os.sched_getaffinity(0)), "card": None}


def busy_share():
    """The share of all processors' time that other work took, over a second of this script's sleep."""
    def times():
        with open("/proc/stat", encoding="utf-8") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    total_before, idle_before = times()
    time.sleep(BUSY_SECONDS)
    total, idle = times()
    return 1 - (idle - idle_before) / max(total - total_before, 1)


def last_json(text):
    """The last line of an output that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line, parse_constant=results.not_a_number)
    raise ValueError("no line with a JSON object")


def run_to_its_end(command, environment, seconds_max):
    """Returns exit code, output and errors. A command that is interrupted or takes too long has time to remove its traces."""
    with subprocess.Popen(["bash", "-c", command], cwd=results.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate(timeout=seconds_max)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.terminate()
            try:
                process.communicate(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return process.returncode, output, errors


def run_once(command, environment, seconds_max):
    """Returns the report that a command prints. Raises Failed, NotHere."""
    try:
        code, output, errors = run_to_its_end(command, environment, seconds_max)
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"no end after {expired.timeout:.0f} s") from expired
    told = [line for line in f"{output}\n{errors}".splitlines() if re.search(r"\w", line)][-1:]
    if code == NOT_HERE:
        raise NotHere("".join(told))
    if code != 0:
        raise Failed(f"exit code {code}: {''.join(told)}")
    for name in ("MILLRACE_SHARED", "MILLRACE_PROGRAMS", "MILLRACE_BEFORE"):  # a run file has no folders of one machine
        if folder := environment.get(name):
            output = output.replace(json.dumps(folder)[1:-1], f"${name}")
    try:
        return last_json(output)
    except ValueError as error:
        raise Failed(f"its output: {error}") from error


def measure(one, settings, progress):
    """Runs a measurement's command and writes its run file. A run file is whole or not there."""
    fields = {"schema": results.SCHEMA, "measurement": one.name, "date": datetime.datetime.now(datetime.timezone.utc).strftime(results.DATE),
              "commit": settings.commit, "machine": machine(), "load": "quiet", "command": one.command, "repetitions": []}
    count = settings.repetitions or one.repetitions
    for repetition in range(1, count + 1):
        if busy_share() > BUSY_SHARE_MAX:
            fields["load"] = "shared"
        began = time.monotonic()
        fields["repetitions"].append(run_once(one.command, settings.environment, max(one.hours, 1) * HOUR_SECONDS))
        say(f"{progress} {one.name}: repetition {repetition} of {count}, {time.monotonic() - began:.1f} s, load {fields['load']}")
    target = settings.runs / f"{one.name}.json"
    written = target.with_suffix(".part")
    written.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    try:
        results.read_run(written)
    except results.BadRun as bad:
        written.unlink()
        raise Failed(str(bad)) from bad
    written.replace(target)


def measured_commit(path):
    """The commit of a run file; None where there is no file that is right."""
    try:
        return results.read_run(path).fields["commit"]
    except results.BadRun:
        return None


def measure_all(wanted, settings):
    """Measures in turn. Returns the names of those that failed."""
    failed = []
    for number, one in enumerate(wanted, 1):
        progress = f"[{number}/{len(wanted)}]"
        if not settings.again and measured_commit(settings.runs / f"{one.name}.json") == settings.commit:
            say(f"{progress} {one.name}: skipped, it has a run of {settings.commit}")
            continue
        try:
            measure(one, settings, progress)
        except NotHere as missing:
            say(f"{progress} {one.name}: left out: {missing}")
        except Failed as failure:
            say(f"{progress} {one.name}: FAILED: {failure}")
            failed.append(one.name)
    return failed


def environment_of(programs):
    """The variables of a command: its programs in front, and the shared data."""
    shared = os.environ.get("MILLRACE_SHARED") or next((str(up / "shared") for up in results.ROOT.parents if (up / "shared").is_dir()), "shared")
    return {**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', '')}", "MILLRACE_SHARED": shared, "MILLRACE_PROGRAMS": str(programs),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a measurement of measurements.py")
    parser.add_argument("--all", action="store_true", help="runs all measurements; leaves out those that --list marks 'by hand' or 'by name'")
    parser.add_argument("--list", action="store_true", help="print names and commands, and measure nothing")
    parser.add_argument("--again", action="store_true", help="measure where a run of the present commit exists, too")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of each command (default: the measurement's own)")
    parser.add_argument("--programs", type=Path, default=results.ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--runs", type=Path, default=results.RUNS, help="folder of the run files")
    flags = parser.parse_args(arguments)
    if not flags.list and flags.all == bool(flags.names):
        parser.error("want names, or --all")
    if unknown := [name for name in flags.names if name not in MEASUREMENTS]:
        parser.error(f"no measurement {', '.join(unknown)}: --list has the names")
    if flags.repetitions is not None and flags.repetitions < 1:
        parser.error("--repetitions: want a number above 0")
    return flags


def main(arguments=None):
    settings = parsed(arguments)
    if settings.list:
        for one in MEASUREMENTS.values():
            by_name = f" (by name: {one.hours} hour{'s' * (one.hours > 1)})" if one.hours else ""
            print(f"{one.name}{f' (by hand: {one.by_hand})' if one.by_hand else f', {one.repetitions} times'}{by_name}\n  {one.command}")
        return 0
    settings.programs = settings.programs.resolve()
    if not (settings.programs / PROGRAM).exists():
        print(f"measure: no {settings.programs / PROGRAM}: build the release preset, or name the folder with --programs", file=sys.stderr)
        return 2
    settings.commit, settings.environment = commit(), environment_of(settings.programs)
    wanted = [one for one in MEASUREMENTS.values() if not one.by_hand and not one.hours] if settings.all else [MEASUREMENTS[name] for name in settings.names]
    if by_hand := [one.name for one in wanted if one.by_hand]:
        print(f"measure: by hand only: {', '.join(by_hand)} (--list says why)", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has its background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    try:
        failed = measure_all(wanted, settings)
    except KeyboardInterrupt:
        say("interrupted: the same command continues at this measurement")
        return INTERRUPTED
    say("write the page: tests/bench/results.py" if not failed else f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
