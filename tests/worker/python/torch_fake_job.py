"""A job of fake sessions in one process: its States, parameters and gradients."""

import itertools

import torch

from millrace.torch import State, hook
from torch_fakes import FakeBucket, FakeLibrary, SumsInProcess

NAMES = itertools.count()
SIZES = {"first.weight": (40, 30), "first.bias": (40,), "second.weight": (7, 40), "second.bias": (7,)}


class Scaler:
    """The part of GradScaler that a State uses."""

    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale


class Job:
    """All ranks of a job in one process: each has a State, and the same parameters under other objects."""

    def __init__(self, workers=2, name=None, **options):
        self.library = FakeLibrary(SumsInProcess())
        self.name = name or f"job{next(NAMES)}"
        self.parameters = [{key: torch.nn.Parameter(torch.zeros(size)) for key, size in SIZES.items()}
                           for _ in range(workers)]
        self.states = [State("tcp://a:1,tcp://b:2", job=self.name, rank=rank, world_size=workers, _library=self.library,
                             named_parameters=self.parameters[rank].items(), **options) for rank in range(workers)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for state in self.states:
            state.close()

    def step(self, gradients, dtype=torch.float32):
        """One step: gradients[rank] is {name: values}; dtype is the buckets'. Returns {name: values} of each rank, as DDP would see them."""
        order = list(reversed(SIZES))
        futures = []
        for first, last in ((order[:2], False), (order[2:], True)):
            for rank, state in enumerate(self.states):
                bucket = FakeBucket([self.parameters[rank][name] for name in first], [gradients[rank][name] for name in first],
                                    last, dtype)
                futures.append((rank, first, hook(state, bucket)))
        results = [{} for _ in self.states]
        for rank, names, future in futures:
            flat, begin = future.wait(), 0
            for name in names:
                entries = self.parameters[rank][name].numel()
                results[rank][name] = flat[begin:begin + entries].view(SIZES[name]).clone()
                begin += entries
        return results

    def bucket(self, rank):
        """Returns a bucket of all parameters of one rank, which is a whole step."""
        names = list(reversed(SIZES))
        return FakeBucket([self.parameters[rank][name] for name in names], [torch.ones(SIZES[name]) for name in names])

    def residual_sum(self, name):
        return sum(state.session.residual(name) for state in self.states)


def gradients(seed, workers=2, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    return [{name: scale * torch.randn(size, generator=draw) for name, size in SIZES.items()} for _ in range(workers)]


def mean(parts, name):
    return sum(part[name].double() for part in parts) / len(parts)
