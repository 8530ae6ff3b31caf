#!/usr/bin/env python3
"""Writes tests/bench/RESULTS.md from the run files in tests/bench/runs: the newest run of each measurement.

    tests/bench/results.py            checks every run file and writes RESULTS.md
    tests/bench/results.py --check    compares; exits 1 where RESULTS.md differs, or a run file is wrong

tests/bench/measure.py writes run files. Needs Python's standard library alone. tests/bench/README.md has the schema.
"""

import argparse
import datetime
import json
import math
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from measurements import EACH, MEASUREMENTS

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parents[1]
RUNS = BENCH / "runs"
TARGET = BENCH / "RESULTS.md"
COLUMNS_MAX = 120
DATE = "%Y-%m-%dT%H:%M:%SZ"
COMMIT = re.compile(r"[0-9a-f]{7,40}(-dirty)?|unknown")
LOADS = ("quiet", "shared", "unknown")
# field -> its types; the fields of `OPTIONAL` may be absent, and one of `SOURCES` is present.
FIELDS = {"schema": int, "measurement": str, "date": str, "commit": str, "machine": dict, "load": str, "command": str,
          "repetitions": list, "file": str, "note": str}
MACHINE = {"cpu": (str, type(None)), "cores": (int, type(None)), "card": (str, type(None))}
OPTIONAL, SOURCES = {"note"}, {"repetitions", "file"}
SCHEMA = 1
HEAD = """# Measured figures

Made by `tests/bench/results.py` from the run files in [runs/](runs/): do not edit this page. [README.md](README.md)
has the rules. Each section has the newest run of one measurement: its date, commit, machine and command. A row has
one figure: its median and its spread over n values. `load` is `quiet` where the machine had no other work before each
repetition, `shared` where it had. Even ratios of a `shared` run may be off by several times. A figure without a unit
is a ratio to another figure of the same run.

The experiments of the papers have [pages of their own](papers/results/README.md).
"""


class BadRun(Exception):
    """A run file that breaks the schema, or lacks a figure of its measurement."""


@dataclass(frozen=True)
class Run:
    """One run file: its fields, and the values of each figure in the order of the measurement's."""

    path: str
    fields: dict
    values: tuple


def not_a_number(word):
    raise ValueError(f"{word} is no number of JSON")


def load(path):
    """Returns the JSON of a file. NaN and infinities are errors."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=not_a_number)
    except (OSError, ValueError) as error:
        raise BadRun(f"{path.name}: {error}") from error


def check_fields(name, fields):
    """Raises BadRun where the fields of a run file break the schema."""
    if not isinstance(fields, dict):
        raise BadRun(f"{name}: want one JSON object")
    if missing := set(FIELDS) - OPTIONAL - SOURCES - set(fields):
        raise BadRun(f"{name}: no field {', '.join(sorted(missing))}")
    if unknown := set(fields) - set(FIELDS):
        raise BadRun(f"{name}: unknown field {', '.join(sorted(unknown))}")
    if len(SOURCES & set(fields)) != 1:
        raise BadRun(f"{name}: want one of the fields {' and '.join(sorted(SOURCES))}")
    for field, value in fields.items():
        if not isinstance(value, FIELDS[field]) or isinstance(value, bool):
            raise BadRun(f"{name}: field {field} is no {FIELDS[field].__name__}")
    if fields["schema"] != SCHEMA:
        raise BadRun(f"{name}: schema {fields['schema']}, this script reads {SCHEMA}")
    if fields["measurement"] not in MEASUREMENTS:
        raise BadRun(f"{name}: measurements.py has no measurement '{fields['measurement']}'")
    try:
        datetime.datetime.strptime(fields["date"], DATE)
    except ValueError as error:
        raise BadRun(f"{name}: date '{fields['date']}': want the form 2026-01-31T23:59:59Z") from error
    if not COMMIT.fullmatch(fields["commit"]):
        raise BadRun(f"{name}: commit '{fields['commit']}' is no commit's hash")
    if fields["load"] not in LOADS:
        raise BadRun(f"{name}: load '{fields['load']}': want one of {', '.join(LOADS)}")
    if not fields["command"].strip() or not fields.get("repetitions", [1]):
        raise BadRun(f"{name}: field {'command' if not fields['command'].strip() else 'repetitions'} is empty")
    check_machine(name, fields["machine"])


def check_machine(name, machine):
    if set(machine) != set(MACHINE):
        raise BadRun(f"{name}: want the fields {', '.join(MACHINE)} of machine")
    for field, kinds in MACHINE.items():
        if not isinstance(machine[field], kinds) or isinstance(machine[field], bool):
            raise BadRun(f"{name}: field {field} of machine is of a wrong type")
    if machine["cpu"] is None and machine["card"] is None:
        raise BadRun(f"{name}: machine has neither cpu nor card")


def step_text(path):
    def word(step):
        return ",".join(f"{key}={value}" for key, value in step.items()) if isinstance(step, dict) else step
    return ".".join("*" if step is EACH else word(step) for step in path)


def follow(path, report):
    """Returns the values that a path leads to in a report. Raises KeyError where there is none."""
    values = [report]
    for step in path:
        if step is EACH:
            values = [item for value in values for item in (value if isinstance(value, list) else [])]
        elif isinstance(step, dict):
            values = [item for value in values for item in (value if isinstance(value, list) else [])
                      if isinstance(item, dict) and all(item.get(key) == wanted for key, wanted in step.items())][:1]
        else:
            values = [value[step] for value in values if isinstance(value, dict) and step in value]
        if not values:
            raise KeyError(step_text(path))
    return values


def numbers(path, report):
    found = follow(path, report)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"{step_text(path)} is {json.dumps(value)[:40]}, and no finite number")
    return found


def figure_values(figure, report):
    """Returns the values of a figure in one repetition's report."""
    found = numbers(figure.path, report)
    if figure.pick:
        found = [figure.pick(found)]
    if not figure.over:
        return [value * figure.scale for value in found]
    divisor = numbers(figure.over, report)[0]
    if divisor == 0:
        raise ValueError(f"{step_text(figure.over)} is 0, and a divisor")
    return [value * figure.scale / divisor for value in found]


def read_run(path, root=ROOT):
    """Returns the Run of a file. Raises BadRun."""
    fields = load(path)
    check_fields(path.name, fields)
    # A full run of a paper's script keeps its numbers under "result".
    reports = fields["repetitions"] if "repetitions" in fields else [report_of(path.name, root / fields["file"])]
    values = []
    for figure in MEASUREMENTS[fields["measurement"]].figures:
        try:
            values.append(tuple(value for report in reports for value in figure_values(figure, report)))
        except KeyError as error:
            raise BadRun(f"{path.name}: figure '{figure.name}': a repetition has no {error.args[0]}") from error
        except ValueError as error:
            raise BadRun(f"{path.name}: figure '{figure.name}': {error}") from error
    return Run(path.name, fields, tuple(values))


def report_of(name, path):
    try:
        report = load(path)
    except BadRun as bad:
        raise BadRun(f"{name}: {bad}") from bad
    if not isinstance(report, dict) or "result" not in report:
        raise BadRun(f"{name}: {path.name} has no result")
    return report["result"]


def newest(runs):
    """Returns {measurement: its newest run}; of two of one date, that of the last file name."""
    return {run.fields["measurement"]: run for run in sorted(runs, key=lambda run: (run.fields["date"], run.path))}


def number_text(value):
    """Returns a number with three digits, or all digits in front of the point; a whole number as it is."""
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 1e-4:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.2e}"


def as_shown(value):
    return float(number_text(value).replace(",", ""))


def goal_text(goal, median):
    if goal is None:
        return ""
    text = f"{goal.side} {goal.limit:g}"
    return text if goal.met(as_shown(median)) else f"{text}, missed"


def figure_row(figure, values):
    median = statistics.median(values)
    spread = f"{number_text(min(values))} to {number_text(max(values))}" if len(values) > 1 else ""
    cells = (figure.name, goal_text(figure.goal, median), number_text(median), spread, str(len(values)))
    return f"| {' | '.join(cells)} |"


def machine_text(machine):
    cores = f", {machine['cores']} cores" if machine["cores"] else ""
    return ", ".join(part for part in (machine["card"], machine["cpu"] and machine["cpu"] + cores) if part)


def wrapped(text, columns=COLUMNS_MAX, end="", indent=""):
    """Returns lines of words, none longer than the columns if a word allows it; all but the last end with `end`."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if len(longer) > columns - len(end) and lines[-1].strip():
            lines[-1] += end
            lines.append(indent + word)
        else:
            lines[-1] = longer
    return lines


def section(measurement, run):
    """Returns the lines of one measurement; run is None where there is none yet."""
    lines = [f"### {measurement.name}", "", *wrapped(measurement.title), ""]
    if run is None:
        lines += ["No run yet."]
    else:
        fields = run.fields
        origin = f"- {fields['date'][:10]}, commit {fields['commit']}, {machine_text(fields['machine'])}; load: `{fields['load']}`."
        lines += wrapped(origin, indent="  ")
        lines += wrapped(f"- {fields['note']}", indent="  ") if fields.get("note") else []
    lines += ["", "```", *wrapped(run.fields["command"] if run else measurement.command, end=" \\", indent="  "), "```", ""]
    if run is None:
        return lines
    lines += ["| figure | goal | median | min to max | n |", "|---|---|---|---|---|"]
    return lines + [figure_row(figure, values) for figure, values in zip(measurement.figures, run.values)] + [""]


def page(runs):
    """Returns the text of RESULTS.md."""
    latest = newest(runs)
    lines, subject = HEAD.split("\n"), None
    for measurement in MEASUREMENTS.values():
        if measurement.subject != subject:
            subject = measurement.subject
            lines += [f"## {subject}", ""]
        lines += section(measurement, latest.get(measurement.name))
    return "\n".join(lines).rstrip("\n") + "\n"


def read_runs(folder):
    """Returns the runs of a folder, and a sentence for each file that is wrong."""
    runs, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            runs.append(read_run(path))
        except BadRun as bad:
            problems.append(str(bad))
    return runs, problems


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the run files")
    parser.add_argument("--page", type=Path, default=TARGET, help="the page to write or compare")
    flags = parser.parse_args(arguments)
    runs, problems = read_runs(flags.runs)
    for problem in problems:
        print(f"results: {problem}", file=sys.stderr)
    if problems:
        return 1
    text = page(runs)
    if not flags.check:
        flags.page.write_text(text, encoding="utf-8")
    elif not flags.page.exists() or flags.page.read_text(encoding="utf-8") != text:
        print(f"results: {flags.page} differs from the page that the run files make: run tests/bench/results.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
