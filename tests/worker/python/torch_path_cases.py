"""Cases of torch_ddp_test.py with real shards, about the bits of reproducible jobs over other paths."""

import contextlib

import torch
import torch.distributed as dist

from torch_ddp_cases import skips_of
from torch_ddp_training import Deep, plain_step, stats_of_early_pushes, train, wrapped
from torch_shards import switch_of


def parameters_of_steps(ranks, steps=12, **options):
    """Returns the parameters after each step of a reproducible job."""
    found = []

    def step(ranks, ddp, optimizer, at):
        plain_step(ranks, ddp, optimizer, at)
        found.append([parameter.detach().clone() for parameter in ddp.module.parameters()])

    with ranks.state(reproducible=True, **options) as state:
        train(ranks, wrapped(Deep, state), step, steps=steps)
        by_switch = getattr(state.session.stats(), "by_switch", None)  # peers have none
        assert bool(by_switch and by_switch.at_switch) == (options.get("path") == "switch"), by_switch
    return found


def assert_same_steps(found, expected):
    for at, (one, other) in enumerate(zip(found, expected)):
        assert all(map(torch.equal, one, other)), f"the paths differ from step {at} on"


CASES = ({}, {"select": "topk:0.01"}, {"select": "topk:0.05", "dense_below": 0, "momentum": "correction:0.9"})


@contextlib.contextmanager
def path_of_a_switch(ranks, jobs):
    """Runs a switch for that many jobs, numbered from 1. Yields the options of a State that takes it."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(switch_of(range(1, 1 + jobs), ranks.world_size)) if ranks.rank == 0 else None
        address, key = ranks.gather(found)[0]
        yield {"path": "switch", "switch_address": address, "switch_key_file": key}
        dist.barrier()


def same_bits_over_shards_a_switch_and_peers(ranks):
    """A reproducible job has the same parameters over all three paths, after every step. Fused parameters would have a common
    grid and a common selection, and peers fuse none, so neither do shards here."""
    with path_of_a_switch(ranks, len(CASES)) as path:
        for number, options in enumerate(CASES, 1):
            over_shards = parameters_of_steps(ranks, fuse_below=0, **options)
            assert_same_steps(parameters_of_steps(ranks, fuse_below=0, switch_job=number, **path, **options), over_shards)
            assert_same_steps(parameters_of_steps(ranks, servers="peers", **options), over_shards)


def same_bits_over_a_switch(ranks):
    """So it has where shards fuse small parameters, also after skipped steps."""
    with path_of_a_switch(ranks, 1 + len(CASES)) as path:
        for number, options in enumerate(CASES, 1):
            assert_same_steps(parameters_of_steps(ranks, switch_job=number, **path, **options), parameters_of_steps(ranks, **options))
        over_switch = skips_of(ranks, (1, 7), 9, reproducible=True, switch_job=1 + len(CASES), **path)
        assert_same_steps(over_switch, skips_of(ranks, (1, 7), 9, reproducible=True))


def sums_of_the_largest_entries_are_hidden_over_shards(ranks):
    assert stats_of_early_pushes(ranks, select="topk:0.02").seconds_hidden > 0


ALL = (same_bits_over_shards_a_switch_and_peers, same_bits_over_a_switch,
       sums_of_the_largest_entries_are_hidden_over_shards)
