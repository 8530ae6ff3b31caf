#!/usr/bin/python3
"""[OkTopk22, figure 5]: the empirical value of xi of its assumption 1, over training, at two densities.

    tests/bench/papers/oktopk_fig5.py [--quick] [--out FOLDER] [--programs FOLDER]

    xi = | Topk(mean of accumulators) - Topk(mean of the workers' selections) | / | rate x mean gradient |

An accumulator is rate x gradient + residual; Topk in the first term is exact, the second is what Ok-Topk's allreduce gives: local
thresholds reused over 32 steps, the sum cut to its k largest the same way. 8 workers (the paper: 16 and 32), the CNN and the LSTM of the
traces.
"""

import networks
from experiment import Experiment, Replay, np, panels, table
from oktopk_fig4_6 import PERIOD, Cnn, Lstm

WORKERS = 8
DENSITIES = [0.01, 0.02]


def exact_topk(values, k):
    kept = np.zeros_like(values)
    at = np.argpartition(np.abs(values), len(values) - k)[len(values) - k:]
    kept[at] = values[at]
    return kept


def xi_over(here, task, density, steps):
    """[steps] of xi, and the training loss."""
    n = networks.size(task.model)
    k = int(np.ceil(density * n))
    reuse = f"threshold_reuse:{k}:{PERIOD}"
    local = [Replay(here.folder, n, reuse) for _ in range(WORKERS)]
    of_sum = Replay(here.folder, n, reuse)
    rest = np.zeros((WORKERS, n), np.float32)
    values, losses = [], []
    for _ in range(steps):
        gradients, sent = [], []
        for worker in range(WORKERS):
            loss, gradient = task.gradient()
            losses.append(loss)
            gradients.append(gradient)
            rest[worker] += gradient
            sent.append(local[worker].step(rest[worker])[0])
        update = of_sum.step(np.sum(sent, axis=0))[0]
        wanted = exact_topk(rest.mean(axis=0), k)
        values.append(float(np.linalg.norm(wanted - update / WORKERS) / np.linalg.norm(np.mean(gradients, axis=0))))
        for worker in range(WORKERS):
            taken = (sent[worker] != 0) & (update != 0)
            rest[worker][taken] -= sent[worker][taken]
        networks.descend(task.model, update / WORKERS)
    for replay in [*local, of_sum]:
        replay.__exit__()
    return values, losses


def smooth(values, width=9):
    return np.convolve(values, np.ones(width) / width, mode="valid") if len(values) > width else np.asarray(values)


def main():
    here = Experiment("oktopk_fig5", "Ok-Topk: the empirical value of xi", "[OkTopk22, 4.1, 5.1, figure 5]")
    figure, axes = panels(1, 2, width=5.2, height=3.6)
    rows, result = [], {}
    for axis, kind, steps in ((axes[0][0], Cnn, 160), (axes[0][1], Lstm, 100)):
        for density in DENSITIES:
            task = kind(here.seed)
            values, losses = xi_over(here, task, density, 4 if here.quick else steps)
            half = len(values) // 2
            rows.append({"task": task.name, "density": density, "steps": len(values), "first": float(np.mean(values[:max(1, half // 4)])),
                         "middle": float(np.mean(values[half // 2:half + 1])), "late": float(np.mean(values[half:])),
                         "largest": max(values), "first_loss": losses[0], "last_loss": float(np.mean(losses[-WORKERS:]))})
            result[f"{task.name}, {density}"] = values
            axis.plot(smooth(values), lw=1.2, label=f"density {density:.0%}")
        axis.axhline(WORKERS, color="black", lw=0.8, ls="--", label="P")
        axis.set(title=f"{task.name}, {WORKERS} workers", xlabel="step", ylabel="xi (mean of 9 steps)", ylim=(0, None))
        axis.legend(fontsize=7)
    table(rows, [("task", "", "s"), ("density", "density", ".2f"), ("steps", "steps", "d"), ("first", "xi, first 1/8", ".2f"),
                 ("middle", "second quarter", ".2f"), ("late", "second half", ".2f"), ("largest", "largest", ".2f"),
                 ("first_loss", "first loss", ".3f"), ("last_loss", "last", ".3f")])
    def each(key):
        return "; ".join(f"{row['task']} {row['density']:.0%}: {row[key]:.2f}" for row in rows)
    here.compare("xi is below P for all three models", "largest of any step: " + each("largest") + f"; P = {WORKERS}")
    here.compare("xi rises first, then it is stable or grows slowly", "first eighth " + each("first") + "; second half " + each("late"),
                 "these are the first epochs of small models")
    here.compare("xi is smaller with a higher density", "second half: " + each("late"))
    here.finish(figure, {"workers": WORKERS, "rows": rows, "xi": result})


if __name__ == "__main__":
    main()
