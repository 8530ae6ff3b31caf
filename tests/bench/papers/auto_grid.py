#!/usr/bin/python3
"""`algorithm = auto` against the best of the algorithms when each is forced, dense ones among them, in the same runs.

    tests/bench/papers/auto_grid.py [--quick] [--out FOLDER] [--programs FOLDER]

`millrace-bench peers` in network namespaces: ranks, rates, sizes and densities crossed. Every cell is one run in which auto measures,
tries out and settles before its steps are timed. A rank to a host; two cores for all of them, as on the machine that ran it.
"""

import sys
from statistics import median

from experiment import SKIPPED, Experiment, panels, table
from peers import PROGRAM, bench, why_no_namespaces

FORCED = ["dense_ring", "dense_recursive_doubling", "dense_rabenseifner", "ssar_recursive_doubling", "ssar_split_allgather",
          "dsar_split_allgather", "sparse_ring", "redsync_allgather"]
WANTED = 1.1
DENSE_BYTES_MAX = 2 ** 24  # of a vector, behind the slower rates: a cell is to take seconds


def cells_of(quick):
    if quick:
        return [(2, "1gbit", 2 ** 12, 0.01), (2, "1gbit", 2 ** 12, 0.5)]
    return [(ranks, rate, n, density) for ranks in (2, 3, 4) for rate in ("100mbit", "1gbit", "none") for n in (2 ** 14, 2 ** 18, 2 ** 22)
            for density in (0.001, 0.01, 0.1, 0.5) if rate != "100mbit" or 4 * n < DENSE_BYTES_MAX]


def repeats_of(here, rate, n):
    """The shorter the steps the more of them."""
    if here.quick:
        return 3
    if n > 2 ** 20 or (rate == "100mbit" and n > 2 ** 16):
        return 15
    return 61 if n > 2 ** 16 else 201


def measure(here, ranks, rate, n, density):
    rows = bench(here, ranks, rate, dimension=n, density=density, algorithm=[*FORCED, "auto"], repeats=repeats_of(here, rate, n), warmup=2)
    times = {name: rows[name]["median_ms"] for name in FORCED}
    best = min(times, key=times.get)
    return {"ranks": ranks, "rate": rate, "n": n, "density": density, "best": best, "best_ms": times[best],
            "auto_ms": rows["auto"]["median_ms"], "chose": rows["auto"].get("choice", "").split(" ")[0],
            "ratio": rows["auto"]["median_ms"] / times[best], "dense_ms": min(times[name] for name in FORCED if name.startswith("dense"))}


def main():
    here = Experiment("auto_grid", "auto against the best forced algorithm", "none: the planner's claim", PROGRAM)
    missing = why_no_namespaces()
    if missing:
        print(f"skipped: {missing}")
        sys.exit(SKIPPED)
    cells = []
    for cell in cells_of(here.quick):
        cells.append(measure(here, *cell))
        print("{ranks} ranks, {rate}, n {n}, density {density:g}: {ratio:.2f}, {chose} against {best}".format(**cells[-1]), flush=True)
    ratios = sorted(cell["ratio"] for cell in cells)
    table(cells, [("ranks", "ranks", ""), ("rate", "rate", ""), ("n", "N", ","), ("density", "density", "g"), ("best", "best", ""),
                  ("best_ms", "ms", ".3f"), ("dense_ms", "dense ms", ".3f"), ("chose", "auto chose", ""), ("auto_ms", "ms", ".3f"),
                  ("ratio", "ratio", ".2f")])
    here.compare(f"within {WANTED} x of the best forced one", f"{len(cells)} cells: median {median(ratios):.2f}, 90 % of them "
                 f"{ratios[int(0.9 * (len(ratios) - 1))]:.2f}, worst {ratios[-1]:.2f}",
                 "two measurements of one algorithm differ as well: the cells where auto chose the best one show by how much")
    alike = [cell["ratio"] for cell in cells if cell["chose"] == cell["best"]]
    if alike:
        print(f"where auto chose the best one: {len(alike)} cells, {min(alike):.2f} to {max(alike):.2f}")
    figure, axes = panels(1, 1, width=5.6)
    axes[0][0].plot(range(len(ratios)), ratios, ".")
    axes[0][0].axhline(WANTED, linewidth=0.8, color="grey")
    axes[0][0].set(title="auto over the best forced algorithm", xlabel="cells, ordered", ylabel="ratio of medians")
    here.finish(figure, {"cells": cells})


if __name__ == "__main__":
    main()
