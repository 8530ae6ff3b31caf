"""Common parts of [OkTopk22, figures 9, 11 and 13]: quality against the time of training, a network each.

Seven schemes of the paper, and dense in 16 bits, as real jobs of PyTorch: a rank is a process in a network namespace
behind 100 Mbit/s. 4 and 8 ranks, three seeds. All schemes train the same number of steps on the same batches. Sparse
schemes are millrace.State(path="peers"); dense ones are DDP over gloo. Sparse schemes of the LSTM clip with the State's
option. Finished runs are kept in OUT/jobs, and an interrupted script continues.

Controls say why Ok-Topk's quality differs from dense training's: each changes one thing, on 4 ranks. They run behind
10 Gbit/s, and their times count nowhere: they may run on a machine with other work, and with --only control.
"""

from experiment import panels, table
from jobs import Jobs, a_step, curve, draw_curves, first_with, half_of, mean, need_namespaces

RATE, BITS_A_MS = "100mbit", 1e5
STEPS, SEEDS = 200, 3
DENSE = {"Dense": {"kind": "flat"}, "DenseOvlp": {"kind": "ddp"}, "Dense 16 bits": {"kind": "bf16"}}
SPARSE = {"TopkA": "topk_a", "TopkDSA": "dsar_split_allgather", "gTopk": "gtopk", "Gaussiank": "gaussian_k", "Ok-Topk": "oktopk"}
CONTROL_RANKS, CONTROL_RATE = 4, "10gbit"
MORE_ENTRIES, NEW_THRESHOLDS = f"control: {CONTROL_RANKS} x the entries", "control: thresholds and boundaries of each step"
LONGER = 5
MORE_STEPS = f"control: {LONGER} x the steps"
ALONE, ALONE_STEPS = {"kind": "alone"}, 20  # training without an exchange: the computation in a step
NEAR = 0.98  # of the quality that Dense ends with in a seed: the quality that the seed's times are compared at


def through_peers(allreduce, density, **options):
    return {"kind": "mill", "options": {"path": "peers", "insecure": True, "allreduce": allreduce, "select": f"topk:{density:g}", **options}}


def clip_of(network):
    """Returns the State's options that clip. Local clipping leaves a residual, so the LSTM's gradients keep the rest."""
    return {"clip": 0.25} if network == "lstm" else {}


def schemes(network, density):
    """Returns {name: scheme of job_rank.py}."""
    return DENSE | {name: through_peers(allreduce, density, **clip_of(network)) for name, allreduce in SPARSE.items()}


def controls(network, density):
    """Returns {name: (scheme, changes of its run)}.

    TopkA applies at most CONTROL_RANKS times the entries of a rank, Ok-Topk as many as one rank selects.
    """
    clip, oktopk = clip_of(network), SPARSE["Ok-Topk"]
    made = {MORE_STEPS: (through_peers(oktopk, density, **clip), {"steps": LONGER * STEPS}),
            MORE_ENTRIES: (through_peers(oktopk, CONTROL_RANKS * density, **clip), {}),
            "control: 10 x the entries": (through_peers(oktopk, 10 * density, **clip), {}),
            NEW_THRESHOLDS: (through_peers(f"{oktopk}:thresholds_period=1:boundaries_period=1", density, **clip), {}),
            "control: 3 x the rate": (through_peers(oktopk, density, **clip), {"lr_factor": 3.0}),
            "control: TopkA at 3 x the rate": (through_peers(SPARSE["TopkA"], density, **clip), {"lr_factor": 3.0}),
            "control: Dense at 3 x the rate": (DENSE["Dense"], {"lr_factor": 3.0})}
    return made | ({"control: clip after the sum": (through_peers(oktopk, density), {})} if clip else {})


def label(ranks, name):
    """Returns the name of a scheme's trainings in the JSON."""
    return f"{ranks} ranks, {name}"


def trainings(here, jobs, network, density, ranks):
    """Returns {scheme: [result of each seed]}."""
    return made_of(here, jobs, network, ranks, {name: (scheme, {}) for name, scheme in schemes(network, density).items()})


def made_of(here, jobs, network, ranks, runs):
    """Returns {name: [result of each seed]} of {name: (scheme, changes of its run)}."""
    steps = 4 if here.quick else STEPS
    results = {name: jobs.taken_over(label(ranks, name)) for name in runs}
    missing = {name: run for name, run in runs.items() if not results[name]}
    for seed in range(here.seed, here.seed + (1 if here.quick else SEEDS)):
        for name, (scheme, changes) in missing.items():
            run = {"network": network, "scheme": scheme, "ranks": ranks, "shards": 0, "rate": RATE, "steps": steps,
                   "report_every": max(1, steps // 20), "seed": seed, **changes, **({"steps": steps} if here.quick else {})}
            result = jobs.run(f"oktopk-{network}-{ranks}-{seed}", run)
            results[name] = (results[name] or []) + [result]
            print(f"  {network}, {ranks} ranks, seed {seed}, {name}: {result['rows'][-1]['seconds']:.0f} s", flush=True)
    return results


def control_trainings(here, jobs, network, density, ranks):
    """Returns {control: [result of each seed]}."""
    return made_of(here, jobs, network, ranks, {name: (scheme, {"rate": CONTROL_RATE, **changes})
                                                for name, (scheme, changes) in controls(network, density).items()})


def computation_ms(jobs, network, ranks):
    """Returns the milliseconds of a step without an exchange."""
    if jobs.before:
        return next(row["computation_ms"] for row in jobs.before["rows"] if row["ranks"] == ranks)
    run = {"network": network, "scheme": ALONE, "ranks": ranks, "shards": 0, "rate": RATE, "steps": ALONE_STEPS, "report_every": ALONE_STEPS, "seed": 1}
    return 1e3 * a_step(jobs.run(f"oktopk-{network}-{ranks}-alone", run), "seconds")


def targets(dense):
    """Returns the quality that times are compared at, of each seed."""
    return [NEAR * result["rows"][-1]["quality"] for result in dense]


def first_of_each(results, qualities, key):
    """Returns the time, or another key, at which each training first has the quality of its seed, or None."""
    return [first_with(result["rows"], quality, key) for result, quality in zip(results, qualities)]


def row_of(ranks, name, results, dense, computation):
    """Returns a row of one scheme: means over its seeds.

    link_ms: of a step's bytes at the link's rate. processor_ms: of rank 0; waited_ms: its wait behind a step's last push.
    """
    times, steps = (first_of_each(results, targets(dense), key) for key in ("seconds", "step"))
    kilobytes = mean(a_step(result, "bytes") for result in results) / 1e3 / ranks
    qualities = [result["rows"][-1]["quality"] for result in results]
    processor = 1e3 * mean(a_step(result, "processor") for result in results) if all("processor" in result["rows"][-1] for result in results) else None
    waited = 1e3 * mean(result["waited"] / result["rows"][-1]["step"] for result in results) if all("waited" in result for result in results) else None
    return {"ranks": ranks, "scheme": name, "step_ms": 1e3 * mean(a_step(result, "seconds") for result in results),
            "computation_ms": computation, "processor_ms": processor, "waited_ms": waited, "link_ms": 8e3 * kilobytes / BITS_A_MS, "step_kb": kilobytes,
            "loss": mean(result["rows"][-1]["loss"] for result in results), "quality": mean(qualities), "least": min(qualities), "most": max(qualities),
            "seconds": None if None in times else mean(times), "steps": None if None in steps else mean(steps)}


def rows_of(jobs, network, ranks, results):
    computation = computation_ms(jobs, network, ranks)
    return [row_of(ranks, name, of, results["Dense"], computation) for name, of in results.items()]


def plot(network, all_results, of_controls):
    """Returns the figure: a line of panels for each of seconds and bytes, a column for each number of ranks; and one of the controls."""
    keys = ("seconds", "bytes")
    figure, axes = panels(len(keys) + 1, len(all_results), width=5.0, height=3.4)
    for line, key in zip(axes, keys):
        for axis, (ranks, results) in zip(line, all_results.items()):
            draw_curves(axis, results, key, lambda of: curve(of, "quality"), lambda name: name in DENSE)
            axis.set(title=f"{network}, {ranks} ranks, {RATE}", ylabel="held-out accuracy")
            axis.legend(fontsize=6)
    ranks = next(iter(all_results))
    beside = {name: all_results[ranks][name] for name in ("Dense", "TopkA", "Ok-Topk")}
    longer = {MORE_STEPS: of_controls[MORE_STEPS]}
    others = {name: of for name, of in of_controls.items() if name not in longer}
    for axis, drawn in zip(axes[-1], (beside | others, beside | longer)):
        draw_curves(axis, drawn, "step", lambda of: curve(of, "quality"), lambda name: name in all_results[ranks])
        axis.set(title=f"{network}, {ranks} ranks, controls of Ok-Topk", ylabel="held-out accuracy")
        axis.legend(fontsize=6)
    return figure


def by_ranks(rows):
    """Returns {ranks: {scheme: row}}."""
    return {ranks: {row["scheme"]: row for row in rows if row["ranks"] == ranks} for ranks in dict.fromkeys(row["ranks"] for row in rows)}


def ratios(rows, key):
    """Returns the text of each other scheme's value over Ok-Topk's, a piece for each number of ranks."""
    pieces = []
    for ranks, of in by_ranks(rows).items():
        least = of["Ok-Topk"][key]
        over = (f"{name} {row[key] / least:.2f}" if row[key] else f"{name} not" for name, row in of.items() if name != "Ok-Topk") if least else ()
        pieces.append(f"{ranks} ranks: " + (", ".join(over) if least else "Ok-Topk did not reach it in every training"))
    return ". ".join(pieces)


def parts(rows):
    """Returns the text of the parts of a step of Ok-Topk and of the fastest other scheme, a piece for each number of ranks."""
    pieces = []
    for ranks, of in by_ranks(rows).items():
        fastest = min((row for name, row in of.items() if name != "Ok-Topk"), key=lambda row: row["step_ms"])
        texts = []
        for row in (of["Ok-Topk"], fastest):
            times = [row["step_ms"], row["computation_ms"], row["link_ms"], row.get("processor_ms"), row.get("waited_ms")]
            texts.append(f"{row['scheme']} " + ", ".join("not measured" if time is None else f"{time:.0f}" for time in times))
        pieces.append(f"{ranks} ranks: " + "; ".join(texts))
    return ". ".join(pieces)


def steps_to(rows):
    """Returns the text of the steps to the target, a piece for each number of ranks."""
    return ". ".join(f"{ranks} ranks: " + ", ".join(f"{name} {row['steps']:.0f}" if row["steps"] else f"{name} not" for name, row in of.items())
                     for ranks, of in by_ranks(rows).items())


def trained_on(rows, all_results, of_controls):
    """Returns the sentence about Ok-Topk's time to dense quality with more steps: those of the control, times a step's time."""
    ranks, results = next(iter(all_results.items()))
    of = by_ranks(rows)[ranks]
    steps = first_of_each(of_controls[MORE_STEPS], targets(results["Dense"]), "step")
    if None in steps:
        return f"Trained for {LONGER} x the steps, Ok-Topk on {ranks} ranks does not reach it in every training"
    others = ", ".join(f"{name} {of[name]['seconds']:.0f} s" if of[name]["seconds"] else f"{name} not" for name in DENSE)
    return (f"Trained for {LONGER} x the steps, Ok-Topk on {ranks} ranks reaches it after {mean(steps):.0f}: "
            f"{mean(steps) * of['Ok-Topk']['step_ms'] / 1e3:.0f} s at its time of a step ({others})")


def steps_of_dense(all_results, name):
    """Returns the text of the quarters of the steps, and of Dense's steps that have the same losses, a piece for each number of ranks."""
    pieces = []
    for ranks, results in all_results.items():
        steps, losses = curve(results["Dense"], "step"), curve(results[name], "loss")
        dense = [{"step": step, "quality": -loss} for step, loss in zip(steps, curve(results["Dense"], "loss"))]
        quarters = [len(losses) // 4, len(losses) // 2, 3 * len(losses) // 4, len(losses) - 1]
        same = [first_with(dense, -losses[at], "step") for at in quarters]
        of_dense = ", ".join("none" if step is None else f"{step:.0f}" for step in same)
        pieces.append(f"{ranks} ranks, steps " + ", ".join(f"{steps[at]:.0f}" for at in quarters) + f": {of_dense}")
    return ". ".join(pieces)


def said_of_controls(of_controls, schemes_beside):
    """Returns the sentences about the controls, with the least and the most of their seeds.

    schemes_beside  {scheme: trainings} on as many ranks.
    """
    said, end = [], {name: 100 * curve(results, "quality")[-1] for name, results in (schemes_beside | of_controls).items()}
    behind = [end["TopkA"] - end[name] for name in ("Ok-Topk", MORE_ENTRIES, NEW_THRESHOLDS)]
    for name, results in of_controls.items():
        ends = [100 * result["rows"][-1]["quality"] for result in results]
        said.append(f"{name.removeprefix('control: ')} {mean(ends):.1f} % ({min(ends):.1f} to {max(ends):.1f})")
    return (f"Controls on {CONTROL_RANKS} ranks, Ok-Topk where no other scheme is named, end with this accuracy. " + ". ".join(said) +
            f". TopkA applies up to {CONTROL_RANKS} x the entries that Ok-Topk does. Ok-Topk is {behind[0]:.1f} points behind TopkA, "
            f"with {CONTROL_RANKS} x the entries {behind[1]:.1f}, with thresholds and boundaries of each step {behind[2]:.1f}")


def gaps(all_results):
    """Returns the text of the points that Ok-Topk is behind dense SGD, a piece for each number of ranks."""
    pieces = []
    for ranks, results in all_results.items():
        dense, sparse = curve(results["Dense"], "quality"), curve(results["Ok-Topk"], "quality")
        half, end = (100 * (dense[at] - sparse[at]) for at in (len(dense) // 2, -1))
        pieces.append(f"{ranks} ranks: {half:.1f} and {end:.1f}")
    return ". ".join(pieces)


def compare(here, rows, all_results, of_controls, claim):
    here.compare(claim, f"time to {NEAR:.0%} of the dense quality, over Ok-Topk's. {ratios(rows, 'seconds')}",
                 f"it is a step's time, compared below, times the steps to that quality. {steps_to(rows)}. "
                 f"{trained_on(rows, all_results, of_controls)}")
    here.compare("a step of Ok-Topk takes the least time", f"a step's time over Ok-Topk's. {ratios(rows, 'step_ms')}",
                 "in ms a step, its computation, and its bytes at the link's rate. Then the processor time of a rank, and its wait behind "
                 "its last push. " + parts(rows) + ". All ranks share the cores of one machine. A part that was not measured explains nothing")
    ends = (f"{ranks} ranks: " + ", ".join(f"{name} {100 * row['quality']:.1f} %" for name, row in of.items()) for ranks, of in by_ranks(rows).items())
    spread = (f"{ranks} ranks: {100 * of['Ok-Topk']['least']:.1f} to {100 * of['Ok-Topk']['most']:.1f}" for ranks, of in by_ranks(rows).items())
    here.compare("the quality of Ok-Topk is close to that of dense SGD",
                 "held-out accuracy after the same steps. " + ". ".join(ends) + ". Ok-Topk's seeds. " + ". ".join(spread),
                 f"{said_of_controls(of_controls, next(iter(all_results.values())))}. Dense has the loss of Ok-Topk's steps at these steps. {steps_of_dense(all_results, 'Ok-Topk')}. Of TopkA's. "
                 f"{steps_of_dense(all_results, 'TopkA')}. Points of Ok-Topk behind dense at half of the steps, and at their end. {gaps(all_results)}")


def without_times(row):
    """Returns the figures of a control's report that do not depend on the link and the machine."""
    return {key: row[key] for key in ("step", "loss", "quality")}


def run_figure(here, network, density, claim):
    """Runs one figure: its network of job_rank.py, the share of the entries that sparse schemes send, and the paper's claim on time."""
    need_namespaces()
    all_ranks = [2] if here.quick else [CONTROL_RANKS, 8]
    names = [label(ranks, name) for ranks in all_ranks for name in schemes(network, density)]
    jobs = Jobs(here, [*names, *(label(all_ranks[0], name) for name in controls(network, density))])
    all_results = {ranks: trainings(here, jobs, network, density, ranks) for ranks in all_ranks}
    of_controls = control_trainings(here, jobs, network, density, all_ranks[0])
    rows = [row for ranks, results in all_results.items() for row in rows_of(jobs, network, ranks, results)]
    table(rows, [("ranks", "ranks", "d"), ("scheme", "scheme", "s"), ("step_ms", "ms a step", ".0f"), ("computation_ms", "computation", ".0f"),
                 ("processor_ms", "processor", ".0f"), ("link_ms", "bytes", ".0f"), ("step_kb", "kB a rank and step", ".0f"), ("loss", "loss", ".3f"), ("quality", "accuracy", ".3f"),
                 ("seconds", "s to target", ".1f")])
    compare(here, rows, all_results, of_controls, claim)
    made = [result for results in all_results.values() for of in results.values() for result in of if "parameters" in result]
    parameters = made[0]["parameters"] if made else jobs.before["parameters"]
    half = half_of(result for results in all_results.values() for result in results["Dense 16 bits"])
    named = {label(ranks, name): of for ranks, results in all_results.items() for name, of in results.items()}
    here.finish(plot(network, all_results, of_controls),
                {"network": network, "density": density, "rate": RATE, "parameters": parameters, "commits": sorted(jobs.commits), "rows": rows,
                 **jobs.add_notes(half), "curves": {name: [result["rows"] for result in of] for name, of in named.items()} |
                 {label(all_ranks[0], name): [[without_times(row) for row in result["rows"]] for result in of] for name, of in of_controls.items()}})
