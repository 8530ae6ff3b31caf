#!/usr/bin/python3
"""[OkTopk22, figure 7]: what its two ways of balancing are worth, by the number of ranks.

    tests/bench/papers/oktopk_fig7.py [--quick] [--out FOLDER] [--programs FOLDER]

`millrace-bench simulate`, oktopk whole, at 1 %, 1.5 us a message and 10 Gbit/s. Left: regions of balanced boundaries
(section 3.1.1) against regions of one length (naive reduce), for entries that lie uniformly, in clusters, and in a sixteenth of the
dimension. Right: balancing before the allgatherv (section 3.1.2) against the direct one, where entries lie uniformly and the large
values in a sixteenth of the dimension: one rank, or a sixteenth of them, has the result.
"""

from experiment import Experiment, panels, table
from peers import PROGRAM, simulate

NETWORK = {"density": 0.01, "latency": "1500ns", "link_rate": "10gbit", "steps": 2}
KINDS = [("uniform", "averaged"), ("clustered", "averaged"), ("one_region", "averaged"), ("one_region", "pooled")]


def run(here, ranks, n, **options):
    return simulate(here, ["oktopk"], ranks=ranks, dimension=n, **NETWORK, **options).get("oktopk")


def reduce_rows(here, sizes, n):
    rows = []
    for distribution, boundaries in KINDS:
        for ranks in sizes:
            naive = run(here, ranks, n, distribution=distribution, boundaries="equal")
            balanced = run(here, ranks, n, distribution=distribution, boundaries=boundaries)
            if naive and balanced:
                rows.append({"what": f"{distribution}, {boundaries}", "ranks": ranks, "naive": naive["virtual_ms"],
                             "balanced": balanced["virtual_ms"], "speedup": naive["virtual_ms"] / balanced["virtual_ms"],
                             "naive_words": naive["words_over_bound"], "balanced_words": balanced["words_over_bound"]})
    return rows


def gather_rows(here, sizes, n):
    rows = []
    for ranks in sizes:
        same = {"distribution": "hot_region"}
        direct, balanced = run(here, ranks, n, **same, balance_ratio="inf"), run(here, ranks, n, **same, balance_ratio=4)
        if direct and balanced:
            rows.append({"what": "result in one region", "ranks": ranks, "naive": direct["virtual_ms"], "balanced": balanced["virtual_ms"],
                         "speedup": direct["virtual_ms"] / balanced["virtual_ms"], "naive_kb": direct["bytes_max"] * 1e-3,
                         "balanced_kb": balanced["bytes_max"] * 1e-3})
    return rows


def main():
    here = Experiment("oktopk_fig7", "Ok-Topk: balancing", "[OkTopk22, 5.3, figure 7]", PROGRAM)
    sizes = [4, 8] if here.quick else [4, 16, 32, 64, 256]
    n = 1 << (14 if here.quick else 20)
    reduced, gathered = reduce_rows(here, sizes, n), gather_rows(here, sizes, n)
    print("split and reduce: regions of one length (naive) and balanced ones; the whole allreduce, ms; words of the busiest rank over 6k(P-1)/P")
    table(reduced, [("what", "", "s"), ("ranks", "ranks", "d"), ("naive", "naive", ".3g"), ("balanced", "balanced", ".3g"),
                    ("speedup", "speed-up", ".2f"), ("naive_words", "words, naive", ".2f"), ("balanced_words", "balanced", ".2f")])
    print("allgatherv: direct, and balanced before; ms; kB sent by the rank that sends most")
    table(gathered, [("what", "", "s"), ("ranks", "ranks", "d"), ("naive", "direct", ".3g"), ("balanced", "balanced", ".3g"),
                     ("speedup", "speed-up", ".2f"), ("naive_kb", "kB, direct", ".0f"), ("balanced_kb", "balanced", ".0f")])
    figure, axes = panels(1, 2, width=5.2, height=3.6)
    for what in dict.fromkeys(row["what"] for row in reduced):
        of = [row for row in reduced if row["what"] == what]
        axes[0][0].plot([row["ranks"] for row in of], [row["speedup"] for row in of], "o-", ms=3, lw=1.2, label=what)
    axes[0][1].plot([row["ranks"] for row in gathered], [row["speedup"] for row in gathered], "o-", ms=3, lw=1.2, label=gathered[0]["what"])
    for axis, title in ((axes[0][0], "(a) balanced over naive reduce"), (axes[0][1], "(b) balancing and allgatherv over direct")):
        axis.axhline(1, color="black", lw=0.8)
        axis.set(title=title, xlabel="ranks", ylabel="speed-up of the allreduce", xscale="log")
        axis.set_xticks(sizes, [str(ranks) for ranks in sizes])
        axis.minorticks_off()
        axis.legend(fontsize=7)
    def speedups(rows, what):
        return ", ".join(f"{row['ranks']}: {row['speedup']:.2f}" for row in rows if row["what"] == what)
    here.compare("(a) 1.13 to 1.75 x from 16 to 64 GPUs (BERT, 1 %), more with more of them",
                 "; ".join(f"{what}: {speedups(reduced, what)}" for what in dict.fromkeys(row["what"] for row in reduced)),
                 "the paper has one model's gradients, which are neither: its gain lies between. Uniform entries have nothing to balance")
    here.compare("(b) 1.12 to 1.43 x from 16 to 64 GPUs, in the steps where balancing is triggered", speedups(gathered, "result in one region"),
                 "of the whole allreduce")
    here.finish(figure, {"network": NETWORK, "n": n, "reduce": reduced, "gather": gathered})


if __name__ == "__main__":
    main()
