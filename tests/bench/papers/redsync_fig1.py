#!/usr/bin/python3
"""[RedSync19, figure 1]: the cost of selecting the top 0.1 % by size of the message, beside that of communication.

    tests/bench/papers/redsync_fig1.py [--quick] [--out FOLDER] [--programs FOLDER]

Left: every selection of `millrace-bench select` on Gaussian data, one thread, the time of 100 operations as the paper
has it. Right: the same by millrace_replay on uniform data, which the paper draws. Communication: 4 bytes an entry once
over the link.
"""

import json
import subprocess

from experiment import Experiment, Replay, np, panels, table

DENSITY = 0.001
OPERATIONS = 100
LINKS = [("3.5 GB/s (the paper's)", 3.5e9), ("10 Gbit/s", 1.25e9), ("1 Gbit/s", 0.125e9)]
UNIFORM = [("radix", "radix:0.001"), ("exact", "topk:0.001"), ("trimmed", "trimmed:0.001"), ("binary_search", "binary_search:0.001"),
           ("sampled", "sampled:0.001:5"), ("threshold_reuse", "threshold_reuse:0.001:32")]
FIRST = ["radix", "exact", "trimmed", "binary_search", "sampled", "threshold_reuse"]


def bench(here, n, repeats):
    """{algorithm: row} of the benchmark."""
    command = [str(here.folder / "millrace-bench"), "select", "--dimension", str(n), "--density", str(DENSITY), "--repeats", str(repeats),
               "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["algorithm"]: row for row in json.loads(ended.stdout.strip().split("\n")[-1])["rows"]}


def uniform_ms(here, n, texts, steps):
    """{algorithm: (mean ms of a step, entries over k)}; reusing selections are asked as often as their period."""
    draw = np.random.default_rng(here.seed)
    values = draw.random(n, np.float32)
    result = {}
    for name, text, _, _ in texts:
        with Replay(here.folder, n, text) as replay:
            costs = [replay.step(values)[1] for _ in range(steps)]
        k = max(1, int(np.ceil(DENSITY * n)))
        result[name] = (float(np.mean([cost["select_ns"] for cost in costs])) / 1e6, costs[-1]["selected"] / k)
    return result


def plot(sizes, gaussian, uniform_sizes, uniform):
    figure, axes = panels(1, 2, width=5.6, height=4.2)
    colours = {}
    for axis, of_n, ns, title in ((axes[0][0], gaussian, sizes, "Gaussian, millrace-bench select"),
                                  (axes[0][1], uniform, uniform_sizes, "uniform [0, 1), millrace_replay")):
        names = [name for name in of_n[ns[-1]] if name not in ("read_pass", "threshold", "bucket_topk")]
        for name in sorted(names, key=lambda name: (FIRST + [name]).index(name)):
            ms = [of_n[n][name] for n in ns]
            line, = axis.loglog([4 * n / 1e6 for n in ns], [OPERATIONS * value / 1e3 for value in ms], "o-" if name in FIRST else "^--",
                                ms=3, lw=1.3, label=name, color=colours.get(name))
            colours[name] = line.get_color()
        if "read_pass" in of_n[ns[-1]]:
            axis.loglog([4 * n / 1e6 for n in ns], [OPERATIONS * of_n[n]["read_pass"] / 1e3 for n in ns], color="grey", label="read pass")
        for (name, rate), style in zip(LINKS, ("-", "--", ":")):
            axis.loglog([4 * n / 1e6 for n in ns], [OPERATIONS * 4 * n / rate for n in ns], "k" + style, lw=0.9, label=f"comm. {name}")
        axis.set(xlabel="message, MB", title=title)
        axis.legend(fontsize=6.5, ncol=2)
    axes[0][0].set_ylabel(f"s for {OPERATIONS} operations, one thread")
    figure.suptitle("[RedSync19, figure 1]: cost of the top 0.1 %", fontsize=10)
    return figure


def compare(here, rows, uniform, n, uniform_n):
    ms = {name: row["ms"] for name, row in rows.items()}
    exact = "radix" if "radix" in ms else "exact"
    ratios = [f"{name} {ms[exact] / ms[name]:.2f}" for name in ("trimmed", "binary_search", "sampled", "threshold_reuse") if name in ms]
    here.compare("64 MB: trimmed is 38.13 times, sampled binary search 16.17 times as fast as radixSelect (Titan X)",
                 f"{4 * n / 2**20:.0f} MiB, times as fast as {exact}: {', '.join(ratios)}",
                 "on a processor the radix select already reads the array about twice. A read pass is the floor, so no method can be "
                 f"more than {ms[exact] / ms['read_pass']:.1f} times as fast. The paper's radixSelect on a GPU scatters in every round.")
    comm = 4 * n / LINKS[0][1] * 1e3
    here.compare("radixSelect sometimes takes longer than synchronizing the message at 3.5 GB/s",
                 f"{exact} {ms[exact]:.1f} ms, the message {comm:.1f} ms at 3.5 GB/s and {4 * n / LINKS[2][1] * 1e3:.0f} ms at 1 Gbit/s",
                 "4 n bytes once; an allreduce sends them about twice")
    over = {name: row["selected_over_k"] for name, row in rows.items() if name in ("binary_search", "sampled")}
    if over:
        here.compare("binary search selects between k and 2k", ", ".join(f"{name} {value:.2f} k" for name, value in over.items()))
    trimmed = [f"{name} {value[0]:.2f} ms, {value[1]:.2f} k" for name, value in uniform[uniform_n].items()]
    here.compare("the data are drawn from a uniform distribution", f"{4 * uniform_n / 2**20:.0f} MiB: {'; '.join(trimmed)}",
                 "there mean + 0.8 (max - mean) leaves a tenth of all entries: trimming has least to trim where the paper measured it")


def main():
    here = Experiment("redsync_fig1", "RedSync: cost of selecting against the message's size", "[RedSync19, 2.1, figure 1]")
    powers = [14, 16] if here.quick else [14, 16, 18, 20, 22, 24]
    sizes = [1 << power for power in powers]
    measured = {n: bench(here, n, 3 if here.quick else 7) for n in sizes}
    texts = here.known([(name, text, "raw+raw", False) for name, text in UNIFORM])
    uniform_sizes = sizes if here.quick else sizes[:-1]
    uniform = {n: uniform_ms(here, n, texts, 5 if here.quick else 10) for n in uniform_sizes}
    rows = [{"data": "Gaussian", "n": n, "algorithm": name, **row} for n in sizes for name, row in measured[n].items()]
    rows += [{"data": "uniform", "n": n, "algorithm": name, "ms": ms, "selected_over_k": over}
             for n in uniform_sizes for name, (ms, over) in uniform[n].items()]
    table(rows, [("data", "data", "s"), ("n", "n", "d"), ("algorithm", "algorithm", "s"), ("ms", "ms", ".3f"),
                 ("ratio_to_read_pass", "read passes", ".2f"), ("selected_over_k", "selected / k", ".3f")])
    compare(here, measured[sizes[-1]], uniform, sizes[-1], uniform_sizes[-1])
    gaussian = {n: {name: row["ms"] for name, row in of_n.items()} for n, of_n in measured.items()}
    here.finish(plot(sizes, gaussian, uniform_sizes, {n: {name: ms for name, (ms, _) in of_n.items()} for n, of_n in uniform.items()}),
                {"density": DENSITY, "rows": rows})


if __name__ == "__main__":
    main()
