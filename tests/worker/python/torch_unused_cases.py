"""Cases of torch_ddp_test.py with real shards or peers: parameters that a step leaves out, and the DDP objects that may do so.

DDP ignores the update of a parameter that no rank used, so no residual or velocity may be in it. Gradients are made up.
"""

import gc
from collections import OrderedDict
from unittest import mock

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from millrace.torch import hook, parameters
from millrace.torch.residuals import dense_of
from torch_ddp_training import Turns, wrapped


def finding(model):
    """Returns a DistributedDataParallel that finds unused parameters."""
    return DistributedDataParallel(model, bucket_cap_mb=0.1, find_unused_parameters=True)


def hooked(ddp, state):
    ddp.register_comm_hook(state, hook)
    return ddp


def assert_nothing_is_lost(ranks, ddp, state, factor=0.0, steps=7):
    """Trains: over all ranks, the gradients with their momentum = updates and residuals."""
    start = [layer.weight.detach().double().clone() for layer in ddp.module.layers]
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    velocity, entered = ([torch.zeros(300, 64, dtype=torch.float64) for _ in start] for _ in range(2))
    for at in range(steps):
        used = at % 3 % 2
        direction = torch.randn(300, 64, generator=torch.Generator().manual_seed(10 * at + ranks.rank))
        optimizer.zero_grad(set_to_none=True)
        (ddp(used) * direction).sum().backward()
        optimizer.step()
        velocity[used] = factor * velocity[used] + direction.double()
        entered[used] += velocity[used]
    residual = state.state_dict()["residual"][str(ranks.rank)]
    for number, layer in enumerate(ddp.module.layers):
        own = residual[f"layers.{number}.weight"].view(300, 64).double()
        sums = ranks.gather((own, entered[number]))
        error = 2 * (start[number] - layer.weight.detach().double()) + sum(kept - given for kept, given in sums)
        lost = float(error.abs().max())
        assert float(own.norm()) > 1 and lost < 1e-4, f"momentum {factor}, layer {number}: {lost} lost"


def unused_parameters_lose_nothing(ranks):
    for factor in (0.0, 0.5):
        with ranks.state(select="topk:0.05", **({"momentum": f"correction:{factor}:unmasked"} if factor else {})) as state:
            assert_nothing_is_lost(ranks, wrapped(Turns, state, find_unused_parameters=True), state, factor)


def unused_parameters_beside_an_older_wrapper(ranks):
    """An object of the same model lives on that finds no unused parameters, as after an attempt without the option."""
    older = wrapped(Turns)
    with ranks.state(select="topk:0.05") as state:
        assert_nothing_is_lost(ranks, hooked(finding(older.module), state), state)
    assert not older.find_unused_parameters


def unused_parameters_of_a_second_wrapper(ranks):
    """A State follows the object that has it now, though the buckets of both have the same parameters."""
    with ranks.state(select="topk:0.05", dense_below=0) as state:
        first = wrapped(Turns, state)
        model = first.module
        (0 * first(0).sum() + 0 * model.layers[1].weight.sum()).backward()
        del first
        assert_nothing_is_lost(ranks, hooked(finding(model), state), state)


def unused_parameters_return_without_the_option(ranks):
    """The object with the option is gone: the next pushes add the residuals that were held back."""
    with ranks.state(select="topk:0.05") as state:
        ddp = wrapped(Turns, state, find_unused_parameters=True)
        model, entered = ddp.module, torch.zeros(300, 64, dtype=torch.float64)
        weight = model.layers[0].weight
        start, optimizer = weight.detach().double().clone(), torch.optim.SGD(model.parameters(), lr=1.0)
        for at in range(6):
            if at == 2:
                assert list(state._exchange._held_back) == ["layers.0.weight"], "no residual is held back"
                del ddp
                gc.collect()
                ddp = hooked(wrapped(lambda: model), state)
            direction = torch.randn(300, 64, generator=torch.Generator().manual_seed(10 * at + ranks.rank))
            optimizer.zero_grad(set_to_none=True)
            sum((ddp(layer) * direction).sum() for layer in ((at,) if at < 2 else (0, 1))).backward()
            optimizer.step()
            entered += direction.double() * (at != 1)
        tensor = state._places["layers.0.weight"].tensor  # state_dict() would give the held residual back first
        own = dense_of(*state.session.take_residual(tensor), 300 * 64).view(300, 64).double()
        lost = float((2 * (start - weight.detach().double()) + sum(kept - given for kept, given in ranks.gather((own, entered)))).abs().max())
        assert not state._owners.finds_unused and lost < 1e-4, f"{lost} lost"


def models_that_share_a_layer(ranks):
    """The first bucket has parameters of the shared layer alone; the model is the one with those of all buckets."""
    shared = torch.nn.Linear(64, 64)
    models = [torch.nn.Sequential(OrderedDict({"own": torch.nn.Linear(own, 64), name: shared}))
              for name, own in (("encoder", 5), ("common", 7), ("common", 9))]
    with mock.patch.object(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 64):
        ddps = [DistributedDataParallel(model, bucket_cap_mb=0.001, find_unused_parameters=True) for model in models]
    for ddp in reversed(ddps):
        with ranks.state() as state:
            hooked(ddp, state)
            for _ in range(2):
                ddp(torch.ones(4, ddp.module.own.in_features)).sum().backward()
            assert set(state._places) == {name for name, _ in ddp.module.named_parameters()}, list(state._places)


def hooks_around_the_hook(ranks):
    """Such a hook copies every bucket. The State does not look through all objects of the process in each step."""
    with ranks.state(select="topk:0.05") as state, mock.patch.object(parameters, "find_owners", wraps=parameters.find_owners) as looks:
        ddp = wrapped(Turns)
        ddp.register_comm_hook(state, default_hooks.fp16_compress_wrapper(hook))
        for _ in range(20):
            (ddp(0).sum() + ddp(1).sum()).backward()
        assert 1 <= looks.call_count <= 9, looks.call_count  # one is for the names
        assert state._owners.finds_unused


def unused_parameters_after_a_freeze(ranks):
    """gc.freeze() hides objects. With model= the State knows its own; else it holds residuals back."""
    for given in (lambda ddp: ddp, lambda ddp: ddp.module):
        ddp = wrapped(Turns, find_unused_parameters=True)
        gc.freeze()
        try:
            with ranks.state(model=given(ddp), select="topk:0.05") as state:
                assert_nothing_is_lost(ranks, hooked(ddp, state), state)
        finally:
            gc.unfreeze()


def unused_parameters_beside_a_failed_wrapper(ranks):
    """An object whose __init__() failed has no module."""
    with ranks.state(select="topk:0.05") as state:
        ddp = wrapped(Turns, state, find_unused_parameters=True)
        gc.collect()  # the list of objects begins with those of no collection
        failed = DistributedDataParallel.__new__(DistributedDataParallel)
        torch.nn.Module.__init__(failed)
        assert_nothing_is_lost(ranks, ddp, state)
    assert not hasattr(failed, "module")


ALL = (unused_parameters_lose_nothing, unused_parameters_beside_an_older_wrapper, unused_parameters_of_a_second_wrapper,
       unused_parameters_return_without_the_option, hooks_around_the_hook,
       models_that_share_a_layer, unused_parameters_after_a_freeze, unused_parameters_beside_a_failed_wrapper)
