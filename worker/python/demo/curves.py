"""Curves of loss against time and bytes, and the figures that compare them.

A run, as the JSON file has it:

    {"name": "f32", "label": "dense f32 over gloo", "rows": [[step, held-out loss, seconds, bytes], ...]}

Bytes are those that all hosts had sent since the run's first row.
"""

import math
import re

FORMAT = 1
TOLERANCE = 1.01  # of the loss that a curve must reach
ROW = re.compile(r"step (\d+): held-out loss ([\d.]+) a character, ([\d.]+) s")


def row_of(line):
    """Returns (step, loss, seconds) of a line of the example, or None."""
    found = ROW.search(line)
    return (int(found.group(1)), float(found.group(2)), float(found.group(3))) if found else None


def seconds_to(rows, loss):
    """Returns the time at which a curve first has at most this loss, on straight lines between its rows, or None."""
    before = None
    for _, present, seconds, _ in rows:
        if present <= loss:
            if before is None:
                return seconds
            share = (before[0] - loss) / (before[0] - present)
            return before[1] + share * (seconds - before[1])
        before = (present, seconds)
    return None


def figures_of(run, target):
    """Returns the figures of one run: {"steps", "loss", "seconds", "seconds_a_step", "bytes_a_step", "seconds_to_target"}."""
    first, last = run["rows"][0], run["rows"][-1]
    steps = last[0] - first[0]
    return {"steps": steps, "loss": last[1], "seconds": last[2], "seconds_a_step": last[2] / steps if steps else math.nan,
            "bytes_a_step": (last[3] - first[3]) / steps if steps else math.nan,
            "seconds_to_target": None if target is None else seconds_to(run["rows"], target)}


def target_of(runs):
    """Returns the loss that all curves are compared at: 1 % above the largest last loss of the dense runs, or None."""
    losses = [run["rows"][-1][1] for run in runs if run["name"] != "millrace"]
    return TOLERANCE * max(losses) if losses else None


def with_figures(runs):
    """Adds the figures to every run, in place. Returns the target loss, or None."""
    target = target_of(runs)
    for run in runs:
        run["figures"] = figures_of(run, target)
    return target


def bytes_text(count):
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("no unit")


def table_of(runs, target):
    """Returns the table of runs with figures, as lines."""
    reached = "" if target is None else f"to loss {target:.3f}"
    rows = [("gradients", "steps", "loss", "time", "time a step", "bytes a step", reached)]
    for run in runs:
        figures = run["figures"]
        seconds = figures["seconds_to_target"]
        rows.append((run["label"], str(figures["steps"]), f"{figures['loss']:.3f}", f"{figures['seconds']:.1f} s",
                     f"{1e3 * figures['seconds_a_step']:.0f} ms", bytes_text(figures["bytes_a_step"]),
                     "" if target is None else "-" if seconds is None else f"{seconds:.1f} s"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                       for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def sentence_of(runs):
    """Returns the comparison of Millrace with the dense run that is the fastest a step, or an empty text."""
    of_millrace = [run for run in runs if run["name"] == "millrace"]
    dense = sorted((run for run in runs if run["name"] != "millrace"), key=lambda run: run["figures"]["seconds_a_step"])
    if not of_millrace or not dense:
        return ""
    ours, theirs = of_millrace[0]["figures"], dense[0]["figures"]
    bytes_ratio, time_ratio = (theirs[name] / ours[name] for name in ("bytes_a_step", "seconds_a_step"))
    text = f"Beside {dense[0]['label']}, a step of Millrace moves {bytes_ratio:.1f} x fewer bytes in {time_ratio:.1f} x less time."
    if ours["seconds_to_target"] is None:
        return f"{text} It did not reach the dense runs' loss: give it more --millrace-steps."
    return f"{text} It reaches the dense runs' loss {theirs['seconds_to_target'] / ours['seconds_to_target']:.1f} x sooner."
