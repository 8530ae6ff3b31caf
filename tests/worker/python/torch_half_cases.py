"""Cases of torch_ddp_test.py, over shards and over peers, about gradients of 16 bits and about autocast."""

import contextlib
from inspect import signature
from unittest import mock

import torch
from torch.nn.parallel import DistributedDataParallel

from torch_ddp_cases import compare
from torch_ddp_training import Deep, Half, assert_ranks_agree, batch, loss_of, train, wrapped

HALVES = (torch.float16, torch.bfloat16)


def wrapped_alone(make, state):
    """Returns DDP of a model whose first weights are not broadcast: gloo of torch 1.13 moves no bf16, that of Debian testing no
    16 bits. Equal seeds give all ranks the same weights."""
    if "init_sync" in signature(DistributedDataParallel).parameters:
        return wrapped(make, state, init_sync=False)
    with mock.patch("torch.nn.parallel.distributed._sync_module_states"):
        return wrapped(make, state)


def half_precision(ranks):
    """Buckets of 16 bits return the mean of the ranks' gradients, rounded once."""
    for dtype in HALVES:
        with ranks.state() as state:
            ddp, alone = wrapped_alone(lambda dtype=dtype: Half(dtype), state), Half(dtype)
            alone.load_state_dict(ddp.module.state_dict())
            sum(loss_of(one, ranks, 0) for one in (ddp, alone)).backward()
            own = alone.weight.grad
            found, expected = ddp.module.weight.grad, sum(part.float() for part in ranks.gather(own)) / ranks.world_size
        assert found.dtype == own.dtype == dtype and float(own.abs().max()) > 0
        assert torch.equal(found, expected.to(dtype)), float((found.float() - expected).abs().max())


def brain_floats_train(ranks):
    """A model of bf16 trains with the largest entries of its gradients."""
    losses = []

    def step(ranks, ddp, optimizer, at):
        optimizer.zero_grad()
        inputs, labels = batch(ranks.rank, at % 4)
        loss = torch.nn.functional.cross_entropy(ddp(inputs.bfloat16()).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))

    with ranks.state(select="topk:0.05") as state:
        found = train(ranks, wrapped_alone(lambda: Deep().bfloat16(), state), step, steps=24)
        assert 0 < state.stats().ratio < 0.2, state.stats()
    assert found[0].dtype == torch.bfloat16
    assert_ranks_agree(ranks, found)
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4]), losses


def autocast(ranks):
    """Under autocast to bf16 the weights and their gradients have 32 bits: the hook changes nothing."""
    def step(ranks, ddp, optimizer, at):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16) if at else contextlib.nullcontext():
            inputs, labels = batch(ranks.rank, at)
            outputs = ddp(inputs)
        assert outputs.dtype == (torch.bfloat16 if at else torch.float32)
        torch.nn.functional.cross_entropy(outputs.float(), labels).backward()
        optimizer.step()

    compare(ranks, step=step)


ALL = (half_precision, brain_floats_train, autocast)
