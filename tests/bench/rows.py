"""Rows of a bench script: each is measured by itself, and the others stay where one fails."""

import json
import sys


def measured(script, cases, failures):
    """Measures the cases (title, expected seconds, function that returns the row). Returns the rows, and the exit code: 1 where one raised
    one of `failures`."""
    rows, code = [], 0
    for title, seconds, measure in cases:
        print(f"{script}: {title}: about {seconds:.0f} s", file=sys.stderr, flush=True)
        try:
            rows.append(measure())
        except failures as failure:
            print(f"{script}: {title}: {failure}", file=sys.stderr)
            code = 1
    return rows, code


def print_json(rows):
    print(json.dumps({"rows": rows}))
