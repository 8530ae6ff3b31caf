#!/usr/bin/python3
"""[DeepReduce21, figure 6]: false positive rate of the Bloom filter against accuracy and volume, policies P0, P1, P2 and naive (figure 7's).

    tests/bench/papers/deepreduce_fig6.py [--quick] [--out FOLDER] [--programs FOLDER]

A CNN of 25,034 parameters on the MNIST digits, 4 workers with error feedback, top-r and random-r of 1 %. Volume: bytes of a worker over
4 bytes for each parameter, headers counted. Each accuracy is the mean of the runs' ends.
"""

import networks
from experiment import Diverged, Experiment, Workers, np, panels, table

WORKERS, DENSITY, RATE = 4, 0.01, 0.3
RATES = [0.0005, 0.001, 0.004, 0.02]
POLICIES = ["bloom_p0", "bloom_p1", "bloom_p2", "bloom_naive"]


def accuracy_of(here, select, codec, steps, seeds):
    ends, volumes = [], []
    for seed in seeds:
        networks.torch.manual_seed(seed)
        model = networks.SmallCnn()
        n = networks.size(model)
        here.seed = seed
        with Workers(here, WORKERS, n, select, codec) as workers:
            try:
                points = networks.train(model, workers.exchange, WORKERS, steps, RATE, seed, every=steps)
                ends.append(points[-1][2])
            except Diverged:
                ends.append(0.1)  # of ten digits, by chance
            volumes.append(workers.mean("container_bytes") / (4 * n))
    return {"accuracy": float(np.mean(ends)), "ends": ends, "volume": float(np.mean(volumes))}


def plot(rows, baseline):
    figure, axes = panels(1, 4, width=3.7, height=3.4)
    for axis, policy in zip(axes[0], POLICIES):
        twin = axis.twinx()
        twin.spines["top"].set_visible(False)
        for select, colour in (("topk", "tab:blue"), ("random", "tab:orange")):
            own = [row for row in rows if row["select"] == select and row["policy"] == policy]
            if not own:
                continue
            axis.plot([row["rate"] for row in own], [100 * row["accuracy"] for row in own], "o-", color=colour, label=f"{select}, accuracy")
            twin.plot([row["rate"] for row in own], [100 * row["volume"] for row in own], "s--", color=colour, alpha=0.5,
                      label=f"{select}, volume")
            plain = next(row for row in rows if row["select"] == select and row["policy"] == "raw")
            axis.axhline(100 * plain["accuracy"], color=colour, lw=0.8, ls=":")
            twin.axhline(100 * plain["volume"], color=colour, lw=0.6, alpha=0.5)
        axis.axhline(100 * baseline["accuracy"], color="black", lw=0.8)
        axis.set(xscale="log", xlabel="false positive rate", title=policy, ylim=(0, 102))
        twin.set_ylim(0, 5)
    axes[0][0].set_ylabel("held-out accuracy, %")
    twin.set_ylabel("volume, % of dense (dashed)")
    axes[0][0].legend(fontsize=7, loc="lower left")
    figure.suptitle("[DeepReduce21, figure 6]: black dense, dotted raw indices (thin: their volume)", fontsize=10)
    return figure


def compare(here, rows, baseline):
    def of(select, policy, rate):
        return next((row for row in rows if (row["select"], row["policy"], row.get("rate")) == (select, policy, rate)), None)
    def ends(policy, key):
        return ", ".join(f"{rate:g}: {100 * of('topk', policy, rate)[key]:.3g}" for rate in here.rates)
    plain = of("topk", "raw", None)
    here.compare("P0: accuracy is only marginally affected by the rate; volume grows with it, over the plain sparse form's from 0.004 on",
                 f"accuracy in % by rate {ends('bloom_p0', 'accuracy')} (raw indices {100 * plain['accuracy']:.3g}); volume in % "
                 f"{ends('bloom_p0', 'volume')} (raw {100 * plain['volume']:.3g})",
                 "a false positive costs a value of 32 bits: (1 - r / d) times the rate times d of them, against the filter's saving")
    here.compare("P1: volume and accuracy both fall as the rate rises",
                 f"volume {ends('bloom_p1', 'volume')}; accuracy {ends('bloom_p1', 'accuracy')}",
                 "with error feedback what P1 leaves out is sent later: the loss is of time")
    here.compare("P2 is more accurate than P1 at the same rate, 33 % less data than plain top-r at 0.001",
                 f"accuracy {ends('bloom_p2', 'accuracy')}; at 0.001 {100 * (1 - of('topk', 'bloom_p2', 0.001)['volume'] / plain['volume']):.0f} % less"
                 if of("topk", "bloom_p2", 0.001) else f"accuracy {ends('bloom_p2', 'accuracy')}")
    here.compare("naive is much less accurate (figure 7, rate 0.001)", f"accuracy {ends('bloom_naive', 'accuracy')}",
                 "values go to other indices than theirs: no contraction. The residual feeds on itself until it is not finite (shown as 0.1)")
    here.compare("the baseline's accuracy is reached", f"dense {100 * baseline['accuracy']:.3g} %, top-r {100 * plain['accuracy']:.3g} %")


def main():
    here = Experiment("deepreduce_fig6", "DeepReduce: Bloom filter policies, false positive rate against accuracy and volume",
                      "[DeepReduce21, 6.1, figures 6 and 7]")
    steps, seeds = (6, [1]) if here.quick else (400, [1])
    here.rates = [0.001, 0.02] if here.quick else RATES
    selections = [text for text in (("topk", f"topk:{DENSITY}", "raw+raw", False), ("random", f"random:{DENSITY}", "raw+raw", False))]
    selections = here.known(selections)
    policies = [name for name, _, _, _ in here.known([(policy, "topk:0.01", f"{policy}:0.001+raw", False) for policy in POLICIES])]
    baseline = accuracy_of(here, "dense", "raw+raw", steps, seeds)
    rows = []
    for name, select, _, _ in selections:
        rows.append({"select": name, "policy": "raw", **accuracy_of(here, select, "raw+raw", steps, seeds)})
        for policy in policies:
            for rate in here.rates:
                if name == "random" and rate not in (0.001, 0.02):
                    continue
                row = accuracy_of(here, select, f"{policy}:{rate}+raw", steps, seeds)
                rows.append({"select": name, "policy": policy, "rate": rate, **row})
    table([{"select": "dense", "policy": "", **baseline}] + rows,
          [("select", "", "s"), ("policy", "index codec", "s"), ("rate", "rate", "g"), ("accuracy", "accuracy", ".4f"),
           ("volume", "volume", ".4f")])
    compare(here, rows, baseline)
    here.finish(plot(rows, baseline), {"n": 25034, "workers": WORKERS, "steps": steps, "baseline": baseline, "rows": rows})


if __name__ == "__main__":
    main()
