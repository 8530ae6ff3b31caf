#!/usr/bin/python3
"""[RedSync19, figure 5]: speed-up of training against the number of GPUs, of RedSync and of the dense baseline.

    tests/bench/papers/redsync_fig5.py [--quick] [--out FOLDER] [--programs FOLDER]

`millrace-bench simulate` runs redsync_allgather at 0.1 % and dense_rabenseifner, as the paper has it. The former
gathers pairs and decompresses by adding, which is in its time. N = 2^22, 1.5 us a message, 80 Gbit/s. Selection:
trimmed top-k, measured here by `millrace-bench select`. The computation time of a step is an assumption: a multiple of
the dense allreduce of two ranks. A small one is AlexNet's or the LSTM's case, a large one ResNet-50's.
"""

from experiment import Experiment, panels, table
from peers import PROGRAM, select_ms, simulate

DENSITY = 0.001
NETWORK = {"latency": "1500ns", "link_rate": "80gbit"}
COMPUTATION = [("communication prevails", 0.5), ("computation prevails", 8.0)]  # over the dense allreduce of two ranks


def main():
    here = Experiment("redsync_fig5", "RedSync: scalability", "[RedSync19, 3.3, figure 5]; model: [RedSync19, 2.4]", PROGRAM)
    sizes = [2, 4, 8] if here.quick else [2, 4, 8, 16, 32, 64, 128, 256, 512]
    n = 1 << (14 if here.quick else 22)
    selecting = select_ms(here, n, DENSITY)["trimmed"]
    times = {}
    for ranks in sizes:
        rows = simulate(here, ["redsync_allgather", "dense_rabenseifner"], ranks=ranks, dimension=n, density=DENSITY, steps=1, time_limit="900s", **NETWORK)
        if len(rows) == 2:
            times[ranks] = (rows["redsync_allgather"], rows["dense_rabenseifner"])
    rows = []
    figure, axes = panels(1, 3, width=4.6, height=3.6)
    for axis, (name, factor) in zip(axes[0], COMPUTATION):
        compute = factor * times[sizes[0]][1]["virtual_ms"]
        of = []
        for ranks, (sparse, dense) in times.items():
            redsync = compute + selecting + sparse["virtual_ms"]
            baseline = compute + dense["virtual_ms"]
            of.append({"what": name, "ranks": ranks, "compute": compute, "redsync_ms": redsync, "baseline_ms": baseline,
                       "decompression": sparse["work_ms_max"], "allgather": sparse["virtual_ms"], "dense": dense["virtual_ms"],
                       "redsync": ranks * compute / redsync, "baseline": ranks * compute / baseline, "ratio": baseline / redsync})
        rows += of
        axis.loglog([row["ranks"] for row in of], [row["ranks"] for row in of], "k--", lw=0.8, label="linear")
        for key, colour in (("redsync", "tab:red"), ("baseline", "tab:blue")):
            axis.loglog([row["ranks"] for row in of], [row[key] for row in of], "o-", ms=3, lw=1.2, color=colour, label=key)
        axes[0][2].semilogx([row["ranks"] for row in of], [row["ratio"] for row in of], "o-", ms=3, lw=1.2, label=name)
        axis.set(title=f"computation {factor:g} x the allreduce", xlabel="ranks", ylabel="speed-up")
        axis.legend(fontsize=7)
    axes[0][2].axhline(1, color="black", lw=0.8)
    axes[0][2].set(title="RedSync over the baseline", xlabel="ranks", ylabel="times as fast")
    axes[0][2].legend(fontsize=7)
    for axis in axes[0]:
        axis.set_xticks(list(times), [str(ranks) for ranks in times])
        axis.minorticks_off()
    table(rows, [("what", "ms", "s"), ("ranks", "ranks", "d"), ("compute", "computation", ".2f"), ("allgather", "allgather", ".2f"),
                 ("decompression", "of it adding", ".2f"), ("dense", "dense", ".2f"), ("redsync", "speed-up", ".2f"),
                 ("baseline", "baseline", ".2f"), ("ratio", "ratio", ".2f")])
    few = [row for row in rows if row["what"] == COMPUTATION[0][0]]
    top, last = max(few, key=lambda row: row["ratio"]), few[-1]
    here.compare("RedSync over the baseline is concave: better on 32 GPUs than on 128 (AlexNet)",
                 f"largest at {top['ranks']} ranks ({top['ratio']:.2f} x), {last['ratio']:.2f} x at {last['ranks']}",
                 "the gathered and added entries grow with the ranks, the dense allreduce hardly")
    many = [row for row in rows if row["what"] == COMPUTATION[1][0]]
    here.compare("no gain for ResNet-50, whose computation is long", ", ".join(f"{row['ranks']}: {row['ratio']:.2f}" for row in many))
    here.finish(figure, {"n": n, "density": DENSITY, "network": NETWORK, "selection_ms": selecting, "rows": rows})


if __name__ == "__main__":
    main()
