#!/usr/bin/python3
"""One worker of kills_loss.py: trains the LSTM of job_rank.py by a Replica, until the file of the end names a step.

    kills_rank.py '{"worker": 0, "workers": 4, "servers": "tcp://…", "end": "FILE", "report_every": 25, "seed": 1}'

Prints a line of JSON for each event: {"joined": STEP}, {"step": STEP}, {"step", "loss", "quality"} of held-out data,
{"finished": STEP}. "at" has the seconds of the machine's monotonic clock. The workers report in turns: all have the
same model.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

import millrace.torch
from job_rank import NETWORKS

NETWORK, RATE, SELECT = "lstm", 0.5, "topk:0.01"


def say(**event):
    print(json.dumps({**event, "at": time.monotonic()}), flush=True)


def last_step(path):
    """Returns the step at which the training ends, or None before it is decided."""
    return int(path.read_text(encoding="utf-8")) if path.exists() else None


def report(task, step):
    task.model.eval()
    with torch.no_grad():
        loss, quality = task.report(task.model)
    task.model.train()
    say(step=step, loss=loss, quality=quality)


def train(run):
    torch.set_num_threads(1)
    torch.manual_seed(run["seed"])
    make, _, norm, batch = NETWORKS[NETWORK]
    task, end = make(batch), Path(run["end"])
    with millrace.torch.Replica(task.model, run["servers"], job="kills", worker=run["worker"], workers=run["workers"], rate=RATE,
                                select=SELECT) as replica:
        say(joined=replica.steps)
        reported = -1
        while (last := last_step(end)) is None or replica.steps < last:
            step = replica.steps
            if step % run["report_every"] == 0 and step // run["report_every"] % run["workers"] == run["worker"] and step != reported:
                report(task, step)
                reported = step
            # The rows depend on the step alone: a new process needs no state.
            draw = torch.Generator().manual_seed(hash((run["seed"], step, run["worker"])) % 2**62)
            task.model.zero_grad()
            task.loss(task.model, draw).backward()
            clip_grad_norm_(task.model.parameters(), norm)
            replica.step()
            say(step=replica.steps)
    report(task, replica.steps)
    say(finished=replica.steps)


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
