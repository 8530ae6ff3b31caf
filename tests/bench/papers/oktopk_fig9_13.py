#!/usr/bin/python3
"""[OkTopk22, figures 9, 11 and 13]: quality against the time of training, for a CNN, an LSTM and a transformer.

    tests/bench/papers/oktopk_fig9_13.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]

Seven schemes of the paper, and dense in 16 bits, as real jobs of PyTorch: a rank is a process in a network namespace
behind 100 Mbit/s. 4 and 8 ranks, three seeds. All schemes of a network train the same number of steps on the same
batches. Sparse schemes are millrace.State(path="peers"); dense ones are DDP over gloo. The runs take some three hours
on two cores. Finished ones are kept in out/papers/jobs, and an interrupted script continues.
"""

from experiment import Experiment, panels, table
from jobs import AXES, Jobs, a_step, curve, mean, need_namespaces, seconds_to
from peers import PROGRAM

RATE, BITS_A_MS = "100mbit", 1e5
SEEDS = 3
# Name, steps, density, paper's figure.
NETWORKS = [("cnn", 200, 0.01, "VGG-16, Cifar-10"), ("lstm", 200, 0.02, "LSTM, AN4"), ("transformer", 200, 0.01, "BERT, Wikipedia")]
DENSE = {"Dense": {"kind": "flat"}, "DenseOvlp": {"kind": "ddp"}, "Dense 16 bits": {"kind": "ddp16"}}
SPARSE = {"TopkA": "topk_a", "TopkDSA": "dsar_split_allgather", "gTopk": "gtopk", "Gaussiank": "gaussian_k", "Ok-Topk": "oktopk"}
ALONE, ALONE_STEPS = {"kind": "alone"}, 20  # training without an exchange: the computation in a step
NEAR = 0.98  # of the quality that the dense run ends with: the quality that times are compared at


def schemes(network, density):
    """Returns {name: scheme of job_rank.py}. The LSTM's gradients are clipped: locally, where a residual keeps the rest."""
    clip = {"clip": 0.25} if network == "lstm" else {}
    sparse = {name: {"kind": "mill", "options": {"path": "peers", "insecure": True, "allreduce": allreduce, "select": f"topk:{density}", **clip}}
              for name, allreduce in SPARSE.items()}
    return DENSE | sparse


def trainings(here, jobs, ranks, quick):
    """Returns {(network, scheme): [result of each seed]}."""
    results = {}
    for network, steps, density, _ in NETWORKS[:1] if quick else NETWORKS:
        steps = 4 if quick else steps
        for seed in range(here.seed, here.seed + (1 if quick else SEEDS)):
            for name, scheme in schemes(network, density).items():
                run = {"network": network, "scheme": scheme, "ranks": ranks, "shards": 0, "rate": RATE, "steps": steps,
                       "report_every": max(1, steps // 20), "seed": seed}
                result = jobs.run(f"oktopk-{network}-{ranks}-{seed}", run)
                results.setdefault((network, name), []).append(result)
                print(f"  {network}, {ranks} ranks, seed {seed}, {name}: {result['rows'][-1]['seconds']:.0f} s", flush=True)
    return results


def computation_ms(jobs, network, ranks):
    """Returns the milliseconds of a step without an exchange."""
    run = {"network": network, "scheme": ALONE, "ranks": ranks, "shards": 0, "rate": RATE, "steps": ALONE_STEPS, "report_every": ALONE_STEPS, "seed": 1}
    return 1e3 * a_step(jobs.run(f"oktopk-{network}-{ranks}-alone", run), "seconds")


def row_of(network, ranks, name, results, target, computation):
    """Returns a row of one scheme: means over its seeds. link_ms: of a step's bytes at the link's rate."""
    times = [seconds_to(result["rows"], target) for result in results]
    kilobytes = mean(a_step(result, "bytes") for result in results) / 1e3 / ranks
    qualities = [result["rows"][-1]["quality"] for result in results]
    return {"network": network, "ranks": ranks, "scheme": name, "step_ms": 1e3 * mean(a_step(result, "seconds") for result in results),
            "computation_ms": computation, "link_ms": 8e3 * kilobytes / BITS_A_MS, "step_kb": kilobytes,
            "loss": mean(result["rows"][-1]["loss"] for result in results), "quality": mean(qualities), "least": min(qualities), "most": max(qualities),
            "seconds": None if None in times else mean(times), "parameters": results[0]["parameters"]}


def rows_of(jobs, results, ranks):
    rows = []
    for network in dict.fromkeys(network for network, _ in results):
        target = NEAR * mean(result["rows"][-1]["quality"] for result in results[network, "Dense"])
        computation = computation_ms(jobs, network, ranks)
        rows += [row_of(network, ranks, name, of, target, computation) for (of_network, name), of in results.items() if of_network == network]
    return rows


def plot(all_results):
    """Returns the figure: a line of panels for each number of ranks and each of seconds and bytes, a column for each network."""
    names = list(dict.fromkeys(network for results in all_results.values() for network, _ in results))
    keys = ("seconds", "bytes")
    figure, axes = panels(len(keys) * len(all_results), len(names), width=5.0, height=3.4)
    for line, (key, (ranks, results)) in zip(axes, ((key, item) for key in keys for item in all_results.items())):
        for axis, network in zip(line, names):
            for (of_network, name), of in results.items():
                if of_network == network:
                    axis.plot(curve(of, key), curve(of, "quality"), lw=2.0 if name == "Ok-Topk" else 1.0, ls="--" if name in DENSE else "-", label=name)
            axis.set(title=f"{network}, {ranks} ranks, {RATE}", xlabel=AXES[key], ylabel="held-out accuracy")
            if key == "bytes":
                axis.set_xscale("log")
            axis.legend(fontsize=6)
    return figure


def ratios(rows, key):
    """Returns the text of each other scheme's value over Ok-Topk's, a piece for each network and number of ranks."""
    pieces = []
    for network, ranks in dict.fromkeys((row["network"], row["ranks"]) for row in rows):
        of = {row["scheme"]: row for row in rows if (row["network"], row["ranks"]) == (network, ranks)}
        if "Ok-Topk" in of and of["Ok-Topk"][key]:
            over = ", ".join(f"{name} {row[key] / of['Ok-Topk'][key]:.2f}" if row[key] else f"{name} never" for name, row in of.items() if name != "Ok-Topk")
            pieces.append(f"{network}, {ranks} ranks: {over}")
    return "; ".join(pieces)


def parts(rows):
    """Returns the text of the parts of Ok-Topk's step, a piece for each network and number of ranks."""
    return "; ".join(f"{row['network']}, {row['ranks']} ranks: {row['computation_ms']:.0f}, {row['link_ms']:.0f} and "
                     f"{row['step_ms'] - row['computation_ms'] - row['link_ms']:.0f}" for row in rows if row["scheme"] == "Ok-Topk")


def gaps(all_results):
    """Returns the text of the points that Ok-Topk is behind dense SGD, a piece for each network and number of ranks."""
    pieces = []
    for ranks, results in all_results.items():
        for network in dict.fromkeys(network for network, _ in results):
            dense, sparse = curve(results[network, "Dense"], "quality"), curve(results[network, "Ok-Topk"], "quality")
            half, end = (100 * (dense[at] - sparse[at]) for at in (len(dense) // 2, -1))
            pieces.append(f"{network}, {ranks} ranks: {half:.1f} and {end:.1f}")
    return "; ".join(pieces)


def compare(here, rows, all_results):
    here.compare("Ok-Topk has the best time to solution for all three networks: the others take 1.44 to 12.95 x its time",
                 f"time to {NEAR:.0%} of the dense quality, over Ok-Topk's; {ratios(rows, 'seconds')}")
    here.compare("a step of Ok-Topk takes the least time", f"a step's time over Ok-Topk's; {ratios(rows, 'step_ms')}",
                 f"of a step of Ok-Topk are computation, its bytes at the link's rate, and the rest, in ms; {parts(rows)}")
    ends = []
    for network, ranks in dict.fromkeys((row["network"], row["ranks"]) for row in rows):
        of = [row for row in rows if (row["network"], row["ranks"]) == (network, ranks)]
        ends.append(f"{network}, {ranks} ranks: " + ", ".join(f"{row['scheme']} {100 * row['quality']:.1f} % ({100 * row['least']:.1f} to {100 * row['most']:.1f})"
                                                                         for row in of))
    here.compare("the quality of Ok-Topk is close to that of dense SGD", "held-out accuracy after the same steps; " + "; ".join(ends),
                 f"a residual delays a sparse scheme's steps: points that Ok-Topk is behind dense at half of the steps, and at their end; {gaps(all_results)}")


def main():
    here = Experiment("oktopk_fig9_13", "Ok-Topk: quality against the time of training", "[OkTopk22, 5.4, figures 9, 11 and 13]", PROGRAM)
    need_namespaces()
    jobs = Jobs(here)
    all_results = {ranks: trainings(here, jobs, ranks, here.quick) for ranks in ([2] if here.quick else [4, 8])}
    rows = [row for ranks, results in all_results.items() for row in rows_of(jobs, results, ranks)]
    table(rows, [("network", "", "s"), ("ranks", "ranks", "d"), ("scheme", "scheme", "s"), ("step_ms", "ms a step", ".0f"),
                 ("computation_ms", "computation", ".0f"), ("link_ms", "bytes", ".0f"), ("step_kb", "kB a rank and step", ".0f"), ("loss", "loss", ".3f"), ("quality", "accuracy", ".3f"), ("seconds", "s to target", ".1f")])
    compare(here, rows, all_results)
    here.finish(plot(all_results), {"rate": RATE, "commits": sorted(jobs.commits), "rows": rows,
                                    "curves": {f"{network}, {ranks} ranks, {name}": [result["rows"] for result in of]
                                               for ranks, results in all_results.items() for (network, name), of in results.items()}})


if __name__ == "__main__":
    main()
