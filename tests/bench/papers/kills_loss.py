#!/usr/bin/python3
"""Loss of a training whose workers and shards are killed at random, beside the same training without kills.

    tests/bench/papers/kills_loss.py [--quick] [--out FOLDER] [--programs FOLDER] [--seed N]

Four processes of PyTorch train an LSTM over two shards for ten minutes, by millrace.torch.Replica. SIGKILL ends a
worker or a shard every 15 s on average. The script starts it again at once, as systemd or torchrun does. Then the
same training runs undisturbed, for as many steps. The rows of a step depend on its number and the worker alone.

Limits: all processes share one machine, so the start of a process takes time from the others.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from experiment import ROOT, Experiment, Failed, need_data, need_torch, panels, table

sys.path.insert(0, str(ROOT / "tests/integration"))
import punisher_test as punisher  # pylint: disable=wrong-import-position

PROGRAM = "millrace-server"
RANK = Path(__file__).with_name("kills_rank.py")
SECONDS, MTBF_S, REPORT_EVERY = 600, 15, 50
QUICK_SECONDS, QUICK_MTBF_S = 20, 6
STEPS_AFTER = 20  # between the last kill and the end: beyond any step that a worker has begun
WAIT_S, POLL_S = 180, 0.02


class Life(punisher.Life):
    """One process of one worker, as its lines tell."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.events = []

    def read(self):
        for line in self.log.lines():
            event = json.loads(line)
            self.events.append(event)
            self.steps = event.get("step", self.steps)
            self.finished = self.finished or "finished" in event

    def first_step_at(self):
        """Returns when it had made its first step, or None."""
        return next((event["at"] for event in self.events if "step" in event and "loss" not in event), None)


class Training(punisher.Cluster):
    """The shards and workers of one training."""

    def __init__(self, here, folder):
        super().__init__(SimpleNamespace(server=here.folder / PROGRAM, mode="synchronous"), folder)
        self.package, self.seed, self.end_file = here.folder.resolve().parent / "python", here.seed, self.folder / "end"

    def start_worker(self, worker):
        serial, self.serials = self.serials, self.serials + 1
        name = self.folder / f"worker-{worker}-{serial}"
        run = {"worker": worker, "workers": punisher.WORKERS, "servers": ",".join(self.addresses), "end": str(self.end_file),
               "report_every": REPORT_EVERY, "seed": self.seed}
        with open(f"{name}.out", "w", encoding="utf-8") as out, open(f"{name}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen([sys.executable, RANK, json.dumps(run)], stdout=out, stderr=log,
                                       env={**os.environ, "PYTHONPATH": str(self.package), "OMP_NUM_THREADS": "1"})
        self.lives[worker].append(Life(worker, serial, process, punisher.Log(f"{name}.out")))

    def start(self):
        for shard in range(punisher.SHARDS):
            self.start_shard(shard)
        for worker in range(punisher.WORKERS):
            self.start_worker(worker)
        self.wait(lambda: all(self.now(worker).first_step_at() for worker in range(punisher.WORKERS)))

    def wait(self, condition, seconds=WAIT_S):
        """Reads the workers' lines until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise punisher.Failure(f"the training did not continue within {seconds} s")
            time.sleep(POLL_S)
            self.read()

    def step(self):
        return max(self.now(worker).steps for worker in range(punisher.WORKERS))

    def finish(self, step):
        """Lets the workers train to this step, and returns the rows of the training."""
        partial = self.end_file.with_suffix(".part")
        partial.write_text(str(step), encoding="utf-8")
        partial.rename(self.end_file)
        self.wait(lambda: all(self.now(worker).finished for worker in range(punisher.WORKERS)), 2 * SECONDS)
        events = [event for lives in self.lives for life in lives for event in life.events]
        rows = {event["step"]: event for event in events if "loss" in event}
        ends = [life.events[-2]["loss"] for life in map(self.now, range(punisher.WORKERS))]
        if len(set(ends)) != 1:
            raise Failed(f"the workers have different models at the end: their losses are {ends}")
        begin = min(event["at"] for event in events if "step" in event)
        return [{"step": step, "loss": rows[step]["loss"], "quality": rows[step]["quality"], "seconds": rows[step]["at"] - begin}
                for step in sorted(rows)], begin


def disturbed(training, seed, seconds, mtbf):
    """Kills processes at random times. Returns {"kind", "at", "recovery"} of each kill."""
    draw = random.Random(seed)
    kills, end, at = [], time.monotonic() + seconds, time.monotonic()
    while (at := max(time.monotonic(), at + draw.expovariate(1 / mtbf))) < end:
        training.wait(lambda: time.monotonic() >= at, seconds)  # pylint: disable=cell-var-from-loop
        began = time.monotonic()
        if draw.random() < 0.5:
            kind, worker = "worker", draw.randrange(punisher.WORKERS)
            training.kill_worker(worker)
            training.start_worker(worker)
            training.wait(lambda: training.now(worker).first_step_at())  # pylint: disable=cell-var-from-loop
        else:
            kind, shard = "shard", draw.randrange(punisher.SHARDS)
            training.kill_shard(shard)
            training.start_shard(shard)
            step = training.step() + 1  # an update of one more step may have been on its way
            training.wait(lambda: training.step() > step)  # pylint: disable=cell-var-from-loop
        kills.append({"kind": kind, "at": began, "recovery": time.monotonic() - began})
    return kills


def trained(here, seconds, mtbf, last_step=None):
    """Returns (rows, kills) of a training: with kills for these seconds, or undisturbed to `last_step`."""
    with tempfile.TemporaryDirectory(prefix="millrace-kills-") as folder:
        training = Training(here, folder)
        try:
            training.start()
            kills = [] if last_step else disturbed(training, here.seed, seconds, mtbf)
            rows, begin = training.finish(last_step or training.step() + STEPS_AFTER)
        except punisher.Failure as failure:
            logs = [path.read_text(encoding="utf-8", errors="replace")[-600:] for path in sorted(Path(folder).glob("worker-*.log"))]
            raise Failed(f"{failure}\n" + "\n".join(log for log in logs if log)) from failure
        finally:
            training.end()
    return rows, [{**kill, "at": kill["at"] - begin} for kill in kills]


def plot(runs, kills):
    figure, axes = panels(1, 2)
    for axis, by, title in ((axes[0][0], "seconds", "time, s"), (axes[0][1], "step", "step")):
        for name, rows in runs.items():
            axis.plot([row[by] for row in rows], [row["loss"] for row in rows], label=name)
        axis.set(xlabel=title, ylabel="held-out loss")
        axis.legend()
    low, high = axes[0][0].get_ylim()
    for kind, colour in (("worker", "tab:red"), ("shard", "tab:purple")):
        at = [kill["at"] for kill in kills if kill["kind"] == kind]
        axes[0][0].vlines(at, low, low + (high - low) / 20, colors=colour, label=f"a {kind} is killed")
    axes[0][0].legend()
    return figure


def main():
    here = Experiment("kills_loss", "A training whose workers and shards are killed at random", "No figure of a paper", PROGRAM)
    need_torch()
    need_data("tinyshakespeare.txt.gz")
    seconds, mtbf = (QUICK_SECONDS, QUICK_MTBF_S) if here.quick else (SECONDS, MTBF_S)
    rows, kills = trained(here, seconds, mtbf)
    print(f"  {len(kills)} kills, {rows[-1]['step']} steps; now the same steps without kills", flush=True)
    runs = {"killed": rows, "undisturbed": trained(here, seconds, mtbf, rows[-1]["step"])[0]}
    ends = []
    for name, of in runs.items():
        ends.append({"training": name, "steps": of[-1]["step"], **{key: of[-1][key] for key in ("seconds", "loss", "quality")}})
    table(ends, [("training", "", "s"), ("steps", "steps", "d"), ("seconds", "seconds", ".0f"), ("loss", "held-out loss", ".4f"),
                 ("quality", "accuracy", ".4f")])
    recoveries = {kind: sorted(kill["recovery"] for kill in kills if kill["kind"] == kind) for kind in ("worker", "shard")}
    medians = "; ".join(f"{len(of)} kills of a {kind}: median {of[len(of) // 2]:.1f} s, longest {of[-1]:.1f} s" for kind, of in recoveries.items() if of)
    here.compare("no figure; a job that survives should train to the loss of an undisturbed one",
                 f"after {ends[0]['steps']} steps, held-out loss {ends[0]['loss']:.4f} with {len(kills)} kills, {ends[1]['loss']:.4f} without; "
                 f"time {ends[0]['seconds']:.0f} s with kills, {ends[1]['seconds']:.0f} s without; until the next step: {medians}",
                 "a killed worker loses its residual: it has no state file here; its start loads PyTorch on two busy cores")
    here.finish(plot(runs, kills), {"workers": punisher.WORKERS, "shards": punisher.SHARDS, "mtbf_s": mtbf, "rows": ends, "recovery_s": recoveries,
                                    "kills": kills, "curves": runs})


if __name__ == "__main__":
    main()
