#!/usr/bin/python3
"""Bits of the indices of a training's contributions: coded each by itself, and against the history of the updates.

    tests/bench/papers/history_bits.py [--quick] [--out FOLDER] [--programs FOLDER]

The CNN and the character LSTM that made the traces (shared/data/make_traces.py), 4 workers with error feedback. Each
worker sends its largest 1 % or 0.1 %. The update is all of their sum, or (re-selection) the largest k of it. DeepReduce
codes each stream by itself. `history` is kernels/codec/history/history_code.h, with a worker's and its shard's state of
one part that is the whole model.
"""

import struct
import subprocess

import networks
from experiment import Experiment, np, panels, table
from oktopk_fig4_6 import Cnn, Lstm

WORKERS = 4
CODECS = ("rice", "gap", "adaptive", "history")
COST = struct.Struct("<12d")
torch = networks.torch


class Replay:
    """tests/bench/history_replay.cc."""

    def __init__(self, folder, n):
        self.process = subprocess.Popen([str(folder / "millrace_history_replay"), "--dimension", str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise RuntimeError("millrace_history_replay failed")

    def send(self, kind, indices, answer):
        self.process.stdin.write(struct.pack("<2I", kind, len(indices)) + indices.astype("<u4").tobytes())
        self.process.stdin.flush()
        data = self.process.stdout.read(answer)
        if len(data) != answer:
            raise RuntimeError("millrace_history_replay ended")
        return data

    def contribution(self, indices):
        """By codec: bytes, nanoseconds an index of coding, of decoding."""
        numbers = COST.unpack(self.send(0, indices, COST.size))
        return {name: numbers[3 * at:3 * at + 3] for at, name in enumerate(CODECS)}

    def update(self, indices):
        return struct.unpack("<d", self.send(1, indices, 8))[0]


def largest(values, k):
    return torch.sort(torch.topk(torch.from_numpy(values).abs(), k, sorted=False).indices).values.numpy()


def run(here, task, density, reselect, steps):
    n = networks.size(task.model)
    k = int(np.ceil(density * n))
    rest = np.zeros((WORKERS, n), np.float32)
    rows = []
    with Replay(here.folder, n) as replay:
        for step in range(steps):
            total, losses, costs, sent = np.zeros(n, np.float32), [], [], []
            for worker in range(WORKERS):
                loss, gradient = task.gradient()
                losses.append(loss)
                rest[worker] += gradient
                chosen = largest(rest[worker], k)
                costs.append(replay.contribution(chosen))
                sent.append(chosen)
                total[chosen] += rest[worker][chosen]
            applied = largest(total, k) if reselect else np.flatnonzero(total)
            update = np.zeros(n, np.float32)
            update[applied] = total[applied]
            down = replay.contribution(applied)
            advance_ns = replay.update(applied)
            for worker in range(WORKERS):
                taken = sent[worker][update[sent[worker]] != 0]
                rest[worker][taken] = 0
            networks.descend(task.model, update / WORKERS)
            row = {"step": step, "loss": float(np.mean(losses)), "update": len(applied), "advance_ns": advance_ns}
            for name in CODECS:
                row[name + "_down"] = 8 * down[name][0] / max(len(applied), 1)
            for name in CODECS:
                row[name] = float(np.mean([8 * cost[name][0] for cost in costs])) / k
                row[name + "_encode_ns"] = float(np.median([cost[name][1] for cost in costs]))
                row[name + "_decode_ns"] = float(np.median([cost[name][2] for cost in costs]))
            rows.append(row)
    return rows


def summary(name, rows):
    late = rows[len(rows) // 2:]
    result = {"name": name, "steps": len(rows), "loss": rows[-1]["loss"]}
    for codec in CODECS:
        result[codec] = float(np.mean([row[codec] for row in rows]))
        result[codec + "_encode_ns"] = float(np.median([row[codec + "_encode_ns"] for row in rows]))
        result[codec + "_decode_ns"] = float(np.median([row[codec + "_decode_ns"] for row in rows]))
        result[codec + "_down"] = float(np.mean([row[codec + "_down"] for row in rows]))
    result["ratio"] = result["history"] / result["adaptive"]
    result["ratio_down"] = result["history_down"] / result["adaptive_down"]
    result["late"] = float(np.mean([row["history"] for row in late]) / np.mean([row["adaptive"] for row in late]))
    result["advance_ns"] = float(np.median([row["advance_ns"] for row in rows]))
    return result


def plot(axis, name, rows):
    steps = [row["step"] for row in rows]
    for codec, colour in zip(CODECS, ("tab:gray", "tab:orange", "tab:blue", "tab:red")):
        axis.plot(steps, [row[codec] for row in rows], color=colour, lw=1.1, label=codec)
    axis.set(title=name, xlabel="step", ylabel="bits an index")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7)


def findings_text(sums):
    up, down = ([row[key] for row in sums] for key in ("ratio", "ratio_down"))
    return f"bits an index over adaptive's: contributions {min(up):.2f} to {max(up):.2f}, updates {min(down):.2f} to {max(down):.2f}"


def main():
    here = Experiment("history_bits", "Indices against what both sides have seen", "[DeepReduce21, 3]: index codes of one stream alone, for comparison")
    cases = [(kind, density, reselect) for density, reselect in ((0.01, False), (0.01, True), (0.001, False)) for kind in (Cnn, Lstm)]
    figure, axes = panels(3, 2, width=4.6, height=2.9)
    sums, results = [], {}
    for axis, (kind, density, reselect) in zip(axes.flat, cases):
        steps = 3 if here.quick else 200 if kind is Cnn else 128
        name = f"{kind.name.split(',')[0]}, {density:.1%}{', k of the sum' if reselect else ''}"
        print(f"  {name}: {steps} steps", flush=True)
        rows = run(here, kind(here.seed), density, reselect, steps)
        plot(axis, name, rows)
        sums.append(summary(name, rows))
        results[name] = rows
    table(sums, [("name", "bits an index", "s"), ("steps", "steps", "d"), ("rice", "rice", ".2f"), ("gap", "gap", ".2f"), ("adaptive", "adaptive", ".2f"),
                 ("history", "history", ".2f"), ("ratio", "history/adaptive", ".3f"), ("late", "second half", ".3f"),
                 ("adaptive_down", "update: adaptive", ".2f"), ("history_down", "history", ".2f"), ("ratio_down", "ratio", ".3f")])
    table(sums, [("name", "ns an index", "s"), ("adaptive_encode_ns", "adaptive: code", ".1f"), ("adaptive_decode_ns", "decode", ".1f"),
                 ("history_encode_ns", "history: code", ".1f"), ("history_decode_ns", "decode", ".1f"), ("advance_ns", "update", ".1f")])
    here.compare("figures of codes of one stream alone; coding against the history is ours", findings_text(sums))
    figure.suptitle("4 workers with error feedback, the largest entries of each", fontsize=10)
    here.finish(figure, {"workers": WORKERS, "summary": sums, "rows": results})


if __name__ == "__main__":
    main()
