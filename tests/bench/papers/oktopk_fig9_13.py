#!/usr/bin/python3
"""[OkTopk22, figures 9, 11 and 13]: quality against the time of training, for a CNN, an LSTM and a transformer.

    tests/bench/papers/oktopk_fig9_13.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]

Seven schemes of the paper, and dense in 16 bits, as real jobs of PyTorch: a rank is a process in a network namespace
behind 100 Mbit/s. 4 and 8 ranks, three seeds. All schemes of a network train the same number of steps on the same
batches. Sparse schemes are millrace.State(path="peers"); dense ones are DDP over gloo. The runs take some three hours
on two cores. Finished ones are kept in out/papers/jobs, and an interrupted script continues.
"""

from experiment import Experiment, panels, table
from jobs import Jobs, a_step, mean, need_namespaces, seconds_to
from peers import PROGRAM

RATE = "100mbit"
SEEDS = 3
# Name, steps, density, paper's figure.
NETWORKS = [("cnn", 200, 0.01, "VGG-16, Cifar-10"), ("lstm", 200, 0.02, "LSTM, AN4"), ("transformer", 200, 0.01, "BERT, Wikipedia")]
DENSE = {"Dense": {"kind": "flat"}, "DenseOvlp": {"kind": "ddp"}, "Dense 16 bits": {"kind": "ddp16"}}
SPARSE = {"TopkA": "topk_a", "TopkDSA": "dsar_split_allgather", "gTopk": "gtopk", "Gaussiank": "gaussian_k", "Ok-Topk": "oktopk"}
NEAR = 0.98  # of the quality that the dense run ends with: the quality that times are compared at


def schemes(network, density):
    """Returns {name: scheme of job_rank.py}. The LSTM's gradients are clipped: locally, where a residual keeps the rest."""
    clip = {"clip": 0.25} if network == "lstm" else {}
    sparse = {name: {"kind": "mill", "options": {"path": "peers", "allreduce": allreduce, "select": f"topk:{density}", **clip}}
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


def row_of(network, ranks, name, results, target):
    times = [seconds_to(result["rows"], target) for result in results]
    return {"network": network, "ranks": ranks, "scheme": name, "step_ms": 1e3 * mean(a_step(result, "seconds") for result in results),
            "step_kb": mean(a_step(result, "bytes") for result in results) / 1e3 / ranks,
            "loss": mean(result["rows"][-1]["loss"] for result in results), "quality": mean(result["rows"][-1]["quality"] for result in results),
            "seconds": None if None in times else mean(times), "parameters": results[0]["parameters"]}


def rows_of(results, ranks):
    rows = []
    for network in dict.fromkeys(network for network, _ in results):
        target = NEAR * mean(result["rows"][-1]["quality"] for result in results[network, "Dense"])
        rows += [row_of(network, ranks, name, of, target) for (of_network, name), of in results.items() if of_network == network]
    return rows


def plot(all_results):
    names = list(dict.fromkeys(network for results in all_results.values() for network, _ in results))
    figure, axes = panels(len(all_results), len(names), width=5.0, height=3.6)
    for line, (ranks, results) in zip(axes, all_results.items()):
        for axis, network in zip(line, names):
            for (of_network, name), of in results.items():
                if of_network == network:
                    axis.plot([row["seconds"] for row in of[0]["rows"]], [row["quality"] for row in of[0]["rows"]],
                              lw=2.0 if name == "Ok-Topk" else 1.0, ls="--" if name in DENSE else "-", label=name)
            axis.set(title=f"{network}, {ranks} ranks, {RATE}", xlabel="seconds of training", ylabel="held-out accuracy")
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


def compare(here, rows):
    here.compare("Ok-Topk has the best time to solution for all three networks: the others take 1.44 to 12.95 x its time",
                 f"time to {NEAR:.0%} of the dense quality, over Ok-Topk's; {ratios(rows, 'seconds')}")
    here.compare("a step of Ok-Topk takes the least time", f"a step's time over Ok-Topk's; {ratios(rows, 'step_ms')}",
                 "each parameter has a sum of its own, whose messages cost more than the paper's one sum where tensors are small")
    ends = []
    for network, ranks in dict.fromkeys((row["network"], row["ranks"]) for row in rows):
        of = [row for row in rows if (row["network"], row["ranks"]) == (network, ranks)]
        ends.append(f"{network}, {ranks} ranks: " + ", ".join(f"{row['scheme']} {100 * row['quality']:.1f} %" for row in of))
    here.compare("the quality of Ok-Topk is close to that of dense SGD", "held-out accuracy after the same steps; " + "; ".join(ends),
                 "these are the first epochs: a residual delays the first steps of a sparse scheme")


def main():
    here = Experiment("oktopk_fig9_13", "Ok-Topk: quality against the time of training", "[OkTopk22, 5.4, figures 9, 11 and 13]", PROGRAM)
    need_namespaces()
    jobs = Jobs(here)
    all_results = {ranks: trainings(here, jobs, ranks, here.quick) for ranks in ([2] if here.quick else [4, 8])}
    rows = [row for ranks, results in all_results.items() for row in rows_of(results, ranks)]
    table(rows, [("network", "", "s"), ("ranks", "ranks", "d"), ("scheme", "scheme", "s"), ("step_ms", "ms a step", ".0f"),
                 ("step_kb", "kB a rank and step", ".0f"), ("loss", "loss", ".3f"), ("quality", "accuracy", ".3f"), ("seconds", "s to target", ".1f")])
    compare(here, rows)
    here.finish(plot(all_results), {"rate": RATE, "commits": sorted(jobs.commits), "rows": rows,
                                    "curves": {f"{network}, {ranks} ranks, {name}": [result["rows"] for result in of]
                                               for ranks, results in all_results.items() for (network, name), of in results.items()}})


if __name__ == "__main__":
    main()
