#!/usr/bin/python3
"""[DeepReduce21, figure 11]: the speed-up of a training step by method and by the rate of the link.

    tests/bench/papers/deepreduce_fig11.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]

The LSTM and the CNN of the traces as real jobs of PyTorch: 4 ranks and 2 shards in network namespaces. Top-r has 10 %
as in the paper. A step has three parts. Computation is a step without an exchange. Coding is the further time of a step
where links have no limit: the processes' work to send and to add is part of it. Communication is the further time that
a limited link costs. Of three seeds, a step's time is the mean. The LSTM behind 100 Mbit/s trains on for its loss. The
198 runs took about 85 minutes on two cores; finished ones are kept in OUT/jobs until the figure is drawn.
"""

from experiment import Experiment, panels, table
from jobs import AXES, Jobs, a_step, curve, draw_curves, mean, need_namespaces
from peers import PROGRAM

RANKS, SHARDS, SEEDS = 4, 2, 3
STEPS, LEARNS, LEARNING_STEPS = 24, ("lstm", "100mbit"), 120
RATES = ["none", "100mbit", "1gbit", "10gbit"]
NETWORKS = {"lstm": "LSTM", "cnn": "CNN"}


def through_shards(codec, select="topk:0.1"):
    return {"kind": "mill", "options": {"select": select, "codec_up": codec}}


SCHEMES = {
    "dense f32": {"kind": "ddp"},
    "dense 16 bits": {"kind": "bf16"},
    "top-r pairs": through_shards("raw+raw"),
    "BF-P0": through_shards("bloom_p0:0.001+raw"),
    "BF-P2 + Fit-Poly": through_shards("bloom_p2:0.001+fit_poly"),
    "BF-P0 + QSGD-8": through_shards("bloom_p0:0.001+qsgd8"),
    "adaptive + QSGD-4": through_shards("adaptive+qsgd4"),
    "top 1 %, QSGD-4": through_shards("adaptive+qsgd4", "topk:0.01"),
}


def trainings(here, jobs, network, name, scheme, rate):
    """Returns the results of one scheme, one for each seed."""
    learns = (network, rate) == LEARNS and scheme["kind"] != "alone"
    steps = 3 if here.quick else LEARNING_STEPS if learns else STEPS
    results = []
    for seed in range(here.seed, here.seed + (1 if here.quick else SEEDS)):
        run = {"network": network, "scheme": scheme, "ranks": RANKS, "shards": SHARDS if scheme["kind"] == "mill" else 0, "rate": rate,
               "steps": steps, "report_every": max(1, steps // 12) if learns else steps, "seed": seed}
        results.append(jobs.run(f"deepreduce-{network}-{rate}-{seed}", run))
        print(f"  {network}, {rate}, seed {seed}, {name}: {step_ms(results[-1:]):.0f} ms a step", flush=True)
    return results


def step_ms(results):
    return 1e3 * mean(a_step(result, "seconds") for result in results)


def rows_of(here, jobs):
    """Returns a row for each network, rate and scheme, and the trainings that learn by scheme."""
    rows, learning = [], {}
    for network in list(NETWORKS)[:1] if here.quick else NETWORKS:
        compute = step_ms(trainings(here, jobs, network, "no exchange", {"kind": "alone"}, "none"))
        schemes = dict(list(SCHEMES.items())[:3]) if here.quick else SCHEMES
        for rate in RATES[:2] if here.quick else RATES:
            for name, scheme in schemes.items():
                results = trainings(here, jobs, network, name, scheme, rate)
                took = [step_ms([result]) for result in results]
                rows.append({"network": network, "rate": rate, "scheme": name, "step": mean(took), "least": min(took), "most": max(took),
                             "computation": compute, "kb": mean(a_step(result, "bytes") for result in results) / 1e3 / RANKS})
                if (network, rate) == LEARNS:
                    learning[name] = results
    of = {(row["network"], row["rate"], row["scheme"]): row["step"] for row in rows}
    for row in rows:
        unlimited = of[row["network"], "none", row["scheme"]]
        row["coding"] = max(0.0, unlimited - row["computation"])
        row["communication"] = max(0.0, row["step"] - unlimited)
        row["speed_up"] = of[row["network"], row["rate"], "dense f32"] / row["step"]
    return rows, learning


def plot_step(axis, of):
    """Draws the parts of a step, a bar for each scheme."""
    below = [0.0] * len(of)
    for part, colour in (("computation", "tab:blue"), ("coding", "tab:green"), ("communication", "tab:red")):
        axis.bar([row["scheme"] for row in of], [row[part] for row in of], bottom=below, color=colour, label=part)
        below = [low + row[part] for low, row in zip(below, of)]
    axis.set(title=f"{NETWORKS[of[0]['network']]}, {of[0]['rate']}", ylabel="ms a step")
    axis.set_ylim(0, 1.35 * max(below))  # room for the legend
    axis.tick_params(axis="x", rotation=70, labelsize=6)
    axis.legend(fontsize=6, ncol=3, loc="upper center")


def plot_loss(axis, learning, key):
    """Draws the loss of each scheme against a key of the rows."""
    draw_curves(axis, learning, key, lambda results: curve(results, "loss"), lambda name: name.startswith("dense"))
    axis.set(title=f"{NETWORKS[LEARNS[0]]}, {LEARNS[1]}", ylabel="held-out loss")
    axis.legend(fontsize=6)


def plot(rows, learning):
    networks = list(dict.fromkeys(row["network"] for row in rows))
    rates = [rate for rate in dict.fromkeys(row["rate"] for row in rows) if rate != "none"]
    figure, axes = panels(len(networks) + 1, max(len(rates), len(AXES)), width=4.4, height=3.8)
    for line, network in zip(axes, networks):
        for axis, rate in zip(line, rates):
            plot_step(axis, [row for row in rows if (row["network"], row["rate"]) == (network, rate)])
    for axis, key in zip(axes[-1], AXES):
        plot_loss(axis, learning, key)
    return figure


def speeds(rows, rate):
    """Returns the text of the speeds over dense f32, a piece for each method, and of what bounds them, one for each network."""
    of = {(row["network"], row["scheme"]): row for row in rows if row["rate"] == rate}
    networks = list(dict.fromkeys(network for network, _ in of))
    schemes = list(dict.fromkeys(scheme for _, scheme in of))
    pieces = [f"{scheme}: " + ", ".join(f"{NETWORKS[network]} {of[network, scheme]['speed_up']:.2f}" for network in networks)
              for scheme in schemes if scheme != "dense f32"]
    bounds = []
    for network in networks:
        codings = [of[network, scheme]["coding"] for scheme in schemes if not scheme.startswith("dense")]
        bounds.append(f"{NETWORKS[network]}: {of[network, 'dense f32']['communication']:.0f}, and {min(codings):.0f} to {max(codings):.0f}")
    return "; ".join(pieces), ". ".join(bounds)


def compare(here, rows, learning):
    for rate, claim in (("100mbit", "at 100 Mbit/s all methods are faster than the dense baseline"), ("1gbit", "at 1 Gbit/s the gain is smaller"),
                        ("10gbit", "at 10 Gbit/s compression has no benefit")):
        pieces, bounds = speeds(rows, rate)
        if pieces:
            here.compare(claim, f"speed over dense f32; {pieces}",
                         f"communication of dense f32 and coding of the methods, in ms of a step. {bounds}")
    ends = "; ".join(f"{name} {mean(result['rows'][-1]['loss'] for result in results):.3f}" for name, results in learning.items())
    steps = next(iter(learning.values()))[0]["rows"][-1]["step"]
    here.compare("the methods reach the quality of the baseline", f"held-out loss of the LSTM after {steps} steps; {ends}")


def main():
    here = Experiment("deepreduce_fig11", "DeepReduce: speed-up by method and link", "[DeepReduce21, 6.3, figure 11]", PROGRAM)
    need_namespaces()
    jobs = Jobs(here)
    rows, learning = rows_of(here, jobs)
    table(rows, [("network", "", "s"), ("rate", "link", "s"), ("scheme", "scheme", "s"), ("step", "ms a step", ".0f"), ("computation", "computation", ".0f"),
                 ("coding", "coding", ".0f"), ("communication", "communication", ".0f"), ("kb", "kB a rank and step", ".0f"), ("speed_up", "speed-up", ".2f")])
    compare(here, rows, learning)
    here.finish(plot(rows, learning), {"ranks": RANKS, "shards": SHARDS, "steps": STEPS, "commits": sorted(jobs.commits), "rows": rows, **jobs.add_notes(learning["dense 16 bits"][0]["note"]),
                                       "curves": {name: [result["rows"] for result in results] for name, results in learning.items()}})


if __name__ == "__main__":
    main()
