"""The tables of monitoring/METRICS.md: every metric with its kind and its labels."""

import re
from pathlib import Path

METRICS = Path(__file__).resolve().parents[2] / "monitoring/METRICS.md"
PROGRAMS = (("shard", "Shards"), ("worker", "Workers"), ("switch", "Switches"), ("peer", "Peers"), ("http", "HTTP ports"))


def read():
    """By program: by metric its kind, and its labels with the values that each can have (none: not known beforehand)."""
    text = METRICS.read_text(encoding="utf-8").replace("\n  ", " ")  # each item on one line
    found = {}
    for program, title in PROGRAMS:
        part = text.split(f"## {title}\n")[1].split("\n## ")[0]
        found[program] = {}
        for name, kind, labels in re.findall(r"^- `(\w+)` (\w+), \w+\. Labels: ([^.]*)\.", part, re.MULTILINE):
            values = {}
            for label, listed in re.findall(r"(\w+)(?: \(([^)]*)\))?", "" if labels == "none" else labels):
                values[label] = listed.split(", ") if listed else None
            found[program][name] = (kind, values)
    return found


def exported():
    """By the name of an exported series: its labels, each with its values (none: not known beforehand)."""
    found = {}
    for metrics in read().values():
        for name, (kind, labels) in metrics.items():
            if kind == "histogram":
                found |= {f"{name}_sum": labels, f"{name}_count": labels, f"{name}_bucket": {**labels, "le": None}}
            else:
                found[name] = labels
    return found
