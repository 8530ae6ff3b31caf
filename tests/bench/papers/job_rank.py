#!/usr/bin/python3
"""One rank of a training of jobs.py: torch computes the gradients, and one scheme exchanges them.

    job_rank.py '{"network": "cnn", "scheme": {"kind": "ddp"}, "steps": 10, "report_every": 5, "seed": 1}'

"lr_factor" multiplies the learning rate of the network; "batch" and "momentum" replace its own. RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT are torchrun's. Rank 0 prints a line of JSON a report: step, the loss and the quality on
held-out data, and of the steps so far, without the reports, the seconds and the seconds of its processor.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel

import networks
from experiment import DATA, ROOT, trace_models

sys.path.insert(0, str(ROOT / "worker/python/examples"))
from bf16_hook import Bf16State, bf16_hook  # pylint: disable=wrong-import-position
from char_transformer import CharTransformer, read_text, windows  # pylint: disable=wrong-import-position

SYMBOLS = 65  # of Tiny Shakespeare
HELD_OUT_WINDOWS = 64
BUCKET_MB = 25  # of DDP: its default


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut: a basic block of ResNet."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        inner = relu(self.norms[0](self.first(x)))
        return relu(self.norms[1](self.second(inner)) + self.shortcut(x))


class ResNet8(nn.Module):
    """Three blocks of 16, 32 and 64 channels: 75,000 parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.blocks(self.first(x)).mean((2, 3)))


class Digits:
    """MNIST. Quality: the share of held-out digits that are right."""

    def __init__(self, model, batch):
        self.model, self.batch = model, batch
        self.train, self.held_out = networks.digits()

    def loss(self, model, draw):
        return networks.cross_entropy(model, self.train, torch.randint(0, networks.TRAINED_ON, (self.batch,), generator=draw))

    def report(self, model):
        scores = model(self.held_out[0])
        return cross_entropy(scores, self.held_out[1]).item(), (scores.argmax(1) == self.held_out[1]).float().mean().item()


class Characters:
    """Tiny Shakespeare. Quality: the share of held-out characters that are right."""

    def __init__(self, model, batch, context):
        self.model, self.batch, self.context = model, batch, context
        data, symbols = read_text(DATA)
        assert symbols == SYMBOLS
        self.train, self.held_out = data[:len(data) * 9 // 10], data[len(data) * 9 // 10:]

    def loss(self, model, draw):
        inputs, targets = windows(self.train, self.batch, self.context, draw)
        return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def report(self, model):
        inputs, targets = windows(self.held_out, HELD_OUT_WINDOWS, self.context, torch.Generator().manual_seed(7))
        scores = model(inputs)
        right = (scores.argmax(-1) == targets).float().mean().item()
        return cross_entropy(scores.flatten(0, 1), targets.flatten()).item(), right


def sgd(rate):
    """Returns what makes SGD with Nesterov's momentum. The rate shrinks by 1 - momentum. `corrected`: the momentum is the State's."""
    return lambda parameters, momentum, corrected: torch.optim.SGD(
        parameters, rate * (1 - momentum), momentum=0.0 if corrected else momentum, nesterov=momentum > 0 and not corrected)


# Name: (task of a batch, optimizer, norm that updates are clipped to, batch of a rank).
NETWORKS = {
    "cnn": (lambda batch: Digits(trace_models().Cnn(), batch), sgd(0.05), None, 16),
    "resnet8": (lambda batch: Digits(ResNet8(), batch), sgd(0.2), None, 16),
    "lstm": (lambda batch: Characters(trace_models().CharLstm(SYMBOLS), batch, 32), sgd(1.0), 0.25, 4),
    "transformer": (lambda batch: Characters(CharTransformer(SYMBOLS, 64, 128, 5), batch, 64), lambda p, *_: torch.optim.Adam(p, 1e-3), 1.0, 4),
    "transformer10m": (lambda batch: Characters(CharTransformer(SYMBOLS, 64, 320, 8), batch, 64), sgd(0.3), None, 1),
}


class Exchange:
    """A scheme around the model: {"kind": KIND, "options": those of millrace.State}.

    alone  no exchange: each rank trains a model of its own.
    flat   one all-reduce of all gradients after the backward pass: nothing overlaps.
    ddp    DDP's own buckets over gloo, in f32; bf16 the same in bf16 (bf16_hook.py).
    mill   a State, with millrace.hook. Where its options clip, updates are not clipped.
    """

    def __init__(self, model, scheme, servers, bucket_mb):
        self.note, self.mill = "", None
        self.flat = scheme["kind"] == "flat"
        self.model = model if scheme["kind"] in ("alone", "flat") else DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        if scheme["kind"] == "bf16":
            self.note = "bf16"
            self.model.register_comm_hook(Bf16State(), bf16_hook)
        if scheme["kind"] == "mill":
            import millrace
            self.mill = millrace.State(servers, job="papers", model=self.model, **scheme["options"])
            self.model.register_comm_hook(self.mill, millrace.hook)

    def backward(self, loss):
        loss.backward()
        if self.flat:
            gradients = [parameter.grad for parameter in self.model.parameters()]
            total = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(total)
            total /= dist.get_world_size()
            at = 0
            for gradient in gradients:
                gradient.copy_(total[at:at + gradient.numel()].view_as(gradient))
                at += gradient.numel()


def say(row):
    print(json.dumps(row), flush=True)


def train(run):
    rank = dist.get_rank()
    torch.manual_seed(run["seed"])
    make, optimizer_of, norm, batch = NETWORKS[run["network"]]
    task = make(run.get("batch", batch))
    exchange = Exchange(task.model, run["scheme"], run.get("servers"), run.get("bucket_mb", BUCKET_MB))
    options = run["scheme"].get("options", {})
    norm = None if "clip" in options else norm
    optimizer = optimizer_of(task.model.parameters(), run.get("momentum", 0.0), "momentum" in options)
    for group in optimizer.param_groups:
        group["lr"] *= run.get("lr_factor", 1.0)
    draw = torch.Generator().manual_seed(1000 * run["seed"] + rank)
    seconds = processor = 0.0
    for step in range(run["steps"] + 1):
        if step % run["report_every"] == 0 or step == run["steps"]:
            dist.barrier()
            if rank == 0:
                task.model.eval()
                torch.set_num_threads(len(os.sched_getaffinity(0)))  # the other ranks wait
                with torch.no_grad():
                    loss, quality = task.report(task.model)
                torch.set_num_threads(1)
                task.model.train()
                say({"step": step, "loss": loss, "quality": quality, "seconds": seconds, "processor": processor})
            dist.barrier()
        if step == run["steps"]:
            break
        began, used = time.monotonic(), time.process_time()
        optimizer.zero_grad()
        exchange.backward(task.loss(exchange.model, draw))
        if norm:
            nn.utils.clip_grad_norm_(task.model.parameters(), norm)
        optimizer.step()
        seconds += time.monotonic() - began
        processor += time.process_time() - used
    if rank == 0:
        end = {"parameters": sum(parameter.numel() for parameter in task.model.parameters()), "note": exchange.note}
        if exchange.mill is not None:
            stats = exchange.mill.stats()
            end |= {"density": stats.density, "waited": stats.seconds_waited, "bytes_up": stats.bytes_up, "bytes_down": stats.bytes_down}
        say(end)
    if exchange.mill is not None:
        exchange.mill.finish()


def main():
    dist.init_process_group("gloo")
    train(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
