"""The cases that each rank of torch_fsdp_test.py runs: FSDP2 with Millrace's hook beside HSDP's own all-reduce.

A case is a function of a Ranks; it raises AssertionError where the hook is wrong.
"""

import gc
import itertools
import weakref

import torch
import torch.distributed as dist

from torch_shards import metrics_of

REPLICAS, SHARDS = 2, 2


def has_hooks():
    """Returns whether this torch has FSDP2 with hooks in the place of its all-reduce."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except (ImportError, ValueError):  # ValueError: torch 1.13 with Python 3.11
        return False
    return hasattr(FSDPModule, "set_all_reduce_hook")


if has_hooks():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    import millrace
    from millrace.torch import State, fsdp_hook


class Ranks:
    """One rank's view of the test: the mesh of replicas and shards, and Millrace's shards."""

    def __init__(self, servers, folder):
        self.servers, self.folder = servers, folder
        self.mesh = init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard"))
        self._jobs = itertools.count()

    def state(self, model, **options):
        """Returns a State of a new job."""
        options = {"select": "none", "job": f"fsdp{next(self._jobs)}", **options}
        return State(None if options.get("path") == "peers" else self.servers,
                     **{"model": model, "mesh": self.mesh, **options})

    def gather(self, value):
        """Returns the value of every rank."""
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values


class Deep(torch.nn.Module):
    """Three layers with rows that two shards cannot halve, and a scale of one entry, which only one shard has."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = torch.nn.Linear(64, 257), torch.nn.Linear(257, 96), torch.nn.Linear(96, 7)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs):
        return self.scale * self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


def sharded(mesh, make=Deep, **policy):
    """Returns a model whose layers and itself are sharded."""
    torch.manual_seed(5)
    model = make()
    options = {"mesh": mesh, **({"mp_policy": MixedPrecisionPolicy(**policy)} if policy else {})}
    for layer in (model.first, model.second):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def hooked(ranks, options, make=Deep, **policy):
    """Returns a model and its State: shards within a replica, Millrace between replicas."""
    model = sharded(ranks.mesh["shard"], make, **policy)
    return model, hook_all(model, ranks.state(model, **options))


def wrapped_modules(model):
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def hook_all(model, state):
    for module in wrapped_modules(model):
        module.set_all_reduce_hook(fsdp_hook(state))
    return state


def loss_of(model, at):
    draw = torch.Generator().manual_seed(1_000 * at + dist.get_rank())
    inputs, labels = torch.randn(8, 64, generator=draw), torch.randint(0, 7, (8,), generator=draw)
    return torch.nn.functional.cross_entropy(model(inputs).float(), labels)


def plain_step(model, optimizer, at):
    optimizer.zero_grad()
    loss = loss_of(model, at)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, step=plain_step, steps=4):
    """Trains, and returns this rank's shards of the parameters."""
    optimizer = optimizer_of(model)
    for at in range(steps):
        step(model, optimizer, at)
    return shards_of(model)


def shards_of(model):
    return [parameter.to_local().detach().clone() for parameter in model.parameters()]


def rows_of(whole, shard):
    """Returns the rows of a tensor that FSDP2 gives a shard."""
    chunks = torch.chunk(whole, SHARDS)
    return chunks[shard] if shard < len(chunks) else whole[:0]


def assert_near(found, expected, bound=2e-6):
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape, (one.shape, other.shape)
        if other.numel():
            error = float((one - other).abs().max() / other.abs().max().clamp(min=1e-9))
            assert error <= bound, f"a shard of shape {list(one.shape)} differs by {error} of its largest value"


def assert_replicas_agree(ranks, found):
    everywhere = ranks.gather(found)
    for shard in range(SHARDS):
        for one, other in zip(everywhere[shard], everywhere[SHARDS + shard]):
            assert torch.equal(one, other), "the replicas have different parameters"


def compare(ranks, step=plain_step, options=None, prepare=lambda module: None, passes=1, **policy):
    """Trains with HSDP's own all-reduce and with the hook: parameters are equal but for the order of sums.

    passes  backward passes with sums in a step.
    """
    native = sharded(ranks.mesh, **policy)
    model, state = hooked(ranks, options or {}, **policy)
    for module in wrapped_modules(native) + wrapped_modules(model):
        prepare(module)
    expected = train(native, step)
    with state:
        found = train(model, step)
        assert state.stats().steps == 4 * passes
    assert_near(found, expected)
    assert_replicas_agree(ranks, found)


def refused(error, words, call):
    try:
        call()
    except error as raised:
        assert words in str(raised), raised
    else:
        raise AssertionError(f"not refused: {words}")


class BrokenWriter:
    def add_scalar(self, *arguments):
        raise OSError("no space")


def lossless(ranks):
    """Figures that cannot be written do not end training."""
    compare(ranks, options={"tensorboard": BrokenWriter(), "summary_every": 1})


def lossless_beside_ddp(ranks):
    """Without selection the parameters are those of DistributedDataParallel over all ranks."""
    torch.manual_seed(5)
    ddp = torch.nn.parallel.DistributedDataParallel(Deep())
    optimizer = optimizer_of(ddp)
    for at in range(4):
        plain_step(ddp, optimizer, at)
    shard = ranks.mesh.get_local_rank(1)
    expected = [rows_of(parameter.detach(), shard) for parameter in ddp.parameters()]
    model = sharded(ranks.mesh["shard"])
    with torch.no_grad():
        loss_of(model, 0)  # leaves whole parameters in the model
    with hook_all(model, ranks.state(model)):
        assert_near(train(model), expected)


def lossless_over_peers(ranks):
    compare(ranks, options={"path": "peers"})


def sums_of_another_type(ranks):
    """FSDP2 reduces in f64, and divides by the number of shards behind the hook; Millrace adds up in f32."""
    compare(ranks, reduce_dtype=torch.float64, prepare=lambda module: module.set_force_sum_reduction_for_comms(True))


def divide_factor(ranks):
    """With a factor of its own HSDP has the sum over the replicas; a mean is refused."""
    def by_shards(module):
        module.set_gradient_divide_factor(float(SHARDS))

    compare(ranks, options={"combine": "sum"}, prepare=by_shards)
    model, state = hooked(ranks, {})
    for module in wrapped_modules(model):
        by_shards(module)
    refused(ValueError, 'combine="sum"', lambda: loss_of(model, 0).backward())
    state.close()


def modules_of_one_group(ranks):
    """Two modules in one call of fully_shard() have one gradient in a step."""
    model = Deep()
    fully_shard([model.first, model.second], mesh=ranks.mesh["shard"])
    fully_shard(model, mesh=ranks.mesh["shard"])
    with hook_all(model, ranks.state(model)) as state:
        train(model, steps=2)
        assert state.stats().steps == 2


def missing_hook(ranks):
    """set_all_reduce_hook() is not recursive: a hook of the model alone is noticed."""
    model = sharded(ranks.mesh["shard"])
    state = ranks.state(model)
    model.set_all_reduce_hook(fsdp_hook(state))
    refused(ValueError, "first, second: set_all_reduce_hook", lambda: loss_of(model, 0).backward())
    state.close()


def hook_of_no_module_or_of_several(ranks):
    """The hook of another model has no group of the State's, and a hook of all modules does not know which one calls."""
    model, state = hooked(ranks, {})
    other = sharded(ranks.mesh["shard"])
    hook_all(other, state)
    refused(ValueError, "this one is that of 0", lambda: loss_of(other, 0).backward())
    state.close()
    model, state = hooked(ranks, {})
    of_all = fsdp_hook(state)
    for module in wrapped_modules(model):
        module.set_all_reduce_hook(of_all)
    refused(ValueError, "this one is that of 3", lambda: loss_of(model, 0).backward())
    state.close()


class Skips(Deep):
    def forward(self, inputs):
        return self.scale * self.third(torch.relu(self.second(inputs.repeat(1, 5)[:, :257])))


def skipped_module(ranks):
    """A module without a gradient is named at the end of the backward pass."""
    model, state = hooked(ranks, {}, make=Skips)
    refused(ValueError, "first had no gradient", lambda: loss_of(model, 0).backward())
    state.close()


class Calls(torch.autograd.Function):
    """Calls a function in the backward pass."""

    @staticmethod
    def forward(context, inputs, call):
        context.call = call
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        context.call()
        return gradient, None


class Between(Deep):
    """Calls a function in the backward pass between two modules: the hook of one of them has returned."""

    def forward(self, inputs):
        between = Calls.apply(torch.relu(self.first(inputs)), lambda: self.between())
        return self.scale * self.third(torch.relu(self.second(between)))


def pass_that_ends_between_modules(ranks):
    """The replicas have the gradient of one module, and no update of another: no State is saved."""
    def ends():
        raise ArithmeticError("of the model")

    model, state = hooked(ranks, {}, make=Between)
    model.between = ends
    refused(ArithmeticError, "of the model", lambda: loss_of(model, 0).backward())
    refused(RuntimeError, "made between two steps", state.state_dict)
    model.reset_iter_state()
    model.between = lambda: None
    refused(RuntimeError, "ended within its step", lambda: loss_of(model, 1).backward())
    refused(RuntimeError, "made between two steps", state.finish)


def hooks_do_not_wait(ranks):
    """The hook of a module has returned when another replica has not begun its backward pass."""
    model, state = hooked(ranks, {"timeout": 20.0}, make=Between)
    model.between = dist.barrier if ranks.mesh.get_local_rank(0) == 0 else lambda: None
    with state:
        loss = loss_of(model, 0)
        if ranks.mesh.get_local_rank(0) == 1:
            dist.barrier()
        loss.backward()
        assert_replicas_agree(ranks, [parameter.grad.to_local() for parameter in model.parameters()])


def hook_behind_a_gradient(ranks):
    """An optimizer that steps within the backward pass would step without the sums."""
    model, state = hooked(ranks, {})
    next(model.first.parameters()).register_post_accumulate_grad_hook(lambda parameter: None)
    refused(ValueError, "first has register_post_accumulate_grad_hook()", lambda: loss_of(model, 0).backward())
    state.close()


def gradients_that_are_added_to(ranks):
    """Two backward passes without zero_grad(), each with sums."""
    def step(model, optimizer, at):
        optimizer.zero_grad()
        loss_of(model, 2 * at).backward()
        loss_of(model, 2 * at + 1).backward()
        optimizer.step()

    compare(ranks, step=step, passes=2)
    compare(ranks, step=step, passes=2, reduce_dtype=torch.float64,
            prepare=lambda module: module.set_force_sum_reduction_for_comms(True))


def accumulation_that_the_hook_does_not_see(ranks):
    model, state = hooked(ranks, {})
    model.set_requires_all_reduce(False)
    refused(ValueError, "set_requires_gradient_sync(False)", lambda: loss_of(model, 0).backward())
    state.close()


def dropped_state_is_freed(ranks):
    model, state = hooked(ranks, {})
    loss_of(model, 0).backward()
    state.finish()
    dropped = weakref.ref(state)
    del model, state
    gc.collect()
    assert dropped() is None, "the State lives on"


def accumulation(ranks):
    def step(model, optimizer, at):
        optimizer.zero_grad()
        for part in range(3):
            model.set_requires_gradient_sync(part == 2)
            (loss_of(model, 3 * at + part) / 3).backward()
        optimizer.step()

    compare(ranks, step=step)


def topk_trains(ranks):
    model, state = hooked(ranks, {"select": "topk:0.02", "dense_below": 500})
    losses = []
    with state:
        found = train(model, lambda *step: losses.append(plain_step(*step[:2], step[2] % 4)), steps=40)
        stats = state.stats()
    assert_replicas_agree(ranks, found)
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4]), losses
    assert stats.steps == 40 and 0 < stats.ratio < 0.3, stats.ratio
    names = {tensor.name for tensor in stats.session.tensors}
    assert {"first.weight", "second.weight", "third.bias"} <= names, names
    assert ("scale" in names) == (ranks.mesh.get_local_rank(1) == 0), names


def saved_and_resumed(ranks, **options):
    """Save with torch.distributed.checkpoint, end, resume equals no interruption, bit for bit."""
    options = {"select": "topk:0.02", "dense_below": 500, **options}

    def run(interrupted):
        model, state = hooked(ranks, options)
        optimizer = optimizer_of(model)
        for at in range(6):
            if at == 3 and interrupted:
                checkpoint.save({"mill": state}, checkpoint_id=ranks.folder / "checkpoint")
                parts = [parameter.detach().clone() for parameter in model.parameters()]
                momenta = optimizer.state_dict()
                state.finish()
                model, state = hooked(ranks, options)
                checkpoint.load({"mill": state}, checkpoint_id=ranks.folder / "checkpoint")
                for parameter, part in zip(model.parameters(), parts):
                    parameter.data.copy_(part)
                optimizer = optimizer_of(model)
                optimizer.load_state_dict(momenta)
            plain_step(model, optimizer, at)
        saved = state.state_dict()
        assert saved["step"] == 6, saved["step"]
        residual = saved["residual"][str(ranks.mesh.get_local_rank(0))]
        assert any(float(values.norm()) > 0 for values in residual.values())
        state.finish()
        return shards_of(model)

    for one, other in zip(run(interrupted=False), run(interrupted=True), strict=True):
        assert torch.equal(one, other), "an interruption changed the parameters"


def saved_and_resumed_with_momentum(ranks):
    """The same with the velocity of option momentum."""
    saved_and_resumed(ranks, momentum="nesterov:0.9")


def timeout_is_a_job_error(ranks):
    """A replica that sums nothing: backward() of the other one raises JobError."""
    model, state = hooked(ranks, {"timeout": 1.0})
    if ranks.mesh.get_local_rank(0) == 0:
        try:
            loss_of(model, 0).backward()
            raise AssertionError("the update of one replica alone was complete")
        except millrace.JobError as error:
            assert error.code == "timeout", error
    dist.barrier()
    state.close()


def states_of_all_ranks(ranks):
    """Each rank takes its own residual out of the states of all ranks: a step without selection applies their mean."""
    model, state = hooked(ranks, {"select": "topk:0.02", "dense_below": 0})
    with state:
        train(model, steps=3)
        saved = ranks.gather(state.state_dict())
    model, state = hooked(ranks, {})
    shard = ranks.mesh.get_local_rank(1)
    with state:
        other = saved[(shard + 1) % SHARDS]
        refused(ValueError, "for the same number of shards", lambda: state.load_state_dict(other))
        state.load_state_dict(saved)
        (0 * loss_of(model, 0)).backward()
        gradients = {name: parameter.grad.to_local().flatten() for name, parameter in model.named_parameters()}
    for name, gradient in gradients.items():
        if gradient.numel():
            kept = sum(saved[replica * SHARDS + shard]["residual"][str(replica)][f"{name}@{shard}/{SHARDS}"]
                       for replica in range(REPLICAS)) / REPLICAS
            assert float((gradient - kept).abs().max()) < 1e-7, name


class Term(torch.nn.Module):
    """The gradient of its weights is the input."""

    def __init__(self, rows):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(rows, 64))

    def forward(self, direction):
        return (self.weight * direction).sum()


class Sums(torch.nn.Module):
    """Two terms, and no parameter of its own: the hook of the model itself has nothing to sum."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Term(257), Term(96)

    def forward(self, first, second):
        return self.first(first) + self.second(second)


def directions_of(rank, at):
    draw = torch.Generator().manual_seed(1_000 * at + rank)
    return torch.randn(257, 64, generator=draw), torch.randn(96, 64, generator=draw)


def nothing_is_lost(ranks):
    """Entries are in the updates or in a residual: gradients of all replicas = updates of all replicas + residuals."""
    model, state = hooked(ranks, {"select": "topk:0.02", "dense_below": 0}, make=Sums)
    replica, shard = ranks.mesh.get_local_rank(0), ranks.mesh.get_local_rank(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    start = [values.double() for values in shards_of(model)]
    entered = [torch.zeros_like(values) for values in start]
    with state:
        for at in range(6):
            optimizer.zero_grad()
            model(*directions_of(dist.get_rank(), at)).backward()
            optimizer.step()
            of_replica = [directions_of(replica * SHARDS + other, at) for other in range(SHARDS)]
            for number, into in enumerate(entered):
                into += rows_of(sum(directions[number].double() for directions in of_replica) / SHARDS, shard)
        kept = state.state_dict()["residual"][str(replica)]
    parts = ranks.gather((entered, [kept[f"{name}@{shard}/{SHARDS}"].double() for name in ("first.weight", "second.weight")]))
    for number, values in enumerate(shards_of(model)):
        applied = REPLICAS * (start[number] - values.double())
        missing = -applied
        for other in range(REPLICAS):
            gradients, residuals = (part[number] for part in parts[other * SHARDS + shard])
            assert float(residuals.norm()) > 1
            missing += gradients - residuals.view_as(gradients)
        assert float(applied.norm()) > 1
        assert float(missing.abs().max()) < 1e-4, f"parameter {number}: {float(missing.abs().max())} is lost"


class Unused(Deep):
    """Does not use its scale, which is in one group with the third layer."""

    def forward(self, inputs):
        return self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


def parameter_without_gradient(ranks):
    """The flat gradient of a module lacks a parameter: the backward pass raises a sentence."""
    model, state = hooked(ranks, {}, make=Unused)
    refused(ValueError, "needs a gradient in every step", lambda: loss_of(model, 0).backward())
    state.close()


def metrics_of_every_process(ranks):
    """/metrics of a process has the steps of its own shard's job, over shards and over peers."""
    for options, name in (({}, "millrace_worker_steps_total"), ({"path": "peers"}, "millrace_peer_steps_total")):
        model, state = hooked(ranks, {"select": "topk:0.1", "http": "127.0.0.1:0", **options})
        with state:
            train(model, steps=2)
            lines = [line for line in metrics_of(state.session).splitlines() if line.startswith(name + "{")]
            ports = ranks.gather(state.http_port)
        assert len(set(ports)) == dist.get_world_size() and 0 not in ports, ports
        assert len(lines) == 1 and f'.shard{ranks.mesh.get_local_rank(1)}"' in lines[0], lines
        assert float(lines[0].rsplit(" ", 1)[1]) >= 2, lines


def refusals(ranks):
    """A State that cannot sum is refused with a sentence, before a job begins."""
    model = sharded(ranks.mesh["shard"])
    for error, word, call in (
            (ValueError, "needs model=", lambda: ranks.state(None)),
            (TypeError, "rank=", lambda: ranks.state(model, rank=0)),
            (ValueError, "grad_scaler", lambda: ranks.state(model, grad_scaler=object())),
            (ValueError, "one shard alone", lambda: ranks.state(model, clip=1.0)),
            (ValueError, "two, replicas and shards", lambda: ranks.state(model, mesh=ranks.mesh["shard"])),
            (ValueError, "is sharded over the ranks", lambda: ranks.state(sharded(None))),
            (ValueError, "is sharded over the ranks", lambda: ranks.state(sharded(ranks.mesh["replicate"]))),
            (ValueError, "FSDP2 adds them up itself", lambda: ranks.state(sharded(ranks.mesh))),
            (ValueError, "wrap the model itself", lambda: ranks.state(Deep())),
    ):
        refused(error, word, call)
    with ranks.state(model) as state:
        refused(RuntimeError, "its hook is fsdp_hook()", lambda: state.exchange(None))


ALL = (lossless, lossless_beside_ddp, lossless_over_peers, sums_of_another_type, divide_factor, accumulation,
       modules_of_one_group, topk_trains, nothing_is_lost, saved_and_resumed, saved_and_resumed_with_momentum,
       states_of_all_ranks, metrics_of_every_process, refusals, parameter_without_gradient, missing_hook,
       hook_of_no_module_or_of_several, skipped_module,
       pass_that_ends_between_modules, hooks_do_not_wait, hook_behind_a_gradient, gradients_that_are_added_to,
       accumulation_that_the_hook_does_not_see, dropped_state_is_freed, timeout_is_a_job_error)
