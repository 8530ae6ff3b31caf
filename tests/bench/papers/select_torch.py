#!/usr/bin/env python3
"""torch.topk beside `millrace-bench select`: exact top-k of n Gaussian f32, one thread each, on this machine.

    tests/bench/papers/select_torch.py [--millrace PATH] [--dimension N] [--density D ...] [--repeats R] [--json]

Needs Debian's PyTorch (python3-torch; run with /usr/bin/python3) and a built `millrace-bench`. Exit code: 0 where torch.topk takes at
least 20 times as long as `exact` at every density, 1 where it does not, 77 where there is nothing to compare with.

Both are medians of the repeats. torch.topk runs between two runs of `millrace-bench`, whose faster one counts: what else the machine does
then is in both, or only against Millrace.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

RATIO_MIN = 20
SKIPPED = 77
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def millrace_row(millrace, n, density, repeats):
    command = [millrace, "select", "--dimension", str(n), "--density", repr(density), "--repeats", str(repeats), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return next(row for row in report["rows"] if row["algorithm"] == "exact")


def torch_ms(torch, values, k, repeats):
    """The magnitudes are made beforehand: torch.topk alone is timed."""
    magnitudes = values.abs()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        torch.topk(magnitudes, k, sorted=False)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def compare(torch, arguments, density):
    k = max(1, math.ceil(density * arguments.dimension))
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(arguments.dimension, generator=generator)
    before = millrace_row(arguments.millrace, arguments.dimension, density, arguments.repeats)
    of_torch = torch_ms(torch, values, k, arguments.repeats)
    after = millrace_row(arguments.millrace, arguments.dimension, density, arguments.repeats)
    exact = min(before, after, key=lambda row: row["ms"])
    return {"n": arguments.dimension, "density": density, "k": k, "repeats": arguments.repeats, "threads": 1,
            "torch": torch.__version__, "torch_topk_ms": of_torch, "exact_ms": exact["ms"],
            "exact_ratio_to_read_pass": exact["ratio_to_read_pass"], "torch_over_exact": of_torch / exact["ms"]}


def default_millrace():
    builds = [os.path.join(ROOT, "build", preset, "bin", "millrace-bench") for preset in ("release", "dev")]
    return next((path for path in builds if os.path.exists(path)), builds[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", default=default_millrace())
    parser.add_argument("--dimension", type=int, default=1 << 24)
    parser.add_argument("--density", type=float, nargs="+", default=[0.001, 0.01])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("skipped: no PyTorch for " + sys.executable + " (Debian: apt-get install python3-torch, run with /usr/bin/python3)")
        return SKIPPED
    if not os.path.exists(arguments.millrace):
        print("skipped: no " + arguments.millrace + "; build the target millrace-bench, or say where it is with --millrace")
        return SKIPPED
    torch.set_num_threads(1)
    rows = [compare(torch, arguments, density) for density in arguments.density]
    if arguments.json:
        print(json.dumps({"bench": "select_torch", "rows": rows}))
    else:
        print(f"n = {arguments.dimension}, one thread, torch {torch.__version__}")
        for row in rows:
            print(f"density {row['density']:g}: torch.topk {row['torch_topk_ms']:.0f} ms, exact {row['exact_ms']:.2f} ms "
                  f"({row['exact_ratio_to_read_pass']:.2f} read passes): {row['torch_over_exact']:.1f} x")
    return 0 if all(row["torch_over_exact"] >= RATIO_MIN for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
