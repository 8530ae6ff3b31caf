#!/usr/bin/python3
"""[OkTopk22, figures 4 and 6]: the local top-k threshold over training, exact, reused and Gaussian; entries selected.

    tests/bench/papers/oktopk_fig4_6.py [--quick] [--out FOLDER] [--programs FOLDER]

The CNN and the character LSTM that made the traces (shared/data/make_traces.py), 4 workers with error feedback.
Threshold reuse with a period of 32 drives the training, locally and of the sum, as in [OkTopk22, algorithm 2]. Entries
outside the global selection are returned. The script also takes the exact threshold and Gaussian-k's on worker 0's
accumulator.
"""

import statistics

import networks
from experiment import Experiment, Refused, Replay, np, panels, table, trace_models

WORKERS, PERIOD = 4, 32
SHOWN_AGE = 28  # figure 4 shows a threshold of more than 25 steps ago
torch = networks.torch


class Cnn:
    name, density, paper_density = "CNN, MNIST", 0.01, "VGG-16, Cifar-10, 1 %"

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model, self.rate = trace_models().Cnn(), 0.05
        self.data, _ = networks.digits()
        self.draw = np.random.default_rng(seed)

    def gradient(self):
        samples = torch.from_numpy(self.draw.integers(0, networks.TRAINED_ON, 16))
        loss = networks.cross_entropy(self.model, self.data, samples)
        return loss.item(), np.float32(self.rate) * networks.gradient(self.model, loss)


class Lstm:
    name, density, paper_density = "LSTM, characters", 0.02, "LSTM, AN4, 2 %"

    def __init__(self, seed):
        torch.manual_seed(seed)
        models = trace_models()
        self.model, self.rate = models.CharLstm(), 1.0
        text = models.gzip.open(f"{models.HERE}/tinyshakespeare.txt.gz").read()
        codes = np.zeros(256, np.int64)
        for number, symbol in enumerate(sorted(set(text))):
            codes[symbol] = number
        self.data = torch.from_numpy(codes[np.frombuffer(text, np.uint8)])
        self.draw = np.random.default_rng(seed)

    def gradient(self):
        begins = self.draw.integers(0, len(self.data) - 33, 4)
        batch = torch.stack([self.data[begin:begin + 33] for begin in begins])
        loss = torch.nn.functional.cross_entropy(self.model(batch[:, :-1]).reshape(-1, 65), batch[:, 1:].reshape(-1))
        gradient = networks.gradient(self.model, loss)
        return loss.item(), np.float32(self.rate * min(1.0, 0.25 / (np.linalg.norm(gradient) + 1e-12))) * gradient


def least_magnitude(values):
    """Of the entries that are not 0: the threshold that gave them, from above."""
    magnitudes = np.abs(values[values != 0])
    return float(magnitudes.min()) if len(magnitudes) else float("nan")


def gaussian_threshold(values, density):
    """Of a normal distribution with the values' mean and deviation: as Gaussian-k has it before it is scaled."""
    return abs(float(values.mean())) + float(values.std()) * statistics.NormalDist().inv_cdf(1 - density / 2)


def run(here, task, steps):
    n = networks.size(task.model)
    k = int(np.ceil(task.density * n))
    reuse = f"threshold_reuse:{k}:{PERIOD}"
    local = [Replay(here.folder, n, reuse) for _ in range(WORKERS)]
    of_sum = Replay(here.folder, n, reuse)
    try:
        scaled = Replay(here.folder, n, f"gaussian:{k}")
    except Refused as refused:
        here.skip("gaussian", str(refused))
        scaled = None
    rest = np.zeros((WORKERS, n), np.float32)
    rows, shown = [], None
    for step in range(steps):
        total, losses, sent = np.zeros(n, np.float32), [], []
        for worker in range(WORKERS):
            loss, gradient = task.gradient()
            losses.append(loss)
            rest[worker] += gradient
            decoded, cost = local[worker].step(rest[worker])
            sent.append(decoded)
            total += decoded
            if worker == 0:
                held = rest[0].copy()
                row = {"step": step, "k": k, "reused_count": cost["selected"], "reused": least_magnitude(decoded),
                       "exact": float(np.partition(np.abs(held), n - k)[n - k]), "gaussian": gaussian_threshold(held, task.density)}
                row["gaussian_count"] = int(np.count_nonzero(np.abs(held) >= row["gaussian"]))
                if scaled is not None:
                    row["scaled_count"] = scaled.step(held)[1]["selected"]
                if step % PERIOD == SHOWN_AGE or shown is None:
                    shown = (row, held)
        update, cost = of_sum.step(total)
        row.update(global_count=cost["selected"], fill_in=float(np.count_nonzero(total)) / n, loss=float(np.mean(losses)))
        for worker in range(WORKERS):
            taken = (sent[worker] != 0) & (update != 0)
            rest[worker][taken] -= sent[worker][taken]
        networks.descend(task.model, update / WORKERS)
        rows.append(row)
    for replay in local + [of_sum] + ([scaled] if scaled else []):
        replay.__exit__()
    return rows, shown


def plot_task(axes, task, rows, shown):
    row, held = shown
    span = 4 * max(row["exact"], row["gaussian"])
    count, edges = np.histogram(held, bins=120, range=(-span, span))
    middle = (edges[1:] + edges[:-1]) / 2
    axes[0].semilogy(middle, np.maximum(count, 0.5), color="tab:blue", lw=1, label="accumulator")
    bell = len(held) * (edges[1] - edges[0]) * statistics.NormalDist(held.mean(), held.std()).pdf(0)
    axes[0].semilogy(middle, np.maximum(bell * np.exp(-0.5 * ((middle - held.mean()) / held.std()) ** 2), 0.5), "--", color="tab:orange",
                     lw=1, label="normal, same deviation")
    for key, colour in (("exact", "black"), ("reused", "tab:red"), ("gaussian", "tab:orange")):
        for sign in (-1, 1):
            axes[0].axvline(sign * row[key], color=colour, lw=0.9, label=f"{key} threshold" if sign > 0 else None)
    axes[0].set(title=f"{task.name}, step {row['step']}", xlabel="value", ylabel="entries")
    axes[0].locator_params(axis="x", nbins=5)
    steps = [row["step"] for row in rows]
    for key, colour in (("exact", "black"), ("reused", "tab:red"), ("gaussian", "tab:orange")):
        axes[1].plot(steps, [row[key] for row in rows], color=colour, lw=1.1, label=key)
    axes[1].set(title=f"{task.name}: threshold", xlabel="step", yscale="log")
    names = [("reused_count", "reused, local", "tab:red"), ("global_count", "reused, global", "tab:purple"),
             ("gaussian_count", "Gaussian", "tab:orange"), ("scaled_count", "Gaussian, scaled", "tab:green")]
    for key, name, colour in names:
        if key in rows[0]:
            axes[2].plot(steps, [row[key] / row["k"] for row in rows], color=colour, lw=1.1, label=name)
    axes[2].axhline(1, color="black", lw=0.9)
    axes[2].set(title=f"{task.name}: selected / k", xlabel="step", yscale="log")
    for axis in axes:
        axis.legend(fontsize=6.5)


def summary(task, rows):
    def mean(key):
        return float(np.mean([row[key] / row["k"] for row in rows if key in row])) if key in rows[0] else None
    def off(key):
        return float(np.mean([abs(row[key] / row["k"] - 1) for row in rows]))
    late = rows[len(rows) // 2:]
    return {"task": task.name, "k": rows[0]["k"], "steps": len(rows), "first_loss": rows[0]["loss"], "last_loss": rows[-1]["loss"],
            "threshold_off": float(np.mean([abs(row["reused"] / row["exact"] - 1) for row in rows])),
            "local_off": off("reused_count"), "global_off": off("global_count"), "gaussian_first": rows[0]["gaussian_count"] / rows[0]["k"],
            "gaussian_late": float(np.mean([row["gaussian_count"] / row["k"] for row in late])),
            "gaussian_over_exact": float(np.mean([row["gaussian"] / row["exact"] for row in late])), "scaled": mean("scaled_count"),
            "fill_in": float(np.mean([row["fill_in"] for row in rows]))}


def compare(here, sums):
    def each(form, *keys):
        return "; ".join(f"{total['task']} " + form.format(*(total[key] for key in keys)) for total in sums)
    here.compare("figure 4: a threshold of more than 25 steps ago is still very close to the exact one",
                 "mean deviation of the threshold " + each("{:.1%}", "threshold_off"))
    here.compare("figure 6: local and global counts are on average within 11 % of k, but for the first epochs (more is selected)",
                 "mean deviation " + each("local {:.1%}, global {:.1%}", "local_off", "global_off"),
                 "Millrace's reuse evaluates at once where the count leaves [k/2, 2k] and next step outside [3/4 k, 4/3 k]. It corrects the "
                 "threshold by the counts in between. Ok-Topk's waits for the period's end. These are first epochs")
    here.compare("Gaussian-k overestimates k in the first epochs, then underestimates it by up to a factor of ten; its threshold is too large",
                 "selected / k " + each("first step {:.2f}, second half {:.2f} (threshold {:.2f} times the exact)", "gaussian_first",
                                        "gaussian_late", "gaussian_over_exact"))
    if sums[0]["scaled"] is not None:
        here.compare("5.4: for a fair comparison Gaussian-k's threshold is scaled until at least 3k/4 are selected", "selected / k "
                     + each("{:.2f}", "scaled"))
    here.compare("the sum of all workers' selections fills in: 13.2 % of all entries (VGG-16, 16 workers, 1 %), 34.5 % (LSTM, 32, 2 %)",
                 "of all entries, 4 workers: " + each("{:.1%}", "fill_in"), "fewer workers")


def main():
    here = Experiment("oktopk_fig4_6", "Ok-Topk: thresholds and counts over training", "[OkTopk22, 3.1.3, 5.2, figures 4 and 6]")
    figure, axes = panels(2, 3, width=4.6, height=3.5)
    sums, results = [], {}
    for line, (kind, steps) in enumerate(((Cnn, 4 if here.quick else 192), (Lstm, 3 if here.quick else 128))):
        task = kind(here.seed)
        rows, shown = run(here, task, steps)
        plot_task(axes[line], task, rows, shown)
        sums.append(summary(task, rows))
        results[task.name] = rows
    table(sums, [("task", "", "s"), ("k", "k", "d"), ("steps", "steps", "d"), ("first_loss", "first loss", ".3f"),
                 ("last_loss", "last", ".3f"), ("threshold_off", "threshold off", ".3f"), ("local_off", "local off", ".3f"),
                 ("global_off", "global off", ".3f"), ("gaussian_late", "Gaussian/k", ".3f"), ("scaled", "scaled/k", ".3f"),
                 ("fill_in", "fill-in", ".3f")])
    compare(here, sums)
    figure.suptitle("[OkTopk22, figures 4 and 6]: period 32, 4 workers, worker 0's accumulator", fontsize=10)
    here.finish(figure, {"workers": WORKERS, "period": PERIOD, "summary": sums, "rows": results})


if __name__ == "__main__":
    main()
