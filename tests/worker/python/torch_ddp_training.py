"""Training for the cases of torch_ddp_cases.py: the ranks, models, batches, and comparisons of parameters."""

import itertools
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from millrace.torch import State, hook

UPDATE_S = 60  # until an update that no rank holds up is there
SKIPPED = "skipped: "  # begins the result of a case that raised SkipTest


class Ranks:
    """One rank's view of the test: its number, the library, the shards, and those of another number."""

    def __init__(self, rank, world_size, library, servers, other_servers=None):
        self.rank, self.world_size, self.library, self.servers = rank, world_size, library, servers
        self.other_servers = other_servers
        self._jobs = itertools.count()

    def job_name(self):
        """Returns the name of a new job: the same at all ranks, which call it equally often."""
        return f"ddp{next(self._jobs)}"

    def state(self, job=None, servers=None, **options):
        """Returns a State of a new job."""
        options = {"rank": self.rank, "world_size": self.world_size, "select": "none", **options}
        if (servers or self.servers) == "peers":
            return State(path="peers", job=job or self.job_name(), _library=self.library, **options)
        return State(servers or self.servers, job=job or self.job_name(), _library=self.library, **options)

    def gather(self, value):
        """Returns the value of every rank."""
        values = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


class Deep(torch.nn.Module):
    """Three layers of 400,000 parameters, in more than one bucket of DDP; four of them are small."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(64, 700), torch.nn.Linear(700, 500), torch.nn.Linear(500, 10)

    def forward(self, inputs):
        return self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


class Branches(torch.nn.Module):
    """Two layers, of which a step uses one; the third is never used."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = torch.nn.Linear(64, 10), torch.nn.Linear(64, 10), torch.nn.Linear(64, 10)
        self.turn = 0

    def forward(self, inputs):
        self.turn += 1
        return (self.left if self.turn % 2 else self.right)(inputs)


class Tied(torch.nn.Module):
    """A language model's shape: the output layer has the weights of the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 32)
        self.output = torch.nn.Linear(32, 64, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, inputs):
        return self.output(self.embedding(inputs.abs().mul(10).long().clamp(max=63)).mean(1))[:, :10]


class Turns(torch.nn.Module):
    """Uses one of its two layers in each step, the same one at all ranks. Returns the layer's weights."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 300, bias=False) for _ in range(2))

    def forward(self, turn):
        return self.layers[turn](torch.eye(64)).t()


class Half(torch.nn.Module):
    """A layer with weights of 16 bits that computes in 32."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(40, 64).to(dtype))

    def forward(self, inputs):
        return inputs @ self.weight.float().t()


class Noise(torch.nn.Module):
    """Two parameters, whose gradients are the two halves of the inputs."""

    def __init__(self):
        super().__init__()
        self.halves = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(20_000)) for _ in range(2)])

    def forward(self, inputs):
        return torch.cat(list(self.halves)) @ inputs


def frozen():
    """Returns a model whose middle layer does not train."""
    model = Deep()
    for parameter in model.second.parameters():
        parameter.requires_grad = False
    return model


def batch(rank, at):
    """Returns the inputs and labels of one step of one rank."""
    draw = torch.Generator().manual_seed(1_000 * at + rank)
    return torch.randn(8, 64, generator=draw), torch.randint(0, 10, (8,), generator=draw)


def loss_of(ddp, ranks, at):
    inputs, labels = batch(ranks.rank, at)
    return torch.nn.functional.cross_entropy(ddp(inputs), labels)


def plain_step(ranks, ddp, optimizer, at):
    optimizer.zero_grad()
    loss_of(ddp, ranks, at).backward()
    optimizer.step()


def wrapped(make, state=None, **options):
    torch.manual_seed(5)
    ddp = DistributedDataParallel(make(), bucket_cap_mb=0.1, **options)
    if state is not None:
        ddp.register_comm_hook(state, hook)
    return ddp


def train(ranks, ddp, step=plain_step, steps=4):
    """Trains and returns the parameters."""
    optimizer = torch.optim.SGD([parameter for parameter in ddp.parameters() if parameter.requires_grad], lr=0.1, momentum=0.9)
    for at in range(steps):
        step(ranks, ddp, optimizer, at)
    return [parameter.detach().clone() for parameter in ddp.module.parameters()]


def stats_of_early_pushes(ranks, **options):
    """Returns the state's figures of steps in which each rank in turn is ahead of the others.

    Such a rank stays in its backward pass until an update is there. The others push nothing before it has pushed a bucket.
    """
    pushed, ahead = [], None

    def step(ranks, ddp, optimizer, at):
        nonlocal ahead
        optimizer.zero_grad()
        loss, ahead = loss_of(ddp, ranks, at), at % ranks.world_size == ranks.rank
        if not ahead:
            dist.barrier()
        loss.backward()
        optimizer.step()

    def last_gradient(_):
        if ahead:
            assert pushed, "no bucket was pushed before the last gradient"
            dist.barrier()
            until = time.monotonic() + UPDATE_S
            while all(bucket.there is None for bucket in pushed):
                assert time.monotonic() < until, "no update came within the backward pass"
                time.sleep(0.001)
        pushed.clear()

    with ranks.state(**options) as state:
        ddp = wrapped(Deep, state)
        train(ranks, ddp, steps=2)  # from the second step on DDP has its final buckets
        send = state._exchange.send
        state._exchange.send = lambda bucket: (send(bucket), pushed.append(bucket))[0]
        ddp.module.first.weight.register_hook(last_gradient)
        train(ranks, ddp, step, steps=ranks.world_size)
        return state.stats()


def assert_near(found, expected, bound=2e-6):
    for one, other in zip(found, expected):
        error = float((one - other).abs().max() / other.abs().max().clamp(min=1e-9))
        assert error <= bound, f"a parameter of shape {list(one.shape)} differs by {error} of its largest value"


def assert_ranks_agree(ranks, parameters):
    for one, other in zip(*ranks.gather(parameters)[:2]):
        assert torch.equal(one, other), "the ranks have different parameters"


class SmallScaler:
    """The parts of torch's GradScaler that a loop uses, for gradients on the CPU: torch 1.13 has none for those."""

    def __init__(self):
        self.scale_now, self.skipped = 2.0**12, 0

    def get_scale(self):
        return self.scale_now

    def scale(self, loss):
        return loss * self.scale_now

    def step(self, optimizer):
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        self.infinite = not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if self.infinite:
            self.skipped += 1
            return
        for gradient in gradients:
            gradient.mul_(1 / self.scale_now)
        optimizer.step()

    def update(self):
        if self.infinite:
            self.scale_now /= 2


if hasattr(torch.amp, "GradScaler"):  # from torch 2.3 on
    class CpuScaler(torch.amp.GradScaler):
        """torch's own, which counts the skipped steps."""

        def __init__(self):
            super().__init__("cpu", init_scale=2.0**12)
            self.skipped = 0

        @property
        def scale_now(self):
            return self.get_scale()

        def update(self, new_scale=None):
            before = self.get_scale()
            super().update(new_scale)
            self.skipped += self.get_scale() < before
else:
    CpuScaler = SmallScaler


def scaled_step(scaler, bad_steps):
    def step(ranks, ddp, optimizer, at):
        optimizer.zero_grad()
        loss = loss_of(ddp, ranks, at)
        if at in bad_steps and ranks.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step
