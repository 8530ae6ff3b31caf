#!/usr/bin/env python3
"""Trains worker/python/examples/embedding.py at its full size: a table of 2^26 rows of 16 at two shards, two ranks.

    tests/bench/embedding_table.py [--programs FOLDER] [--package FOLDER] [--rows N] [--steps N] [--json]

Needs Debian's PyTorch (run with /usr/bin/python3), a built millrace-server and the package, and 6 GiB of free memory for the full size.
Exit code: 0; 1 where a rank fails or needs a quarter of the table's memory or more; 77 where something is missing.

A rank's memory has the interpreter and torch in it. A step is the mean of the steps between the first report of the example and the last one.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from store_rows import ROOT, SKIPPED, build, running_shards

RANKS = 2
MEMORY_SHARE_MAX = 0.25
EXAMPLE = ROOT / "worker/python/examples/embedding.py"
STEP = re.compile(r"step (\d+): loss ([\d.]+), right ([\d.]+), ([\d.]+) s")
TABLE = re.compile(r"table of ([\d.]+) GiB at the shards; this worker's memory at most ([\d.]+) GiB; (\d+) bytes up and (\d+) down a step")


def peak_gib(process):
    """The most memory that a running process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 2**20


def run_ranks(arguments, servers):
    """Returns what rank 0 has printed. Raises  CalledProcessError: a rank has failed."""
    environment = os.environ | {"PYTHONPATH": str(arguments.package), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, EXAMPLE, "--servers", ",".join(servers), "--rows", arguments.rows, "--steps", arguments.steps]
    ranks = [subprocess.Popen([*map(str, command)], env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
             for rank in range(RANKS)]
    printed = [rank.communicate()[0] for rank in ranks]
    for rank in ranks:
        if rank.returncode != 0:
            raise subprocess.CalledProcessError(rank.returncode, rank.args)
    return printed[0]


def report_of(printed, shard_gib, arguments):
    """Returns the report of a run. REQUIRES: the example has reported twice."""
    (first, first_loss, _, began), *_, (last, last_loss, right, ended) = STEP.findall(printed)
    table, worker, bytes_up, bytes_down = map(float, TABLE.search(printed).groups())
    return {"bench": "embedding_table", "rows": arguments.rows, "steps": int(last), "table_gib": table, "worker_gib": worker,
            "worker_over_table": worker / table, "shards_gib": shard_gib, "shards_over_table": shard_gib / table,
            "step_ms": 1e3 * (float(ended) - float(began)) / (int(last) - int(first)), "first_loss": float(first_loss), "last_loss": float(last_loss),
            "last_right": float(right), "mb_up": bytes_up / 1e6, "mb_down": bytes_down / 1e6}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, default=build("bin"))
    parser.add_argument("--package", type=Path, default=build("python"))
    parser.add_argument("--rows", type=int, default=1 << 26, help="of the table (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.steps < 100:
        parser.error("--steps: the example reports every 50 steps, and two reports are needed")
    missing = [name for name in ("torch",) if importlib.util.find_spec(name) is None]
    missing += [str(path) for path in (arguments.programs / "millrace-server", arguments.package / "millrace") if not path.exists()]
    if missing:
        print(f"skipped: no {', '.join(missing)} (Debian: python3-torch; --package, --programs)")
        return SKIPPED
    try:
        with running_shards(arguments.programs, 9 << 30) as (shards, servers):
            printed = run_ranks(arguments, servers)
            report = report_of(printed, sum(peak_gib(shard) for shard in shards), arguments)
    except subprocess.CalledProcessError as failure:
        print(f"embedding_table: {failure}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report))
        return 0
    print(f"table of {report['table_gib']:.3f} GiB; a worker's memory {report['worker_gib']:.3f} GiB, the shards' {report['shards_gib']:.3f} GiB; "
          f"a step {report['step_ms']:.1f} ms with {report['mb_up']:.3f} MB up and {report['mb_down']:.3f} MB down; "
          f"loss {report['first_loss']:.3f} to {report['last_loss']:.3f}")
    return 0 if report["worker_over_table"] < MEMORY_SHARE_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
