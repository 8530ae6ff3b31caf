#!/usr/bin/env python3
"""Runs a benchmark of two builds in turns, and prints the ratios of its figures: now over before.

    tests/bench/before.py BEFORE NOW NAME [--pairs N]

BEFORE and NOW are folders of programs, such as build/release/bin of two trees. NAME is a measurement of measurements.py: its command
runs once of each build in each pair, and every second pair begins with the other build. Errors get a table for people; the output is
one line of JSON. A figure that one of the builds does not have is left out.

Exit codes: 0 measured; 1 a command failed; 2 usage; 77 BEFORE is not given: no build to compare with.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import results
from measure import HOUR_SECONDS, NOT_HERE, Failed, NotHere, environment_of, run_once
from measurements import MEASUREMENTS

PAIRS = 9


def values_of(report, figures):
    """Returns {name: value} of the figures that have a number in the report."""
    values = {}
    for figure in figures:
        try:
            values[figure.name] = statistics.median(results.figure_values(figure, report))
        except (KeyError, ValueError):
            continue
    return values


def measured(one, folders, pairs):
    """Returns the values of each pair, by build. Raises Failed, NotHere."""
    runs = {build: [] for build in folders}
    for pair in range(pairs):
        for build in sorted(folders, reverse=pair % 2 == 1):
            report = run_once(one.command, environment_of(folders[build]), max(one.hours, 1) * HOUR_SECONDS)
            runs[build].append(values_of(report, one.figures))
        print(f"before: pair {pair + 1} of {pairs}", file=sys.stderr, flush=True)
    return runs


def compared(one, runs):
    """Returns a row for each figure that all runs have."""
    rows = []
    for figure in one.figures:
        values = {build: [run[figure.name] for run in of_build if figure.name in run] for build, of_build in runs.items()}
        if any(len(values[build]) < len(runs[build]) for build in runs) or 0 in values["before"]:
            continue
        ratios = [now / before for before, now in zip(values["before"], values["now"])]
        rows.append({"figure": figure.name, **values, "ratios": ratios, "median": statistics.median(ratios)})
    return rows


def commit_of(folder):
    """Returns the commit of the tree that a folder is in."""
    told = subprocess.run(["git", "-C", folder, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    return told.stdout.strip() if told.returncode == 0 else "unknown"


def table(rows):
    """Returns a text table of the rows: medians, and the ratios of the pairs."""
    width = max(len(row["figure"]) for row in rows)
    lines = [f"{'figure':{width}}  {'before':>10}  {'now':>10}  {'now/before':>10}  of the pairs"]
    for row in rows:
        before, now = (results.number_text(statistics.median(row[build])) for build in ("before", "now"))
        lines.append(f"{row['figure']:{width}}  {before:>10}  {now:>10}  {row['median']:>10.3f}  {min(row['ratios']):.3f} to {max(row['ratios']):.3f}")
    return "\n".join(lines)


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="folder of the older programs")
    parser.add_argument("now", metavar="NOW", help="folder of the present programs")
    parser.add_argument("name", metavar="NAME", choices=MEASUREMENTS, help="a measurement of measurements.py")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"runs of each build (default: {PAIRS})")
    flags = parser.parse_args(arguments)
    if flags.pairs < 1:
        parser.error("--pairs: want a number above 0")
    if not flags.before:
        return flags
    for folder in (flags.before, flags.now):
        if not Path(folder).is_dir():
            parser.error(f"no folder '{folder}'")
    return flags


def main(arguments=None):
    flags = parsed(arguments)
    if not flags.before:
        print("before: no build to compare with: MILLRACE_BEFORE names the folder of its programs", file=sys.stderr)
        return NOT_HERE
    one = MEASUREMENTS[flags.name]
    folders = {"before": Path(flags.before).resolve(), "now": Path(flags.now).resolve()}
    try:
        rows = compared(one, measured(one, folders, flags.pairs))
    except NotHere as missing:
        print(f"before: left out: {missing}", file=sys.stderr)
        return NOT_HERE
    except Failed as failure:
        print(f"before: {one.name}: {failure}", file=sys.stderr)
        return 1
    if not rows:
        print(f"before: {one.name}: no figure that both builds have", file=sys.stderr)
        return 1
    print(table(rows), file=sys.stderr)
    report = {"bench": "before", "measurement": one.name, "pairs": flags.pairs, "rows": rows,
              "commits": {build: commit_of(folder) for build, folder in folders.items()}}
    print(json.dumps(report, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
