#!/usr/bin/python3
"""Time to the dense run's loss + 1 %: a transformer of 10 M parameters behind 100 Mbit/s.

    tests/bench/papers/time_to_loss.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]

Real jobs of PyTorch: 4 ranks, and 4 shards for the sparse schemes, each a process in a network namespace. Dense is DDP
over gloo in bf16. All schemes have the same batches. A sparse scheme trains half as many steps more: it may reach the
dense run's loss later in steps. Dense has half of the sparse schemes' learning rate. Of a quarter, half and the whole,
half gave dense the least loss in a trial with seed 1, whose runs are not kept. Finished runs are kept in OUT/jobs.
"""

from experiment import Experiment, panels, table
from jobs import AXES, Jobs, a_step, curve, draw_curves, first_with, mean, need_namespaces
from peers import PROGRAM

RANKS, SHARDS, RATE = 4, 4, "100mbit"
NETWORK, MOMENTUM = "transformer10m", 0.9
BUCKET_MB = 5  # of DDP, of all schemes: most of an exchange is beside the backward pass
STEPS, SPARSE_STEPS, ALONE_STEPS, SEEDS, REPORT_EVERY = 240, 360, 20, 3, 10
WITHIN = 1.01  # of the loss that the dense run ends with
DENSE, DENSE_LR_FACTOR = "dense, 16 bits", 0.5


def through_shards(select, **options):
    return {"kind": "mill", "options": {"select": select, "codec_up": "gap+qsgd4", "codec_down": "gap+qsgd4", **options}}


SCHEMES = {
    DENSE: {"kind": "bf16"},
    "3 %": through_shards("topk:0.03"),
    "3 %, momentum corrected": through_shards("topk:0.03", momentum=f"nesterov:{MOMENTUM}"),
    "1 %": through_shards("topk:0.01"),
    "1 %, momentum corrected": through_shards("topk:0.01", momentum=f"nesterov:{MOMENTUM}"),
}


def train(here, jobs, name, scheme, seed):
    """Returns the result of one training."""
    steps = 4 if here.quick else {"alone": ALONE_STEPS, "bf16": STEPS, "mill": SPARSE_STEPS}[scheme["kind"]]
    run = {"network": NETWORK, "scheme": scheme, "ranks": RANKS, "shards": SHARDS if scheme["kind"] == "mill" else 0, "rate": RATE,
           "steps": steps, "report_every": 1 if here.quick else REPORT_EVERY, "seed": seed, "momentum": MOMENTUM,
           "bucket_mb": BUCKET_MB, **({"lr_factor": DENSE_LR_FACTOR} if name == DENSE else {})}
    result = jobs.run(f"loss-{seed}", run)
    end = result["rows"][-1]
    print(f"  seed {seed}, {name}: loss {end['loss']:.3f}, {end['seconds']:.0f} s", flush=True)
    return result


def seconds_to_loss(rows, loss):
    """Returns the time at which a training first has at most this loss, or None."""
    return first_with([{**row, "quality": -row["loss"]} for row in rows], -loss)


def targets(dense):
    """Returns the loss that the schemes are compared at, of each seed."""
    return [WITHIN * result["rows"][-1]["loss"] for result in dense]


def times_to(results, losses):
    return [seconds_to_loss(result["rows"], loss) for result, loss in zip(results, losses)]


def row_of(name, results, dense):
    """Returns a row of one scheme: means over its seeds. faster: the dense run's time to the same loss over its own; least: of the seeds."""
    times, dense_times = times_to(results, targets(dense)), times_to(dense, targets(dense))
    row = {"scheme": name, "step_ms": 1e3 * mean(a_step(result, "seconds") for result in results),
           "step_kb": mean(a_step(result, "bytes") for result in results) / 1e3 / RANKS, "loss": mean(result["rows"][-1]["loss"] for result in results),
           "seconds": None, "faster": None, "least": None}
    if None not in times:
        ratios = [of_dense / time for of_dense, time in zip(dense_times, times)]
        row |= {"seconds": mean(times), "faster": mean(ratios), "least": min(ratios)}
    return row


def plot(all_results):
    """Returns the figure: the loss of each scheme against each axis."""
    figure, axes = panels(1, len(AXES))
    for axis, key in zip(axes[0], AXES):
        draw_curves(axis, all_results, key, lambda results: curve(results, "loss"), lambda name: name == DENSE)
        axis.axhline(mean(targets(all_results[DENSE])), color="gray", lw=0.8)
        axis.set(title=f"transformer, {RANKS} ranks, {RATE}", ylabel="held-out loss")
        axis.legend(fontsize=7)
    return figure


def compare(here, rows, computation):
    sparse = [row for row in rows if row["scheme"] != DENSE]
    pieces = ". ".join(f"{row['scheme']}: {row['faster']:.2f}, least of the seeds {row['least']:.2f}" for row in sparse if row["faster"])
    never = " and ".join(row["scheme"] for row in sparse if not row["faster"])
    parts = "; ".join(f"{row['scheme']}: {row['step_ms']:.0f}" for row in rows)
    here.compare("no claim of a paper; the goal is 5 x faster to the loss that dense in 16 bits ends with + 1 %",
                 f"speed over dense to that loss. {pieces}. Not reached by: {never or 'none'}",
                 f"a step's ms; {parts}; without an exchange: {computation:.0f}. Dense has {DENSE_LR_FACTOR:g} of the sparse schemes' learning rate")


def main():
    here = Experiment("time_to_loss", "Time to the loss of dense training behind 100 Mbit/s", "No figure of a paper", PROGRAM)
    need_namespaces()
    jobs = Jobs(here)
    seeds = range(here.seed, here.seed + (1 if here.quick else SEEDS))
    alone = train(here, jobs, "no exchange", {"kind": "alone"}, here.seed)
    all_results = {name: [] for name in SCHEMES}
    for seed in seeds:
        for name, scheme in SCHEMES.items():
            all_results[name].append(train(here, jobs, name, scheme, seed))
    rows = [row_of(name, results, all_results[DENSE]) for name, results in all_results.items()]
    table(rows, [("scheme", "scheme", "s"), ("step_ms", "ms a step", ".0f"), ("step_kb", "kB a rank and step", ".0f"), ("loss", "loss at its end", ".3f"),
                 ("seconds", "s to the loss", ".1f"), ("faster", "faster", ".2f"), ("least", "least", ".2f")])
    compare(here, rows, 1e3 * a_step(alone, "seconds"))
    here.finish(plot(all_results), {"ranks": RANKS, "shards": SHARDS, "rate": RATE, "parameters": alone["parameters"], **jobs.add_notes(all_results[DENSE][0]["note"]),
                                    "commits": sorted(jobs.commits), "rows": rows,
                                    "curves": {name: [result["rows"] for result in results] for name, results in all_results.items()}})


if __name__ == "__main__":
    main()
