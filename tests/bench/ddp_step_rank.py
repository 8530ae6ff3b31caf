"""One rank of ddp_step.py: the same steps by each exchange in turn, with and without communication.

    ddp_step_rank.py '{"width": 2048, "layers": 6, "batch": 4, "warmup": 2, "rounds": 15, "servers": "tcp://…", "shards": [PID, …]}'

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are torchrun's. Rank 0 prints one line of JSON at the end: the records
of all ranks' steps.
"""

import contextlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import millrace
from trace_cost import ROOT, processor_seconds

sys.path.insert(0, str(ROOT / "worker/python/examples"))
from bf16_hook import Bf16State, bf16_hook  # pylint: disable=wrong-import-position

MILLRACE = {"millrace": {}, "millrace_reselect": {"reselect": "topk:0.01"}}
SCHEMES = ("f32", "bf16", *MILLRACE, "passes")
SELECT = "topk:0.01"
BLOCK = 1 << 15  # entries of a gradient and a residual that fit into a core's cache
SETTLED_S = 0.05  # Millrace postpones some work past the end of a step


def network(run):
    """Returns a network of equal layers, the same at all ranks."""
    torch.manual_seed(1)
    layers = [part for _ in range(run["layers"]) for part in (nn.Linear(run["width"], run["width"]), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def bytes_of_link():
    """Returns the bytes that this host has sent, and those that it has received."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "eth0":
            fields = counters.split()
            return int(fields[8]), int(fields[0])
    return 0, 0


class Replica:
    """The network under DDP, with the exchange of one scheme.

    Gradients are views of DDP's buckets: it copies none, so the exchange alone makes the difference. Scheme "passes"
    exchanges nothing. It has the passes over memory that error feedback cannot do without.
    """

    def __init__(self, run, scheme):
        self.ddp, self.mill = DistributedDataParallel(network(run), gradient_as_bucket_view=True), None
        self._residuals = [torch.zeros_like(parameter) for parameter in self.ddp.parameters()] if scheme == "passes" else None
        if scheme == "bf16":
            self.ddp.register_comm_hook(Bf16State(), bf16_hook)
        if scheme in MILLRACE:
            self.mill = millrace.State(run["servers"], job=scheme, select=SELECT, model=self.ddp, summary_every=0, **MILLRACE[scheme])
            self.ddp.register_comm_hook(self.mill, millrace.hook)

    def _pass(self):
        """Adds each gradient to its residual, and zeroes it: block by block, so that memory is read and written once."""
        for parameter, residual in zip(self.ddp.parameters(), self._residuals):
            blocks = (whole.detach().view(-1).split(BLOCK) for whole in (parameter.grad, residual))
            for gradient, kept in zip(*blocks):
                kept.add_(gradient)
                gradient.zero_()

    def step(self, inputs, targets, talks, shards):
        """Returns the record of one forward and backward pass, which all ranks begin together."""
        for parameter in self.ddp.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        time.sleep(SETTLED_S)  # work that the step before has postponed is not of this one
        dist.barrier()
        of_shards, of_rank, (sent, received) = processor_seconds(shards), time.process_time(), bytes_of_link()
        began = time.monotonic()
        with contextlib.nullcontext() if talks and self._residuals is None else self.ddp.no_sync():
            cross_entropy(self.ddp(inputs), targets).backward()
        if talks and self._residuals is not None:
            self._pass()
        seconds = time.monotonic() - began
        dist.barrier()  # the others' bytes are complete, too
        time.sleep(SETTLED_S)
        of_rank = time.process_time() - of_rank
        after = bytes_of_link()
        return {"seconds": seconds, "processor_s": of_rank, "shards_processor_s": processor_seconds(shards) - of_shards,
                "bytes_sent": after[0] - sent, "bytes_received": after[1] - received,
                "checksum": sum(parameter.grad.sum().item() for parameter in self.ddp.parameters()) if talks else None}


def main():
    run = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    replicas = {scheme: Replica(run, scheme) for scheme in SCHEMES}
    draw, records = torch.Generator().manual_seed(rank), []
    for number in range(-run["warmup"], run["rounds"]):
        batch = torch.randn(run["batch"], run["width"], generator=draw), torch.randint(0, run["width"], (run["batch"],), generator=draw)
        turn = number % len(SCHEMES)
        for scheme in SCHEMES[turn:] + SCHEMES[:turn]:
            for talks in (True, False) if number % 2 else (False, True):
                record = replicas[scheme].step(*batch, talks, run["shards"])
                records.append({"rank": rank, "round": number, "scheme": scheme, "talks": talks, **record})
    collected = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(records, collected)
    if rank == 0:
        print(json.dumps({"steps": sum(collected, [])}), flush=True)
    for replica in replicas.values():
        if replica.mill:
            replica.mill.finish()


if __name__ == "__main__":
    main()
