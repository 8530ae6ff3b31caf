#!/usr/bin/python3
"""[RedSync19, table 1 and figure 2]: accuracy of RGC and of quantized RGC beside SGD, also with large batches.

    tests/bench/papers/redsync_table1.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N] [--only REGEX]

A CNN, a ResNet-8 and an LSTM as real jobs of PyTorch: 4 ranks and 2 shards, each a process in a network namespace
behind 1 Gbit/s. Three seeds. CNNs train with Nesterov's momentum, the LSTM with clipping, as in the paper. SGD is DDP
over gloo, in f32 and in 16 bits. The compressed schemes correct for the momentum, and their first steps are dense.
Density 0.1 %; the output layer is not quantized. RGC clips the LSTM's gradients with the State's option, and AFTER as
SGD does. The 75 runs take two hours on two cores. Finished ones are kept in OUT/jobs.
"""

from experiment import Experiment, panels, table
from jobs import AXES, Jobs, curve, draw_curves, first_with, half_of, mean, need_namespaces
from peers import PROGRAM

RANKS, SHARDS, RATE, SEEDS = 4, 2, "1gbit", 3
SAMPLES = 40_000  # that a CNN trains on, with repetition: five times the digits
LSTM_STEPS = 300
WARM_UP = 0.1  # share of the steps that are dense
MOMENTUM = 0.9
OUTPUT_LAYER = {"cnn": "f2.*", "resnet8": "head.*", "lstm": "o.*"}
# Network, batch of all ranks.
CASES = [("cnn", 64), ("resnet8", 64), ("lstm", 16), ("resnet8", 256), ("resnet8", 1024)]
QUICK = [("cnn", 64), ("lstm", 16)]
DENSE_16 = "SGD, 16 bits"
DENSE = {"SGD": {"kind": "ddp"}, DENSE_16: {"kind": "bf16"}}
SCHEMES = (*DENSE, "RGC", "quantized RGC")
DENSITY = 0.001
# Of one network alone, that of the case: whether the density, momentum correction, local clipping or the rate makes the difference.
DENSER, NO_MASKS, AFTER, SLOWER = "RGC, 1 %", "RGC, 1 %, momentum after sum", "RGC, clip after sum", "SGD, half the rate"
CONTROLS = {("cnn", 64): [DENSER, NO_MASKS], ("lstm", 16): [DENSER, AFTER], ("resnet8", 64): [SLOWER]}
NAMES = {"cnn": "CNN", "resnet8": "ResNet-8", "lstm": "LSTM"}


def scheme_of(name, network, steps):
    """Returns the scheme of job_rank.py."""
    if name == SLOWER:
        return DENSE["SGD"]
    if name in DENSE:
        return DENSE[name]
    signs = ":signs" if name == "quantized RGC" else ""
    density = 0.01 if name in (DENSER, NO_MASKS) else DENSITY
    options = {"select": f"by_size:{density}{signs}:dense={max(1, round(WARM_UP * steps))}", "combine": "mean",
               "rules": {OUTPUT_LAYER[network]: {"output_layer": True}}}
    options |= {"codec_up": "raw+sign_mean", "codec_error": "drop"} if signs else {"codec_up": "raw+raw"}
    if name not in (AFTER, NO_MASKS):
        options |= {"clip": 0.25} if network == "lstm" else {"momentum": f"nesterov:{MOMENTUM}"}
    return {"kind": "mill", "options": options}


def label(network, batch, name):
    """Returns the name of a scheme's trainings in the JSON."""
    return f"{network}, {batch}, {name}"


def schemes(network, batch):
    """Returns the names of the schemes that a case has."""
    return [*SCHEMES, *CONTROLS.get((network, batch), [])]


def trainings(here, jobs):
    """Returns {(network, batch): {scheme: [result of each seed]}}."""
    results = {}
    for network, batch in QUICK if here.quick else CASES:
        steps = 8 if here.quick else LSTM_STEPS if network == "lstm" else SAMPLES // batch
        names = schemes(network, batch)
        of = results[network, batch] = {name: jobs.taken_over(label(network, batch, name)) for name in names}
        missing = [name for name in names if not of[name]]
        for seed in range(here.seed, here.seed + (1 if here.quick else SEEDS)):
            for name in missing:
                run = {"network": network, "scheme": scheme_of(name, network, steps), "ranks": RANKS, "shards": SHARDS, "rate": RATE,
                       "steps": steps, "report_every": max(1, steps // 20), "seed": seed, "batch": batch // RANKS,
                       "momentum": 0.0 if network == "lstm" else MOMENTUM, **({"lr_factor": 0.5} if name == SLOWER else {})}
                result = jobs.run(f"redsync-{network}-{batch}-{seed}", run)
                of[name] = (of[name] or []) + [result]
                print(f"  {NAMES[network]}, batch {batch}, seed {seed}, {name}: accuracy {result['rows'][-1]['quality']:.4f}", flush=True)
    return results


def rows_of(results):
    rows = []
    for (network, batch), of in results.items():
        for name, runs in of.items():
            ends = [run["rows"][-1] for run in runs]
            rows.append({"network": NAMES[network], "batch": batch, "scheme": name, "steps": ends[0]["step"],
                         "loss": mean(end["loss"] for end in ends), "error": 100 * mean(1 - end["quality"] for end in ends),
                         "least": 100 * min(1 - end["quality"] for end in ends), "most": 100 * max(1 - end["quality"] for end in ends),
                         "kb": mean(end["bytes"] / end["step"] for end in ends) / 1e3 / RANKS})
    return rows


def errors(rows):
    """Returns the text of the errors of these rows, a piece for each network and batch."""
    pieces = []
    for network, batch in dict.fromkeys((row["network"], row["batch"]) for row in rows):
        of = [row for row in rows if (row["network"], row["batch"]) == (network, batch)]
        pieces.append(f"{network}, batch {batch}: " + ", ".join(f"{row['scheme']} {row['error']:.2f} ({row['least']:.2f}–{row['most']:.2f})"
                                                                 for row in of))
    return "; ".join(pieces)


def furthest_from_sgd(rows, scheme):
    """Returns the largest difference of a scheme's mean error from SGD's over the networks, in points."""
    sgd = {row["network"]: row["error"] for row in rows if row["scheme"] == "SGD"}
    return max((row["error"] - sgd[row["network"]] for row in rows if row["scheme"] == scheme), key=abs)


def error(rows, network, scheme):
    """Returns the mean error of a scheme in percent, or None."""
    return next((row["error"] for row in rows if (row["network"], row["scheme"]) == (network, scheme)), None)


def of_cnn(rows):
    """Returns the sentences about the CNN's controls: the density, and momentum correction, which masks the velocity of each sent entry."""
    ends = {name: error(rows, NAMES["cnn"], name) for name in ("SGD", "RGC", DENSER, NO_MASKS)}
    return (f"The CNN with 1 % of the entries ends with {ends[DENSER]:.2f} %, and with {ends[NO_MASKS]:.2f} % where the momentum is the "
            f"optimizer's, behind the sum (SGD {ends['SGD']:.2f}, RGC {ends['RGC']:.2f}). Correction masks the velocity of each sent entry. ")


def of_resnet(rows):
    """Returns the sentence about ResNet-8's control, SGD at half of the rate. A quick run has none."""
    slower = error(rows, NAMES["resnet8"], SLOWER)
    return "" if slower is None else f"SGD trains ResNet-8 to {slower:.2f} % at half of the rate. "


def of_lstm(results, rows):
    """Returns the sentences about the LSTM: its controls, and the steps of SGD that have RGC's last loss."""
    of = results["lstm", 16]
    denser, after = (error(rows, NAMES["lstm"], name) for name in (DENSER, AFTER))
    text = f"The LSTM ends with {denser:.2f} % with 1 % of the entries, and with {after:.2f} % clipped after the sum as SGD is. "
    sgd = [{"step": step, "quality": -loss} for step, loss in zip(curve(of["SGD"], "step"), curve(of["SGD"], "loss"))]
    same = first_with(sgd, -curve(of["RGC"], "loss")[-1], "step")
    return f"{text}The loss that its RGC ends with after {sgd[-1]['step']:.0f} steps is SGD's " + (f"at step {same:.0f}" if same else "at none")


def largest_share(results, network, batch):
    """Returns the most of a compressed layer's entries that the sparse steps of one training with RGC can have changed, in percent."""
    of = results[network, batch]["RGC"]
    steps = of[0]["rows"][-1]["step"]
    return 100 * min(1.0, RANKS * DENSITY * (steps - max(1, round(WARM_UP * steps))))


def plot(results):
    """Returns the figure: a column for each network and batch, a line of panels for each axis."""
    figure, axes = panels(len(AXES), len(results), width=4.4, height=3.4)
    for line, key in zip(axes, AXES):
        for axis, ((network, batch), of) in zip(line, results.items()):
            draw_curves(axis, of, key, lambda runs: [100 * (1 - quality) for quality in curve(runs, "quality")], lambda name: name in (*DENSE, SLOWER))
            axis.set(title=f"{NAMES[network]}, batch {batch}", ylabel="held-out error, %")
            axis.set_yscale("log")
            axis.legend(fontsize=7)
    return figure


def compare(here, results, rows):
    small = [row for row in rows if row["batch"] <= 64]
    least, most = (pick(furthest_from_sgd(small, name) for name in SCHEMES[len(DENSE):]) for pick in (min, max))
    here.compare("RGC and quantized RGC lose no accuracy: their errors differ from SGD's by up to 0.6 points",
                 f"held-out error in % after the same steps, mean (range of the seeds); {errors(small)}; "
                 f"the furthest from SGD: {least:.2f} and {most:.2f} points for the two methods",
                 f"{of_cnn(small)}{of_resnet(small)}{of_lstm(results, small)}")
    large = [row for row in rows if row["network"] == "ResNet-8"]
    if not large:
        here.skip("large batches", "a quick run has none")
        return
    shares = ", ".join(f"{largest_share(results, network, batch):.0f} % with batch {batch}" for network, batch in results if network == "resnet8")
    here.compare("RGC loses no accuracy with batches of 128 to 2,048", f"held-out error in % after the same samples; {errors(large)}",
                 f"a large batch leaves few steps. The sparse ones change at most these shares of a compressed layer: {shares}")


def main():
    here = Experiment("redsync_table1", "RedSync: accuracy of RGC and quantized RGC", "[RedSync19, 3.2, table 1 and figure 2]", PROGRAM, partial=True)
    need_namespaces()
    jobs = Jobs(here, [label(network, batch, name) for network, batch in CASES for name in schemes(network, batch)])
    results = trainings(here, jobs)
    rows = rows_of(results)
    table(rows, [("network", "", "s"), ("batch", "batch", "d"), ("scheme", "scheme", "s"), ("steps", "steps", "d"), ("loss", "loss", ".3f"),
                 ("error", "error, %", ".2f"), ("least", "least", ".2f"), ("most", "most", ".2f"), ("kb", "kB a rank and step", ".1f")])
    compare(here, results, rows)
    here.finish(plot(results), {"ranks": RANKS, "shards": SHARDS, "rate": RATE, "commits": sorted(jobs.commits), "rows": rows,
                                **jobs.add_notes(half_of(results[CASES[0]][DENSE_16])),
                                "curves": {label(network, batch, name): [run["rows"] for run in runs]
                                           for (network, batch), of in results.items() for name, runs in of.items()}})


if __name__ == "__main__":
    main()
