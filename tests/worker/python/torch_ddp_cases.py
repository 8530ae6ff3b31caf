"""The cases that each rank of torch_ddp_test.py runs: a case trains with Millrace's hook and without it, and compares.

A case is a function of a Ranks; it raises AssertionError where the hook is wrong, SkipTest where this torch is too old. Cases of REAL need real shards.
"""

import contextlib
import re
import tempfile
import time
import unittest
import urllib.request

import torch
import torch.distributed as dist

from torch_ddp_training import (Branches, CpuScaler, Deep, Noise, Tied, assert_near, assert_ranks_agree, batch, frozen, loss_of, plain_step,
                                scaled_step, train, wrapped)

try:
    from torch.distributed import checkpoint
except ImportError:  # torch 1.13
    checkpoint = None


def compare(ranks, make=Deep, step=plain_step, **options):
    """Trains with DDP alone and with the hook; parameters must be equal but for the order of sums."""
    expected = train(ranks, wrapped(make, **options), step)
    with ranks.state() as state:
        found = train(ranks, wrapped(make, state, **options), step)
    assert_near(found, expected)
    assert_ranks_agree(ranks, found)


def lossless(ranks):
    compare(ranks)


def bucket_views(ranks):
    compare(ranks, gradient_as_bucket_view=True)


def static_graph(ranks):
    compare(ranks, static_graph=True)


def unused_parameters(ranks):
    compare(ranks, make=Branches, find_unused_parameters=True)


def tied_weights(ranks):
    compare(ranks, make=Tied)


def double_precision(ranks):
    def step(ranks, ddp, optimizer, at):
        optimizer.zero_grad()
        inputs, labels = batch(ranks.rank, at)
        torch.nn.functional.cross_entropy(ddp(inputs.double()), labels).backward()
        optimizer.step()

    compare(ranks, make=lambda: Deep().double(), step=step)


def accumulation(ranks):
    def step(ranks, ddp, optimizer, at):
        optimizer.zero_grad()
        for part in range(3):
            with ddp.no_sync() if part < 2 else contextlib.nullcontext():
                (loss_of(ddp, ranks, 3 * at + part) / 3).backward()
        optimizer.step()

    compare(ranks, step=step)


def frozen_parameters(ranks):
    compare(ranks, make=frozen)


def groups_and_clipping(ranks):
    def run(ddp):
        layers = ddp.module
        optimizer = torch.optim.SGD([{"params": layers.first.parameters(), "lr": 0.5}, {"params": layers.second.parameters()},
                                     {"params": layers.third.parameters(), "weight_decay": 0.1}], lr=0.1)
        for at in range(4):
            optimizer.zero_grad()
            loss_of(ddp, ranks, at).backward()
            norm = torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.2)
            assert norm > 0.2, "the test clips nothing"
            optimizer.step()
        return [parameter.detach().clone() for parameter in ddp.module.parameters()]

    expected = run(wrapped(Deep))
    with ranks.state() as state:
        assert_near(run(wrapped(Deep, state)), expected)


def infinite_gradients(ranks):
    plain, scaler = CpuScaler(), CpuScaler()
    expected = train(ranks, wrapped(Deep), scaled_step(plain, (1, 2)), steps=6)
    with ranks.state(grad_scaler=scaler) as state:
        found = train(ranks, wrapped(Deep, state), scaled_step(scaler, (1, 2)), steps=6)
        assert state.stats().steps_skipped == 2
    assert (scaler.skipped, scaler.scale_now) == (plain.skipped, plain.scale_now) == (2, 2.0**10)
    assert_near(found, expected, bound=1e-5)
    assert_ranks_agree(ranks, found)


def infinite_gradients_without_dense_parameters(ranks):
    """The flag of skipped steps travels without loss beside any allreduce."""
    infinite_gradients_under_topk(ranks, dense_below=0, allreduce="topk_a")


def infinite_gradients_under_topk(ranks, **more):
    """Plain SGD with a small rate moves the weights by the sum of the applied means: with the residuals it must be the
    sum of the kept gradients. They are made up, so that they do not depend on the weights."""
    scaler = CpuScaler()
    with ranks.state(grad_scaler=scaler, select="topk:0.05", **{"dense_below": 300, **more}) as state:
        ddp = wrapped(lambda: torch.nn.Linear(64, 40), state)
        start = ddp.module.weight.detach().double().clone()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
        kept = torch.zeros(40, 64, dtype=torch.float64)
        for at in range(6):
            draw = torch.Generator().manual_seed(10 * at + ranks.rank)
            direction = torch.randn(40, 64, generator=draw)
            optimizer.zero_grad()
            loss = (ddp(torch.eye(64)).t() * direction).sum()
            bad = at in (1, 4)
            scaler.scale(loss * (float("inf") if bad and ranks.rank == at % 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            kept += 0 if bad else direction.double()
        moved = start - ddp.module.weight.detach().double()
        state_of = state.state_dict()
        residual = state_of["residual"][str(ranks.rank)]["weight"].view(40, 64).double()
        deferred = state_of["deferred"]["weight"].view(40, 64).double()
        sums = ranks.gather((residual, kept))
        error = 2 * moved + sum(part[0] for part in sums) + 2 * deferred - sum(part[1] for part in sums)
        assert float(error.abs().max()) < 1e-4, f"{float(error.abs().max())} lost"
        assert float(residual.norm()) > 1 and scaler.skipped == 2


def skips_of(ranks, bad_steps, steps, **options):
    """Trains under a GradScaler whose steps `bad_steps` have an infinite gradient at rank 1: all ranks skip these steps and no
    others, and have the same parameters after every step. Returns these."""
    scaler, parameters = CpuScaler(), []
    scaled = scaled_step(scaler, bad_steps)

    def step(ranks, ddp, optimizer, at):
        before = scaler.skipped
        scaled(ranks, ddp, optimizer, at)
        parameters.append([parameter.detach().clone() for parameter in ddp.module.parameters()])
        assert ranks.gather(scaler.skipped - before) == [int(at in bad_steps)] * ranks.world_size, (at, options)

    with ranks.state(grad_scaler=scaler, **{"select": "topk:0.05", "dense_below": 600, **options}) as state:
        train(ranks, wrapped(Deep, state), step, steps=steps)
        assert state.stats().steps_skipped == len(bad_steps), options
    for after in parameters:
        assert_ranks_agree(ranks, after)
    return parameters


def skipped_steps_of_a_reproducible_job(ranks):
    """The flag of a skipped step is seen and forgotten on any grid: in the first steps, and when the grid has followed its zeros
    to the end. Two runs have the same bits."""
    for options in ({}, {"grid": "4096:90", "select": "none", "dense_below": 0}):
        one, other = (skips_of(ranks, (1, 16), 19, reproducible=True, **options) for _ in range(2))
        for first, second in zip(one, other):
            assert all(torch.equal(a, b) for a, b in zip(first, second)), "two runs differ"


def skipped_steps_with_momentum(ranks):
    """The flag of a skipped step has no velocity: later steps count."""
    skips_of(ranks, (2,), 6, momentum="correction:0.9")
    skips_of(ranks, (2,), 6, momentum="correction:0.9", dense_below=0)


def stats_of_training(ranks, steps, **options):
    """Trains: the ranks agree in the end, and the loss is half of the first one. Returns the state's figures."""
    losses = []

    def step(ranks, ddp, optimizer, at):
        optimizer.zero_grad()
        loss = loss_of(ddp, ranks, at % 4)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))

    with ranks.state(**options) as state:
        found = train(ranks, wrapped(Deep, state), step, steps=steps)
        stats = state.stats()
    assert_ranks_agree(ranks, found)
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4]), (options, losses)
    return stats


def topk_trains(ranks):
    stats = stats_of_training(ranks, 40, select="topk:0.01", rules={"third.*": {"select": "none"}}, summary_every=10)
    assert stats.steps == 40 and 0 < stats.ratio < 0.2, stats.ratio
    assert 0.01 <= stats.density < 0.04, stats.density
    names = [tensor.name for tensor in stats.session.tensors]
    assert names == ["third.bias", "third.weight", "second.weight", "first.weight", "second.bias", "first.bias"], names


def buckets_are_pushed_during_the_backward_pass(ranks):
    """The gradient of the first layer is the last one: buckets of others are pushed before it."""
    events = []
    with ranks.state() as state:
        ddp = wrapped(Deep, state)
        train(ranks, ddp, steps=2)
        waits = state._exchange._waits
        for of in (state.session, waits):
            push = of.push
            of.push = lambda *arguments, push=push, **more: events.append("push") or push(*arguments, **more)
        ddp.module.first.weight.register_hook(lambda gradient: events.append("last gradient"))
        train(ranks, ddp, steps=1)
    assert "push" in events[:events.index("last gradient")] and events[-1] == "push", events


def names_by_hand(ranks):
    """A State that knows the model connects at once, and its parameters have the model's names."""
    torch.manual_seed(5)
    expected = train(ranks, wrapped(Deep))
    model = Deep()
    with ranks.state(model=model, dense_below=0) as state:
        assert state.session is not None
        found = train(ranks, wrapped(lambda: seeded(model), state))
    assert_near(found, expected)


def seeded(model):
    """Gives a model the parameters that Deep() would have now."""
    model.load_state_dict(Deep().state_dict())
    return model


def through_memory(_ranks, old):
    """Saves a State, and returns the function that loads it into another one."""
    saved = old.state_dict()
    return lambda new: new.load_state_dict(saved)


def as_stateful(_ranks, old):
    """Saves a State, and loads it as torch.distributed.checkpoint does: into the values of the new State's state_dict()."""
    saved = old.state_dict()

    def load(new):
        present = new.state_dict()
        assert present.keys() == saved.keys(), (present.keys(), saved.keys())
        new.load_state_dict({**present, **saved})

    return load


def through_checkpoint(ranks, old):
    """The same with torch.distributed.checkpoint."""
    folder = tempfile.TemporaryDirectory()
    at = ranks.gather(folder.name)[0]
    checkpoint.save({"mill": old}, checkpoint_id=at)

    def load(new):
        checkpoint.load({"mill": new}, checkpoint_id=at)  # reads new.state_dict() first
        ranks.gather(folder.name)  # all have loaded
        folder.cleanup()

    return load


def saved_by_distributed_checkpoint(ranks):
    """The residuals of all ranks are in one checkpoint, and each rank loads its own."""
    if not hasattr(checkpoint, "save"):
        raise unittest.SkipTest("torch.distributed.checkpoint has save() from torch 2.2 on")
    saved_and_resumed(ranks, save=through_checkpoint)
    saved_and_resumed(ranks, save=through_checkpoint, momentum="nesterov:0.9")


def saved_as_stateful(ranks):
    """The calls of torch.distributed.checkpoint, which torch 1.13 lacks."""
    saved_and_resumed(ranks, save=as_stateful)
    saved_and_resumed(ranks, save=as_stateful, momentum="nesterov:0.9")


def saved_and_resumed(ranks, save=through_memory, **more):
    """Save, end, resume equals no interruption, bit for bit."""
    def run(interrupted):
        options = {"select": "topk:0.01", "dense_below": 600, **more}
        state = ranks.state(**options)
        ddp = wrapped(Deep, state)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for at in range(6):
            if at == 3 and interrupted:
                load = save(ranks, state)
                saved = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
                state.finish()
                model = Deep()
                # torch.distributed.checkpoint asks a State for its values before it loads: the State must know the model.
                state = ranks.state(**options, **({} if save is through_memory else {"model": model}))
                load(state)
                ddp = wrapped(lambda: model, state)
                ddp.module.load_state_dict(saved["model"])
                optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
                optimizer.load_state_dict(saved["optimizer"])
            plain_step(ranks, ddp, optimizer, at)
        assert state.state_dict()["step"] == 6
        state.finish()
        return [parameter.detach().clone() for parameter in ddp.module.parameters()]

    for one, other in zip(run(interrupted=False), run(interrupted=True)):
        assert torch.equal(one, other), "an interruption changed the parameters"


def saved_and_resumed_with_momentum(ranks):
    """The same with the velocity of option momentum; reading a state changes nothing."""
    saved_and_resumed(ranks, momentum="nesterov:0.9")
    with ranks.state(select="topk:0.01", momentum="correction:0.9") as state:
        train(ranks, wrapped(Deep, state), steps=2)
        velocity = state.state_dict()["velocity"][str(ranks.rank)]
        assert all(float(values.norm()) > 0 for values in velocity.values()), velocity
        again = state.state_dict()  # reading a state changes nothing
        assert all(torch.equal(values, again["velocity"][str(ranks.rank)][name]) for name, values in velocity.items())


def saved_and_resumed_with_thresholds(ranks):
    """A saved state has the thresholds and boundaries that sums reuse, their steps, and the exponents of a grid."""
    saved_and_resumed(ranks, allreduce="oktopk:thresholds_period=4:boundaries_period=5:boundaries=pooled", momentum="correction:0.9")
    for more in ({"allreduce": "oktopk"}, {"select": "threshold_reuse:0.01:5"}, {"select": "topk:0.01:warm_up=8"}, {"reproducible": True}):
        saved_and_resumed(ranks, **more)


def saved_and_resumed_over_shards(ranks):
    """Over shards a saved state has the thresholds of selections, the steps of a warm-up, and the exponents of a grid."""
    for more in ({"select": "threshold_reuse:0.01:5"}, {"select": "topk:0.01:warm_up=8"}, {"reproducible": True},
                 {"select": "threshold_reuse:0.01:5", "reproducible": True, "momentum": "correction:0.9"}):
        saved_and_resumed(ranks, **more)


def saved_and_resumed_with_clip(ranks):
    """A saved residual is not clipped once more."""
    saved_and_resumed(ranks, clip=0.5)


def clipped(gradients, norm_max):
    """Returns the gradients, scaled down to an L2 norm over all of them."""
    norm = torch.sqrt(sum(gradient.double().square().sum() for gradient in gradients))
    assert norm > norm_max, "the test clips nothing"
    return [gradient * (norm_max / norm).float() for gradient in gradients]


def nothing_is_lost(ranks, clip=0.0, steps=3, make=Deep, parts=1, ddp_options=(), **options):
    """Over all ranks and steps: gradients, clipped by a slow reference = updates and residuals. Returns the updates.

    parts  backward passes of a step; all but the last under no_sync().
    """
    model, entered, updates = wrapped(make).module, None, None
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    with ranks.state(dense_below=0, **({"clip": clip} if clip else {}), **options) as state:
        ddp = wrapped(make, state, **dict(ddp_options))
        for at in range(steps):
            ddp.zero_grad()
            model.zero_grad()
            for part in range(parts):
                with ddp.no_sync() if part + 1 < parts else contextlib.nullcontext():
                    sum(loss_of(one, ranks, parts * at + part) for one in (ddp, model)).backward()
            own = [parameter.grad.clone() for _, parameter in trained]
            own = clipped(own, clip * ranks.world_size**0.5) if clip else own  # the update is a mean
            found = [parameter.grad.clone() for parameter in ddp.parameters() if parameter.requires_grad]
            entered = own if entered is None else [one + other for one, other in zip(entered, own)]
            updates = found if updates is None else [one + other for one, other in zip(updates, found)]
        residual = state.state_dict()["residual"][str(ranks.rank)]
        residuals = [residual[name].view(parameter.shape) for name, parameter in trained]
    assert_ranks_agree(ranks, updates)
    all_entered, all_residuals = ([sum(parts) for parts in zip(*ranks.gather(own))] for own in (entered, residuals))
    assert_near([ranks.world_size * update + kept for update, kept in zip(updates, all_residuals)], all_entered, bound=1e-5)
    return updates


def nothing_is_lost_in_any_mode(ranks):
    """The same with what DDP and models can do beside the plain loop, while most entries wait."""
    for case in ({"ddp_options": {"static_graph": True}}, {"parts": 3}, {"make": Tied}, {"make": frozen},
                 {"ddp_options": {"gradient_as_bucket_view": True}}):
        nothing_is_lost(ranks, select="topk:0.05", **case)


def clipping(ranks):
    """Each rank's gradients are scaled down by their norm over all parameters, in whole and sparse sums."""
    nothing_is_lost(ranks, clip=0.5)
    nothing_is_lost(ranks, clip=0.5, select="topk:0.05")


def noise_is_clipped_as_without_millrace(ranks):
    """Independent gradients: clip leaves about the update that clip_grad_norm_() leaves of the dense sum or mean."""
    draw, clip = torch.Generator().manual_seed(ranks.rank), 3.0
    own = torch.randn(40_000, generator=draw)
    for combine in ("mean", "sum"):
        dense = torch.nn.Parameter(torch.zeros_like(own))
        dense.grad = sum(ranks.gather(own)) / (ranks.world_size if combine == "mean" else 1)
        assert torch.nn.utils.clip_grad_norm_([dense], clip) > 10 * clip
        with ranks.state(dense_below=0, clip=clip, combine=combine) as state:
            ddp = wrapped(Noise, state)
            ddp(own).backward()
            found = torch.cat([parameter.grad for parameter in ddp.parameters()])
        assert (found - dense.grad).norm() < 0.05 * clip, (combine, found.norm())


def error_in_the_hook(ranks):
    state = ranks.state()
    ddp = wrapped(Deep, state)
    loss_of(ddp, ranks, 0).backward()
    state.session.close()
    try:
        loss_of(ddp, ranks, 1).backward()
        raise AssertionError("training continued without a session")
    except ranks.library.JobError as error:
        assert error.code
    state.close()


def timeout_is_a_job_error(ranks):
    """A rank that pushes nothing: backward() of the other one raises JobError within the time limit."""
    model = Deep()
    state = ranks.state(model=model, timeout=1.0)
    ddp = wrapped(lambda: model, state)
    if ranks.rank == 0:
        began = time.monotonic()
        try:
            loss_of(ddp, ranks, 0).backward()
            raise AssertionError("the update of one rank alone was complete")
        except ranks.library.JobError as error:
            assert error.code == "timeout", error
        assert time.monotonic() - began < 120  # the default is 600 s
    dist.barrier()
    state.close()


def other_number_of_workers(ranks, **more):
    """The residuals of two workers, loaded by one: an empty gradient without selection applies their mean, and momentum's."""
    with ranks.state(select="topk:0.01", dense_below=0, **more) as state:
        train(ranks, wrapped(Deep, state), steps=3)
        saved = ranks.gather(state.state_dict())
    alone = dist.new_group([0])
    job = ranks.job_name()
    if ranks.rank != 0:
        return
    with ranks.state(job=job, world_size=1, **more) as state:
        state.load_state_dict(saved)
        ddp = wrapped(Deep, state, process_group=alone)
        (0 * loss_of(ddp, ranks, 0)).backward()
        for name, parameter in ddp.module.named_parameters():
            kept, velocity = (sum(saved[rank].get(key, {str(rank): {name: torch.zeros(1)}})[str(rank)][name] for rank in (0, 1)) / 2
                              for key in ("residual", "velocity"))
            assert float(kept.norm()) > 0 and bool(velocity.any()) == bool(more)
            assert float((parameter.grad.flatten() - kept - 0.9 * velocity).abs().max()) < 1e-6, name


def other_number_of_shards(ranks):
    """A job over two shards continues over three: gradients of both jobs = updates of both and the residuals at the end."""
    def added(sums, parameters):
        gradients = [parameter.grad.double() for parameter in parameters]
        return gradients if sums is None else [one + other for one, other in zip(sums, gradients)]

    model, saved, entered, updates = wrapped(Deep).module, None, None, None
    for servers in (ranks.servers, ranks.other_servers):
        with ranks.state(servers=servers, select="topk:0.01", dense_below=600) as state:
            ddp = wrapped(Deep, state)
            if saved is not None:
                state.load_state_dict(saved)
            for at in range(3):
                ddp.zero_grad()
                model.zero_grad()
                sum(loss_of(one, ranks, at) for one in (ddp, model)).backward()
                entered, updates = added(entered, model.parameters()), added(updates, ddp.parameters())
            saved = state.state_dict()
            residual = saved["residual"][str(ranks.rank)]
            assert float(residual["second.weight"].norm()) > 0
    assert saved["step"] == 6
    residuals = [residual[name].view(parameter.shape).double() for name, parameter in model.named_parameters()]
    all_entered, all_residuals = ([sum(parts) for parts in zip(*ranks.gather(own))] for own in (entered, residuals))
    assert_near([ranks.world_size * update + kept for update, kept in zip(updates, all_residuals)], all_entered, bound=1e-5)


def verdict_of_the_planner(ranks):
    """After the first steps the figures have the rate from which on dense gradients would be faster. The log has the model's
    times of small parameters."""
    with unittest.TestCase().assertLogs("millrace.torch", "INFO") as logs, ranks.state(select="topk:0.1", link_rate="1gbit") as state:
        ddp = wrapped(Deep, state)
        train(ranks, ddp, steps=2)
        found = re.findall(r"dense_below=4096 \((\d+) entries: [\d.e-]+ us dense and [\d.e-]+ us selected at 1 Gbit/s", logs.output[0])
        assert found == ["10", "500", "700"], logs.output
        assert state.stats().dense_from_rate == 0
        train(ranks, ddp, steps=12)
        stats = state.stats()
        assert stats.dense_from_rate > 0
        assert ("dense would be faster" in stats.advice) == (stats.dense_from_rate < 1e9), stats.advice


def copies_and_metrics(ranks):
    """f32 buckets go in and out without a copy, and /metrics answers on the port of the rank."""
    with ranks.state(select="topk:0.01", http="127.0.0.1:0") as state:
        ddp = wrapped(Deep, state)
        plain_step(ranks, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 0)
        before = ranks.library.copies()
        train(ranks, ddp, steps=2)
        assert ranks.library.copies() == before, (before, ranks.library.copies())
        with urllib.request.urlopen(f"http://127.0.0.1:{state.http_port}/metrics", timeout=10) as page:
            assert b"millrace_worker_" in page.read()


def copies_are_counted(ranks):
    """bytes_in of a step: of f32 buckets 0. A gradient counts once under a GradScaler, over peers with clipping, and, but with
    clipping, in the step that returns a residual. The flag of a GradScaler is sent as it is, which peers copy."""
    scaler = CpuScaler()
    entries = sum(parameter.numel() for parameter in Deep().parameters())
    by_peers = int(ranks.servers == "peers")
    for options, copied, returned, flag in (({}, 0, 1, 0), ({"clip": 1.0}, by_peers, 0, 0), ({"grad_scaler": scaler}, 1, 1, 4 * by_peers)):
        with ranks.state(select="topk:0.01", dense_below=0, **options) as state:
            ddp = wrapped(Deep, state)

            def bytes_of_step():
                before = ranks.library.copies()
                loss_of(ddp, ranks, 0).backward()
                after = ranks.library.copies()
                assert after.bytes_out == before.bytes_out
                return after.bytes_in - before.bytes_in

            bytes_of_step()  # rebuilds the buckets
            found = bytes_of_step(), bytes_of_step()
            assert found == (4 * entries * copied + flag,) * 2, (options, found)
            state.state_dict()
            found = bytes_of_step()
            assert found == 4 * entries * (copied + returned) + flag, (options, found)


class Refusals(torch.utils.data.Dataset):
    """Its rows are the codes of the error that a session's call raises in the process that reads them."""

    def __init__(self, session):
        self._session = session

    def __len__(self):
        return 8

    def __getitem__(self, at):
        try:
            self._session.stats()
        except Exception as error:
            return getattr(error, "code", repr(error))
        return "no error"


def forked_loaders(ranks):
    """DataLoader forks processes while a session runs: a call raises there, they end, and training continues."""
    model = Deep()
    with ranks.state(model=model) as state:
        assert state.session is not None
        rows = Refusals(state.session)
        assert rows[0] == "no error"
        loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context="fork")
        ddp = wrapped(lambda: model, state)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for at, codes in enumerate(loader):
            assert codes == 4 * ["invalid_argument"], codes
            plain_step(ranks, ddp, optimizer, at)
        assert at == 1


def momentum_for_another_number_of_ranks(ranks):
    other_number_of_workers(ranks, momentum="correction:0.9")


ALL = (lossless, bucket_views, static_graph, unused_parameters, tied_weights, double_precision, accumulation,
       frozen_parameters, groups_and_clipping, infinite_gradients, infinite_gradients_under_topk, topk_trains, names_by_hand,
       saved_and_resumed, error_in_the_hook, buckets_are_pushed_during_the_backward_pass)
REAL = (clipping, noise_is_clipped_as_without_millrace, nothing_is_lost_in_any_mode, saved_and_resumed_over_shards, saved_and_resumed_with_clip, saved_and_resumed_with_momentum,
        saved_by_distributed_checkpoint, saved_as_stateful, timeout_is_a_job_error, other_number_of_workers,
        verdict_of_the_planner, copies_and_metrics, copies_are_counted, other_number_of_shards, forked_loaders, skipped_steps_of_a_reproducible_job, skipped_steps_with_momentum)
OVER_PEERS = (lossless, bucket_views, static_graph, unused_parameters, tied_weights, frozen_parameters, groups_and_clipping, names_by_hand,
              accumulation, double_precision, infinite_gradients, infinite_gradients_under_topk, copies_are_counted, verdict_of_the_planner,
              infinite_gradients_without_dense_parameters, topk_trains, saved_and_resumed,
              saved_and_resumed_with_momentum, error_in_the_hook, timeout_is_a_job_error, other_number_of_workers, forked_loaders, clipping, noise_is_clipped_as_without_millrace,
              saved_and_resumed_with_clip, saved_by_distributed_checkpoint, saved_as_stateful, momentum_for_another_number_of_ranks,
              skipped_steps_of_a_reproducible_job,
              skipped_steps_with_momentum, saved_and_resumed_with_thresholds, nothing_is_lost_in_any_mode,
              buckets_are_pushed_during_the_backward_pass)
