"""The cases that each rank of torch_fsdp_test.py runs: FSDP2 with Millrace's hook beside HSDP's own all-reduce.

A case is a function of a Ranks; it raises AssertionError where the hook is wrong.
"""

import itertools

import torch
import torch.distributed as dist

REPLICAS, SHARDS = 2, 2


def has_hooks():
    """Returns whether this torch has FSDP2 with hooks in the place of its all-reduce."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return False
    return hasattr(FSDPModule, "set_all_reduce_hook")


if has_hooks():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    import torch_fakes
    from millrace.torch import State, fsdp_hook


class Ranks:
    """One rank's view of the test: the mesh of replicas and shards, and Millrace's shards, or "fake": sums over gloo."""

    def __init__(self, servers, folder):
        self.servers, self.folder = servers, folder
        self.mesh = init_device_mesh("cpu", (REPLICAS, SHARDS), mesh_dim_names=("replicate", "shard"))
        self._jobs = itertools.count()
        # State imports the real library by itself.
        self._library = torch_fakes.FakeLibrary(torch_fakes.SumsOverGloo(self.mesh.get_group(0))) if servers == "fake" else None

    def state(self, model, **options):
        """Returns a State of a new job."""
        options = {"select": "none", "job": f"fsdp{next(self._jobs)}", **options}
        return State(None if options.get("path") == "peers" else self.servers,
                     **{"model": model, "mesh": self.mesh, "_library": self._library, **options})

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
    state = ranks.state(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_all_reduce_hook(fsdp_hook(state, module))
    return model, state


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


def assert_near(found, expected, bound=2e-6):
    for one, other in zip(found, expected):
        if other.numel():
            error = float((one - other).abs().max() / other.abs().max().clamp(min=1e-9))
            assert error <= bound, f"a shard of shape {list(one.shape)} differs by {error} of its largest value"


def assert_replicas_agree(ranks, found):
    everywhere = ranks.gather(found)
    for shard in range(SHARDS):
        for one, other in zip(everywhere[shard], everywhere[SHARDS + shard]):
            assert torch.equal(one, other), "the replicas have different parameters"


def compare(ranks, step=plain_step, bound=2e-6, options=None, **policy):
    """Trains with HSDP's own all-reduce and with the hook: parameters are equal but for the order of sums."""
    expected = train(sharded(ranks.mesh, **policy), step)
    model, state = hooked(ranks, options or {}, **policy)
    with state:
        found = train(model, step)
        assert state.stats().steps == 4
    assert_near(found, expected, bound)
    assert_replicas_agree(ranks, found)


def refused(error, words, call):
    try:
        call()
    except error as raised:
        assert words in str(raised), raised
    else:
        raise AssertionError(f"not refused: {words}")


def lossless(ranks):
    compare(ranks)


def lossless_over_peers(ranks):
    compare(ranks, options={"path": "peers"})


def sums_in_sixteen_bits(ranks):
    """Gradients are bf16 on their way: the hook's are added up in f32, and HSDP's in bf16."""
    compare(ranks, bound=0.02, param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


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


def saved_and_resumed(ranks):
    """Save with torch.distributed.checkpoint, end, resume equals no interruption, bit for bit."""
    options = {"select": "topk:0.02", "dense_below": 500}

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

    for one, other in zip(run(interrupted=False), run(interrupted=True)):
        assert torch.equal(one, other), "an interruption changed the parameters"


def states_of_all_ranks(ranks):
    """Each rank takes its own residual out of the states of all ranks: a step without selection applies their mean."""
    model, state = hooked(ranks, {"select": "topk:0.02", "dense_below": 0})
    with state:
        train(model, steps=3)
        saved = ranks.gather(state.state_dict())
    model, state = hooked(ranks, {})
    with state:
        state.load_state_dict(saved)
        (0 * loss_of(model, 0)).backward()
        gradients = {name: parameter.grad.to_local().flatten() for name, parameter in model.named_parameters()}
    shard = ranks.mesh.get_local_rank(1)
    for name, gradient in gradients.items():
        if gradient.numel():
            kept = sum(saved[replica * SHARDS + shard]["residual"][str(replica)][f"{name}@{shard}/{SHARDS}"]
                       for replica in range(REPLICAS)) / REPLICAS
            assert float((gradient - kept).abs().max()) < 1e-7, name
    other = saved[(shard + 1) % SHARDS]
    refused(ValueError, "for the same number of shards", lambda: state.load_state_dict(other))


class Unused(Deep):
    """Does not use its scale, which is in one group with the third layer."""

    def forward(self, inputs):
        return self.third(torch.relu(self.second(torch.relu(self.first(inputs)))))


def parameter_without_gradient(ranks):
    """The flat gradient of a module lacks a parameter: the backward pass raises a sentence."""
    model, state = hooked(ranks, {}, make=Unused)
    if ranks.mesh.get_local_rank(1) == 0:  # the others have no entry of the scale, and lack nothing
        refused(ValueError, "needs a gradient in every step", lambda: loss_of(model, 0).backward())
    else:
        refused(Exception, "", lambda: (loss_of(model, 0).backward(), 1 / 0))
    state.close()


def refusals(ranks):
    """What cannot be is refused with a sentence, before a job begins."""
    model = sharded(ranks.mesh["shard"])
    for error, word, call in (
            (ValueError, "needs model=", lambda: ranks.state(None)),
            (TypeError, "rank=", lambda: ranks.state(model, rank=0)),
            (ValueError, "grad_scaler", lambda: ranks.state(model, grad_scaler=object())),
            (ValueError, "two, replicas and shards", lambda: ranks.state(model, mesh=ranks.mesh["shard"])),
            (ValueError, "FSDP2 adds them up itself", lambda: ranks.state(sharded(ranks.mesh))),
            (ValueError, "wrap the model itself", lambda: ranks.state(Deep())),
    ):
        refused(error, word, call)
    with ranks.state(model) as state:
        refused(ValueError, "is not a module of model=", lambda: fsdp_hook(state, torch.nn.Linear(2, 2)))


ALL = (lossless, sums_in_sixteen_bits, accumulation, topk_trains, saved_and_resumed, states_of_all_ranks,
       refusals, parameter_without_gradient)
REAL = (lossless_over_peers,)
