"""FSDP2: the sum over replicas of sharded gradients. It takes the place of HSDP's all-reduce.

A mesh of R replicas with S shards each: FSDP2 shards over the S ranks of a replica, and reduces and scatters the
gradients there. Then rank s of every replica has the gradient of the same part of every parameter. These R ranks are
the workers of job JOB.shard<s>. So S jobs run side by side, and none of them has the parameters of another.
"""

import weakref
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from . import device
from .bucket import Bucket, Parts
from .exchange import GIVEN_UP, lasting

if TYPE_CHECKING:
    from .state import State

# Names inside of FSDP2 that this file reads: FSDP2 has no public access to the order of its parameters.
_OF_GROUP = ("_all_reduce_hook", "all_reduce_grads", "gradient_divide_factor", "force_sum_reduction_for_comms", "mesh_info",
             "fsdp_params")
_OF_PARAMETER = ("sharded_param", "sharded_size", "padded_sharded_param_size")
_INSIDE = ("_get_fsdp_state", "_fsdp_param_groups", "_get_gradient_divide_factors", "_div_if_needed", *_OF_GROUP, *_OF_PARAMETER)


def fsdp_hook(state: "State") -> Callable[[torch.Tensor], None]:
    """Returns a hook for FSDPModule.set_all_reduce_hook() of one module: each module needs its own.

    state    a State with mesh= and model=.
    When backward() returns, the gradients of this rank's shards are the means over the replicas, of the entries that the
    update has; 0 elsewhere. They travel while the backward pass continues.
    Errors   RuntimeError: the State has no mesh. From backward(): ValueError, where the hook is not that of one module of
             the State's model; JobError, of the session.
    """
    return state.sharded_hook()


@dataclass(frozen=True)
class MeshPlace:
    """Says to which replica of a mesh this rank belongs, and which shard of it is its own."""

    replica: int
    replicas: int
    shard: int
    shards: int

    @classmethod
    def of_mesh(cls, mesh):
        """Reads a DeviceMesh of two dimensions: replicas, then the shards of each.

        Raises  ValueError: another number of dimensions.
        """
        if mesh.ndim != 2:
            raise ValueError(f"mesh= has {mesh.ndim} dimensions and takes two, replicas and shards: "
                             'init_device_mesh("cpu", (R, S), mesh_dim_names=("replicate", "shard"))')
        return cls(mesh.get_local_rank(0), mesh.size(0), mesh.get_local_rank(1), mesh.size(1))

    def job(self, job):
        """Returns the name of the job of this rank's shard."""
        return f"{job}.shard{self.shard}"

    @property
    def rank(self):
        """This rank's number in the mesh."""
        return self.replica * self.shards + self.shard

    @property
    def suffix(self):
        """The end of the names of this shard's parameters in saved states: other shards have another."""
        return f"@{self.shard}/{self.shards}"


@dataclass(frozen=True)
class _Layout:
    """Says where the parameters of one group of FSDP2 are in its flat gradient."""

    module: str  # for messages
    entries: int  # with the padding behind each parameter
    trained: tuple  # whether each parameter of the group has a gradient
    sizes: dict  # {name: entries of this rank's shard}
    parts: Parts


class ShardedModel:
    """Knows this rank's shards of a model: which part of a group's flat gradient belongs to which parameter.

    FSDP2 has one group of parameters for each call of fully_shard(). The groups are held weakly: they hold the hooks.

    sizes    {name: entries of this rank's shard}, in the order of the model; 0 where the rank has no row.
    mesh     DeviceMesh of replicas and shards.
    Raises   ValueError: fully_shard() has not wrapped the model, or over another mesh; parameters are neither on the CPU
             nor on CUDA.
             RuntimeError: the inside of FSDP2 differs from that of torch 2.14.
    """

    def __init__(self, model, mesh):
        try:
            from torch.distributed.fsdp import FSDPModule
        except (ImportError, ValueError):  # ValueError: torch 1.13 with Python 3.11
            FSDPModule = None
        if not hasattr(FSDPModule, "set_all_reduce_hook"):
            raise RuntimeError(f"torch {torch.__version__} has no FSDPModule.set_all_reduce_hook(): "
                               "FSDP2 through Millrace is tested with torch 2.14")
        sharded = [(name, module) for name, module in model.named_modules() if isinstance(module, FSDPModule)]
        for _, module in sharded:
            module.reshard()  # after a forward pass the model itself shows whole parameters
        names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._layouts = weakref.WeakKeyDictionary()  # {group: _Layout}
        sizes = {}
        for path, module in sharded:
            for group in groups_of(module):
                if group not in self._layouts:
                    _check_mesh(group, mesh, path)
                    self._layouts[group] = _layout_of(group, names, path or "the model itself")
                    sizes.update(self._layouts[group].sizes)
        missing = [name for name in names.values() if name not in sizes]
        if missing:
            raise ValueError(f"no module that fully_shard() has wrapped has the parameter '{missing[0]}': wrap the model itself, "
                             "then make the State")
        if mesh.size() != dist.get_world_size():
            raise ValueError(f"mesh= has {mesh.size()} of {dist.get_world_size()} ranks: a model that another dimension splits "
                             "as well cannot be summed")
        self.sizes = {name: sizes[name] for name in names.values()}

    def groups(self):
        """Returns the groups whose gradients FSDP2 hands to a hook."""
        return [group for group, layout in self._layouts.items() if layout.entries]

    def name(self, group):
        """Returns the module of a group, for messages."""
        return self._layouts[group].module

    def parts(self, group):
        """Returns the Parts of a group's flat gradient."""
        return self._layouts[group].parts

    def check_gradient(self, group, flat):
        """Raises  ValueError: a parameter had no gradient, begins or ceases to need one, or has a hook behind its gradient."""
        layout = self._layouts[group]
        if _trained(group) != layout.trained:
            raise ValueError(f"{layout.module}: requires_grad of a parameter has changed: make another State")
        if flat.numel() != layout.entries or flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(f"the gradient of {layout.module} has {flat.numel()} entries, and its parameters {layout.entries}: "
                             "each parameter of a module needs a gradient in every step")
        if any(getattr(parameter.sharded_param, "_post_accumulate_grad_hooks", None) for parameter in group.fsdp_params):
            raise ValueError(f"a parameter of {layout.module} has register_post_accumulate_grad_hook(): its gradient is the sum "
                             "at the end of the backward pass alone. Step the optimizer behind backward()")

    def begun(self, group):
        """Returns, for each parameter with entries, whether it has a gradient."""
        return [parameter.sharded_param.grad is not None for parameter in _with_entries(group)]

    def write(self, group, sums, begun):
        """Adds sums to the gradients of a group, as FSDP2 does with a flat gradient behind its hook.

        sums   [entries], divided in place.
        begun  of begun(), before the hook returned. Other gradients are zeros, and the sums replace them.
        """
        _divide(group, sums)
        slices = self.parts(group).slices(sums)
        for parameter, has_begun, (_, values) in zip(_with_entries(group), begun, slices, strict=True):
            gradient = parameter.sharded_param.grad.to_local()
            values = values.view(gradient.shape)
            if has_begun:
                gradient.add_(values.to(gradient))
            else:
                gradient.copy_(values)


def groups_of(module):
    """Returns the groups of parameters that FSDP2 has for a module: one, or none where it has no parameters of its own.

    Raises  RuntimeError: the inside of FSDP2 differs.
    """
    try:
        _division()
        groups = module._get_fsdp_state()._fsdp_param_groups
        for group in groups:
            attrgetter(*_OF_GROUP)(group)
            for parameter in group.fsdp_params:
                attrgetter(*_OF_PARAMETER)(parameter)
    except (AttributeError, ImportError) as error:
        raise RuntimeError(f"FSDP2 of torch {torch.__version__} lacks one of {', '.join(_INSIDE)}: FSDP2 through Millrace "
                           "is tested with torch 2.14") from error
    return groups


def _check_mesh(group, mesh, path):
    """Raises  ValueError: a group is not sharded over the second dimension of the mesh alone."""
    if getattr(group.mesh_info, "replicate_mesh_dim", None) is not None:
        raise ValueError('the model is sharded over a mesh with replicas, so FSDP2 adds them up itself: fully_shard(module, '
                         'mesh=mesh["shard"])')
    found = dist.get_process_group_ranks(group.mesh_info.shard_process_group)
    expected = dist.get_process_group_ranks(mesh.get_group(1))
    if found != expected:
        raise ValueError(f"{path or 'the model itself'} is sharded over the ranks {found}, and the second dimension of mesh= has "
                         f'{expected}: fully_shard(module, mesh=mesh["shard"])')


def _trained(group):
    return tuple(parameter.sharded_param.requires_grad for parameter in group.fsdp_params)


def _layout_of(group, names, module):
    begin, sizes, parts = 0, {}, []
    for parameter in group.fsdp_params:
        sharded = parameter.sharded_param
        if not sharded.requires_grad:
            continue
        if sharded.device.type not in ("cpu", "cuda"):
            raise ValueError(f"a parameter of {module} is on {sharded.device}: the hook takes gradients on the CPU and on CUDA")
        if sharded not in names:
            raise ValueError(f"{module} shares a group of FSDP2 with a parameter that is not in model=")
        name = names[sharded]
        sizes[name] = parameter.sharded_size.numel()
        parts.append((name, begin, begin + sizes[name]))
        begin += parameter.padded_sharded_param_size.numel()
    return _Layout(module, begin, _trained(group), sizes, Parts(parts))


def _with_entries(group):
    """Returns the parameters of a group in the order of its Parts."""
    return [parameter for parameter in group.fsdp_params
            if parameter.sharded_param.requires_grad and parameter.sharded_size.numel()]


def _division():
    """Returns two functions of FSDP2: its divisors, and the division."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as inside
    return inside._get_gradient_divide_factors, inside._div_if_needed


def _divide(group, sums):
    """Divides as FSDP2 does behind its hook, where a type of less range, or the user, has it divide there."""
    factors_of, divide = _division()
    _, factor, _, _ = factors_of(group.mesh_info.shard_process_group, None, sums.dtype, sums.device.type,
                                 group.gradient_divide_factor, group.force_sum_reduction_for_comms)
    divide(sums, factor)


class ShardedHook:
    """Is the hook of one module. It holds the State, as DDP holds that of its hook."""

    def __init__(self, state, sums):
        self._state, self.sums = state, sums

    def __call__(self, flat):
        self.sums.add(self, flat)


class ShardedSums:
    """Sums the gradients of a model's groups over the replicas, beside the backward pass.

    A hook hands a copy of the flat gradient to the exchange, and leaves zeros: FSDP2 divides, casts and adds the tensor
    right after its hook. At its end, behind the callbacks of FSDP2, the backward pass awaits the step, and adds the sums
    to the gradients of the parameters.

    exchange  Exchange; each group is a bucket.
    model     ShardedModel.
    combine   of the job.
    A step    is a backward pass, which has the gradient of each group once.
    Devices   no hook waits for a device. The stream that is current at the end of the pass writes the gradients, behind
              the streams of the hooks.
    Threads   those of the backward pass, one at a time.
    Errors    the first error ends the exchange: every later call raises it.
    """

    def __init__(self, exchange, model, combine, count_copied):
        self._exchange, self._model, self._combine, self._count_copied = exchange, model, combine, count_copied
        self._buffers = weakref.WeakKeyDictionary()  # {group: tensor}, which later steps use again
        self._sums = {}  # {group: _Sum} of the present step
        self._step = None  # of the exchange, since its last bucket
        self._task = None  # the number of its backward pass

    def add(self, hook, flat):
        """Begins the sum of a group's flat gradient. REQUIRES: FSDP2 calls the group's hook, within a backward pass.

        Raises  ValueError: the hook is not that of one group, the module is used twice, FSDP2 divides otherwise, or other
                code reads gradients before their sums are there. RuntimeError: an earlier pass ended within its step.
        """
        self._exchange.raise_error()
        try:
            groups, task = self._model.groups(), torch._C._current_graph_task_id()
            if self._sums and task != self._task:
                raise RuntimeError(GIVEN_UP)
            if self._exchange.steps == 0 and not self._sums:
                self._check_hooks(groups)
            group = _group_of(hook, groups)
            self._check_use(group)
            self._model.check_gradient(group, flat)
            if not self._sums:
                self._task = task
                _behind_all_callbacks(self._end_of_backward)
            stream = device.use_on_current_stream(flat)
            buffer = self._copy(group, flat)
            flat.zero_()
            last = len(self._sums) + 1 == len(groups)
            bucket = Bucket(buffer, self._model.parts(group), last, ready=device.ready_of(buffer))
            self._sums[group] = _Sum(bucket, self._model.begun(group), stream)
            self._step = self._exchange.send(bucket)
        except BaseException as error:
            self._exchange.fail(lasting(error))
            raise

    def _end_of_backward(self):
        """Raises  ValueError: a module had no gradient in this pass."""
        try:
            if self._step is None:
                missing = ", ".join(self._model.name(group) for group in self._model.groups() if group not in self._sums)
                raise ValueError(f"{missing} had no gradient: every module needs one in every backward pass that sums. "
                                 "Activation checkpointing takes use_reentrant=False")
            self._exchange.await_step(self._step)
            with torch.no_grad():
                for group, of_group in self._sums.items():
                    of_group.bucket.future.wait()  # of a device: the current stream waits for the sums
                    device.wait_for(of_group.stream)
                    device.use_on_current_stream(of_group.bucket.buffer)
                    self._model.write(group, of_group.bucket.buffer, of_group.begun)
                    self._count_copied(_bytes_of(of_group.bucket.buffer))
        except BaseException as error:
            self._exchange.fail(lasting(error))
            raise
        self._sums, self._step = {}, None

    def _copy(self, group, flat):
        buffer = self._buffers.get(group)
        if buffer is None or (buffer.dtype, buffer.device) != (flat.dtype, flat.device):
            buffer = self._buffers[group] = torch.empty_like(flat)
        buffer.copy_(flat)
        self._count_copied(_bytes_of(flat))
        return buffer

    def _check_hooks(self, groups):
        bare = [self._model.name(group) for group in groups if getattr(group._all_reduce_hook, "sums", None) is not self]
        if bare:
            raise ValueError(f"{', '.join(bare)}: set_all_reduce_hook(fsdp_hook(state)) is missing, so the replicas would "
                             "differ. It is not recursive: call it for each module that fully_shard() has wrapped")

    def _check_use(self, group):
        if group in self._sums:
            raise ValueError(f"{self._model.name(group)} has a second gradient in a backward pass: every module needs one")
        if group.gradient_divide_factor is not None and self._combine != "sum":
            raise ValueError("set_gradient_divide_factor() makes HSDP add the replicas up without a mean: give the State "
                             'combine="sum"')
        if not group.all_reduce_grads:
            raise ValueError("set_requires_all_reduce(False) does not keep the hook from summing: accumulate gradients with "
                             "set_requires_gradient_sync(False)")


class _Sum(NamedTuple):
    """Is the sum of a group in one step.

    begun   for each of its parameters with entries: it had a gradient before this step.
    stream  of its hook, on which FSDP2 makes the gradients; None in the host's memory.
    """

    bucket: Bucket
    begun: list
    stream: Any


def _group_of(hook, groups):
    found = [group for group in groups if group._all_reduce_hook is hook]
    if len(found) != 1:
        raise ValueError(f"a hook of fsdp_hook() is that of one module of model=, and this one is that of {len(found)}: call "
                         "fsdp_hook(state) for each module")
    return found[0]


def _bytes_of(values):
    return values.numel() * values.element_size()


def _behind_all_callbacks(call):
    """Has the present backward pass call a function behind the callbacks that it has at its end."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(call))


def with_suffix(by_name, suffix):
    """Returns saved values under the names that they have in a saved state."""
    return {name + suffix: values for name, values in by_name.items()}


def states_of_shard(states, place):
    """Returns saved states with the parameters of this rank's shard alone, under their own names.

    states   a state or a list of states, of any ranks.
    Raises   ValueError: none of them is of this shard.
    """
    found = []
    for state in [states] if isinstance(states, dict) else states:
        own = {**state, **{key: {rank: _own(by_name, place.suffix) for rank, by_name in state[key].items()}
                           for key in ("residual", "velocity", "retained") if key in state}}
        own["residual"] = {rank: by_name for rank, by_name in own["residual"].items() if by_name}
        if own["residual"]:
            found.append(own)
    if not found:
        raise ValueError(f"no state of shard {place.shard} of {place.shards}: a saved residual is for the same number of "
                         "shards")
    return found


def _own(by_name, suffix):
    return {name[:-len(suffix)]: values for name, values in by_name.items() if name.endswith(suffix)}
