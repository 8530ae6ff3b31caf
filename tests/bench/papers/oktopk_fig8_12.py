#!/usr/bin/python3
"""[OkTopk22, figures 8, 10 and 12]: weak scaling, the time of a step by selection, communication and computation.

    tests/bench/papers/oktopk_fig8_12.py [--quick] [--out FOLDER] [--programs FOLDER]

A step of the LSTM of the traces, density 2 %. Computation: its gradient by torch, selection: `millrace-bench select`, both measured here on
one core. Communication: `millrace-bench simulate`, 16 to 256 ranks at 1 Gbit/s and 25 us a message, of which the sums that ranks compute
are part. DenseOvlp is shown at its bound: the longer of computation and communication.
"""

import statistics
import time

from experiment import Experiment, panels, table
from oktopk_fig4_6 import Lstm
from peers import PROGRAM, select_ms, simulate
import networks

DENSITY = 0.02
NETWORK = {"latency": "25us", "link_rate": "1gbit"}
# Name, allreduce, selection of `millrace-bench select`.
SCHEMES = [("Dense", "dense_rabenseifner", None), ("DenseOvlp", "dense_rabenseifner", None), ("TopkA", "topk_a", "exact"),
           ("TopkDSA", "dsar_split_allgather", "exact"), ("gTopk", "gtopk", "exact"), ("Gaussiank", "gaussian_k", "gaussian"),
           ("Ok-Topk", "oktopk", "threshold_reuse")]


def computation_ms(task, repeats):
    took = []
    for _ in range(repeats):
        begin = time.perf_counter()
        task.gradient()
        took.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(took)


def main():
    here = Experiment("oktopk_fig8_12", "Ok-Topk: weak scaling", "[OkTopk22, 5.4, figures 8, 10 and 12]", PROGRAM)
    sizes = [4, 8] if here.quick else [16, 32, 64, 128, 256]
    task = Lstm(here.seed)
    n = 1 << 14 if here.quick else networks.size(task.model)
    compute = computation_ms(task, 3 if here.quick else 15)
    selecting = select_ms(here, n, DENSITY)
    selecting[None] = 0.0
    rows = []
    for ranks in sizes:
        sums = simulate(here, sorted({allreduce for _, allreduce, _ in SCHEMES}), ranks=ranks, dimension=n, density=DENSITY, steps=2, **NETWORK)
        for name, allreduce, selection in SCHEMES:
            if allreduce not in sums:
                continue
            communication = sums[allreduce]["virtual_ms"]
            hidden = min(compute, communication) if name == "DenseOvlp" else 0.0
            rows.append({"ranks": ranks, "scheme": name, "selection": selecting[selection], "communication": communication - hidden,
                         "computation": compute, "step": selecting[selection] + communication - hidden + compute})
    table(rows, [("scheme", "ms a step", "s"), ("ranks", "ranks", "d"), ("selection", "selection", ".2f"),
                 ("communication", "communication", ".1f"), ("computation", "computation", ".1f"), ("step", "step", ".1f")])
    figure, axes = panels(1, len(sizes), width=3.2, height=3.8)
    for axis, ranks in zip(axes[0], sizes):
        of = [row for row in rows if row["ranks"] == ranks]
        below = [0.0] * len(of)
        for part, colour in (("selection", "tab:green"), ("communication", "tab:red"), ("computation", "tab:blue")):
            axis.bar([row["scheme"] for row in of], [row[part] for row in of], bottom=below, color=colour, label=part)
            below = [low + row[part] for low, row in zip(below, of)]
        axis.set(title=f"{ranks} ranks", ylabel="ms a step" if ranks == sizes[0] else None)
        axis.tick_params(axis="x", rotation=70, labelsize=7)
    axes[0][0].legend(fontsize=7)
    steps = {(row["ranks"], row["scheme"]): row for row in rows}
    last = sizes[-1]
    others = [name for name, _, _ in SCHEMES if name != "Ok-Topk" and (last, name) in steps]
    def over(ranks):
        mine = steps[ranks, "Ok-Topk"]["step"]
        return ", ".join(f"{name} {steps[ranks, name]['step'] / mine:.2f}" for name in others)
    here.compare("Ok-Topk's speed over the others': 1.51 to 8.83 x (VGG-16, 32 GPUs), 1.34 to 7.71 x (LSTM, 64), 3.29 to 12.95 x (BERT, 256)",
                 f"the others' step over Ok-Topk's, {sizes[0]} ranks: {over(sizes[0])}; {last} ranks: {over(last)}",
                 "one model; the network and the time of computation decide")
    def growth(name):
        return steps[last, name]["communication"] / steps[sizes[0], name]["communication"]
    here.compare("allgather-based schemes' communication grows with the ranks, Ok-Topk's hardly",
                 f"{last} over {sizes[0]} ranks: " + ", ".join(f"{name} {growth(name):.1f} x" for name in ("TopkA", "Gaussiank", "Ok-Topk")))
    here.finish(figure, {"n": n, "density": DENSITY, "network": NETWORK, "rows": rows})


if __name__ == "__main__":
    main()
