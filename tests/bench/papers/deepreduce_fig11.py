#!/usr/bin/python3
"""[DeepReduce21, figure 11]: the speed-up of a training step by method and by the rate of the link.

    tests/bench/papers/deepreduce_fig11.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]

The LSTM and the CNN of the traces as real jobs of PyTorch: 4 ranks and 2 shards in network namespaces. Top-r has 10 %
as in the paper. A step has three parts. Computation is a step without an exchange. Coding is the further time of a step
where links have no limit: the processes' work to send and to add is part of it. Communication is the further time that
a limited link costs. The runs take half an hour on two cores; finished ones are kept in out/papers/jobs.
"""

from experiment import Experiment, panels, table
from jobs import Jobs, a_step, need_namespaces
from peers import PROGRAM

RANKS, SHARDS, STEPS = 4, 2, 24
RATES = ["none", "100mbit", "1gbit", "10gbit"]
NETWORKS = {"lstm": "LSTM", "cnn": "CNN"}


def through_shards(codec, select="topk:0.1"):
    return {"kind": "mill", "options": {"select": select, "codec_up": codec}}


SCHEMES = {
    "dense f32": {"kind": "ddp"},
    "dense 16 bits": {"kind": "ddp16"},
    "top-r, raw pairs": through_shards("raw+raw"),
    "BF-P0": through_shards("bloom_p0:0.001+raw"),
    "BF-P2 + Fit-Poly": through_shards("bloom_p2:0.001+fit_poly"),
    "BF-P0 + QSGD 8": through_shards("bloom_p0:0.001+qsgd8"),
    "adaptive + QSGD 4": through_shards("adaptive+qsgd4"),
    "top 1 %, adaptive + QSGD 4": through_shards("adaptive+qsgd4", "topk:0.01"),
}


def step_ms(here, jobs, network, name, scheme, rate):
    """Returns milliseconds a step."""
    run = {"network": network, "scheme": scheme, "ranks": RANKS, "shards": SHARDS if scheme["kind"] == "mill" else 0, "rate": rate,
           "steps": 3 if here.quick else STEPS, "report_every": 1000, "seed": here.seed}
    took = 1e3 * a_step(jobs.run(f"deepreduce-{network}-{rate}", run), "seconds")
    print(f"  {NETWORKS[network]}, {rate}, {name}: {took:.0f} ms a step", flush=True)
    return took


def rows_of(here, jobs):
    rows = []
    for network in list(NETWORKS)[:1] if here.quick else NETWORKS:
        compute = step_ms(here, jobs, network, "no exchange", {"kind": "alone"}, "none")
        schemes = dict(list(SCHEMES.items())[:3]) if here.quick else SCHEMES
        for rate in RATES[:2] if here.quick else RATES:
            for name, scheme in schemes.items():
                took = step_ms(here, jobs, network, name, scheme, rate)
                rows.append({"network": network, "rate": rate, "scheme": name, "step": took, "computation": compute})
    of = {(row["network"], row["rate"], row["scheme"]): row["step"] for row in rows}
    for row in rows:
        unlimited = of[row["network"], "none", row["scheme"]]
        row["coding"] = max(0.0, unlimited - row["computation"])
        row["communication"] = max(0.0, row["step"] - unlimited)
        row["speed_up"] = of[row["network"], row["rate"], "dense f32"] / row["step"]
    return rows


def plot(rows):
    networks = list(dict.fromkeys(row["network"] for row in rows))
    rates = [rate for rate in dict.fromkeys(row["rate"] for row in rows) if rate != "none"]
    figure, axes = panels(len(networks), len(rates), width=4.4, height=3.8)
    for line, network in zip(axes, networks):
        for axis, rate in zip(line, rates):
            of = [row for row in rows if (row["network"], row["rate"]) == (network, rate)]
            below = [0.0] * len(of)
            for part, colour in (("computation", "tab:blue"), ("coding", "tab:green"), ("communication", "tab:red")):
                axis.bar([row["scheme"] for row in of], [row[part] for row in of], bottom=below, color=colour, label=part)
                below = [low + row[part] for low, row in zip(below, of)]
            axis.set(title=f"{NETWORKS[network]}, {rate}", ylabel="ms a step")
            axis.tick_params(axis="x", rotation=70, labelsize=6)
            axis.legend(fontsize=6)
    return figure


def main():
    here = Experiment("deepreduce_fig11", "DeepReduce: speed-up by method and link", "[DeepReduce21, 6.3, figure 11]", PROGRAM)
    need_namespaces()
    jobs = Jobs(here)
    rows = rows_of(here, jobs)
    table(rows, [("network", "", "s"), ("rate", "link", "s"), ("scheme", "scheme", "s"), ("step", "ms a step", ".0f"), ("computation", "computation", ".0f"),
                 ("coding", "coding", ".0f"), ("communication", "communication", ".0f"), ("speed_up", "speed-up", ".2f")])
    for rate, claim in (("100mbit", "at 100 Mbit/s all methods are faster than the dense baseline"), ("1gbit", "at 1 Gbit/s the gain is smaller"),
                        ("10gbit", "at 10 Gbit/s compression has no benefit")):
        pieces = []
        for network in dict.fromkeys(row["network"] for row in rows):
            of = [row for row in rows if (row["network"], row["rate"]) == (network, rate) and row["scheme"] != "dense f32"]
            if of:
                pieces.append(f"{NETWORKS[network]}: " + ", ".join(f"{row['scheme']} {row['speed_up']:.2f}" for row in of))
        if pieces:
            here.compare(claim, "speed over dense f32; " + "; ".join(pieces), "" if rate == "100mbit" else "two cores compute for four ranks and two shards")
    here.finish(plot(rows), {"ranks": RANKS, "shards": SHARDS, "steps": STEPS, "commits": sorted(jobs.commits), "rows": rows})


if __name__ == "__main__":
    main()
