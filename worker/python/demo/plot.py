#!/usr/bin/env python3
"""Draws the curves of a file of torch_demo.py again: plot.py FILE.json FILE.png"""

import json
import sys
from pathlib import Path

COLOURS = {"f32": "tab:gray", "bf16": "tab:orange", "millrace": "tab:blue"}


def draw(report, path):
    """Writes a PNG with the loss against time, and against bytes.

    Raises  ImportError: matplotlib is missing.
    """
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (of_time, of_bytes) = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for run in report["runs"]:
        _, losses, seconds, sent = zip(*run["rows"])
        for axes, values in ((of_time, seconds), (of_bytes, [count / 1e6 for count in sent])):
            axes.plot(values, losses, marker=".", color=COLOURS.get(run["name"]), label=run["label"])
    if report["target"] is not None:
        for axes in (of_time, of_bytes):
            axes.axhline(report["target"], color="black", linewidth=0.8, linestyle=":")
    of_time.set_xlabel("training time in seconds")
    of_bytes.set_xlabel("bytes through all links, in MB")
    of_bytes.set_xscale("symlog", linthresh=1)
    of_bytes.set_xlim(left=0)
    of_time.set_ylabel("held-out loss a character")
    of_time.legend()
    for axes in (of_time, of_bytes):
        axes.grid(alpha=0.3)
    figure.suptitle(report["title"])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if "--help" in sys.argv or "-h" in sys.argv else 2)
    draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2])
