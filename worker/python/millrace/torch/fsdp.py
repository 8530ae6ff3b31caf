"""FSDP2: the sum over replicas of sharded gradients. It takes the place of HSDP's all-reduce.

A mesh of R replicas with S shards each: FSDP2 shards over the S ranks of a replica, and reduces and scatters the
gradients there. Then rank s of every replica has the gradient of the same part of every parameter. These R ranks are
the workers of job JOB.shard<s>. So S jobs run side by side, and none of them has the parameters of another.
"""

import time
import weakref
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Callable

import torch
import torch.distributed as dist

from . import device
from .deadline import Deadline
from .exchange import GIVEN_UP, lasting

if TYPE_CHECKING:
    from .state import State

# Names inside of FSDP2 that this file reads: FSDP2 has no public access to the order of its parameters.
_OF_GROUP = ("_all_reduce_hook", "all_reduce_grads", "gradient_divide_factor", "mesh_info", "fsdp_params")
_OF_PARAMETER = ("sharded_param", "sharded_size", "padded_sharded_param_size")
_INSIDE = ("_get_fsdp_state", "_fsdp_param_groups", *_OF_GROUP, *_OF_PARAMETER)


def fsdp_hook(state: "State", module: torch.nn.Module) -> Callable[[torch.Tensor], None]:
    """Returns the hook of one module for FSDPModule.set_all_reduce_hook().

    state    a State with mesh= and model=.
    module   a module of that model that fully_shard() has wrapped.
    The hook replaces the flat gradient of this rank's shards by the mean over the replicas, of the entries that the
    update has; 0 elsewhere. It blocks until the update is there.
    Errors   RuntimeError: the State has no mesh. ValueError: the module is not one of its model's.
             JobError from backward(), of the session.
    """
    return state.hook_of(module)


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
class _Section:
    """A parameter's part of the flat gradient of its module; padding follows up to the next one."""

    name: str
    begin: int
    entries: int


@dataclass(frozen=True)
class _Layout:
    """Says where the parameters of one group of FSDP2 are in its flat gradient."""

    module: str  # for messages
    entries: int
    trained: tuple  # whether each parameter of the group has a gradient
    sections: list


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
                    sizes.update((section.name, section.entries) for section in self._layouts[group].sections)
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

    def check(self, module):
        """Raises  ValueError: the module is not one of the model's that fully_shard() has wrapped."""
        if not hasattr(module, "set_all_reduce_hook") or any(group not in self._layouts for group in groups_of(module)):
            raise ValueError(f"fsdp_hook: {type(module).__name__} is not a module of model= that fully_shard() has wrapped")

    def slices(self, group, flat):
        """Returns (name, view) of the parameters in a group's flat gradient, without those that have no entries.

        Raises  ValueError: a parameter had no gradient, or begins or ceases to need one.
        """
        layout = self._layouts[group]
        if _trained(group) != layout.trained:
            raise ValueError(f"{layout.module}: requires_grad of a parameter has changed: make another State")
        if flat.numel() != layout.entries or flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(f"the gradient of {layout.module} has {flat.numel()} entries, and its parameters {layout.entries}: "
                             "each parameter of a module needs a gradient in every step")
        return [(section.name, flat.narrow(0, section.begin, section.entries)) for section in layout.sections if section.entries]


def groups_of(module):
    """Returns the groups of parameters that FSDP2 has for a module: one, or none where it has no parameters of its own.

    Raises  RuntimeError: the inside of FSDP2 differs.
    """
    try:
        groups = module._get_fsdp_state()._fsdp_param_groups
        for group in groups:
            attrgetter(*_OF_GROUP)(group)
            for parameter in group.fsdp_params:
                attrgetter(*_OF_PARAMETER)(parameter)
    except AttributeError as error:
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
    begin, sections = 0, []
    for parameter in group.fsdp_params:
        sharded = parameter.sharded_param
        if not sharded.requires_grad:
            continue
        if sharded.device.type not in ("cpu", "cuda"):
            raise ValueError(f"a parameter of {module} is on {sharded.device}: the hook takes gradients on the CPU and on CUDA")
        if sharded not in names:
            raise ValueError(f"{module} shares a group of FSDP2 with a parameter that is not in model=")
        sections.append(_Section(names[sharded], begin, parameter.sharded_size.numel()))
        begin += parameter.padded_sharded_param_size.numel()
    return _Layout(module, begin, _trained(group), sections)


class ShardedHook:
    """Is the hook of one module. It holds the State, as DDP holds that of its hook."""

    def __init__(self, state, exchange, module):
        self._state, self.exchange = state, exchange
        self._groups = weakref.WeakSet(groups_of(module))

    def __call__(self, flat):
        for group in self._groups:  # FSDP2 calls the hook of a module that has one
            self.exchange.sum(group, flat)


class ShardedExchange:
    """Sums the gradients of one group after the other, each within its hook.

    model    ShardedModel.
    places   {name: Place}; none is late, since a hook ends with the sums of its group.
    combine  of the job.
    A step   has the gradients of each group once.
    Devices  a gradient of a device is pushed after the work so far of the current stream. That stream writes the update.
    Threads  those of the backward pass, one at a time.
    Errors   the first error ends the exchange: every later call raises it.
    """

    def __init__(self, session, model, places, residuals, report, timeout, combine, count_copied):
        self._session, self._model, self._places = session, model, places
        self._residuals, self._report, self._timeout = residuals, report, timeout
        self._combine, self._count_copied = combine, count_copied
        self._summed = weakref.WeakSet()  # groups of the present step
        self._seconds = 0.0  # of the present step
        self._error = None
        self._transfers = {}  # of each device
        self.steps = 0

    def sum(self, group, flat):
        """Replaces the flat gradient of a group by the sum or mean over the replicas.

        Raises  ValueError: the gradient of another module is missing, the module is used twice, or FSDP2 divides otherwise.
        """
        self.raise_error()
        try:
            if self.steps == 0 and not self._summed:
                self._check_hooks()
            self._check_use(group)
            self._sum(self._model.slices(group, flat), flat)
        except BaseException as error:
            self._error = lasting(error)
            raise
        self._summed.add(group)
        if len(self._summed) == len(self._model.groups()):
            self._end_step()

    def give_all_back(self):
        """Does nothing: each parameter needs a gradient in every step, so no residual is held back."""

    def raise_error(self):
        """Raises the error that ended the exchange, if there is one."""
        if self._error is not None:
            raise self._error

    def raise_within_step(self):
        """Raises the error that ended the exchange. RuntimeError: a backward pass ended within a step."""
        self.raise_error()
        if self.failed():
            raise RuntimeError(GIVEN_UP)

    def failed(self):
        """Returns whether an error ended the exchange, or a backward pass ended within a step."""
        return self._error is not None or len(self._summed) > 0

    def copied(self):
        """Returns the bytes that the exchange copied to devices and from them, beside those of the session."""
        return device.copied(list(self._transfers.values()))

    def close(self):
        """Ends the exchange."""
        self._error = self._error or RuntimeError("the State has left its job: make another one")

    def _check_hooks(self):
        bare = [self._model.name(group) for group in self._model.groups()
                if getattr(group._all_reduce_hook, "exchange", None) is not self]
        if bare:
            raise ValueError(f"{', '.join(bare)}: set_all_reduce_hook(fsdp_hook(state, module)) is missing, so the replicas "
                             "would differ. It is not recursive: call it for each module that fully_shard() has wrapped")

    def _check_use(self, group):
        if group in self._summed:
            missing = [self._model.name(other) for other in self._model.groups() if other not in self._summed]
            raise ValueError(f"{self._model.name(group)} has a second gradient before {', '.join(missing)} has one: every module "
                             "needs one gradient in every step")
        if group.gradient_divide_factor is not None and self._combine != "sum":
            raise ValueError("set_gradient_divide_factor() makes HSDP add the replicas up without a mean: give the State "
                             'combine="sum"')
        if not group.all_reduce_grads:
            raise ValueError("set_requires_all_reduce(False) does not keep the hook from summing: accumulate gradients with "
                             "set_requires_gradient_sync(False)")

    def _sum(self, slices, flat):
        began = time.monotonic()
        limit = Deadline(self._timeout, self._seconds)
        ready = device.ready_of(flat)
        if ready is None:
            steps = [self._push(name, values, limit) for name, values in slices]
            for (name, values), step in zip(slices, steps):
                limit.call(self._session.wait_into, self._places[name].tensor, step, values)
        else:
            self._sum_there(slices, flat, ready, limit)
        self._seconds += time.monotonic() - began

    def _sum_there(self, slices, flat, ready, limit):
        if flat.device not in self._transfers:
            entries = {name: place.entries for name, place in self._places.items()}
            self._transfers[flat.device] = device.Transfers(flat.device, self._session, entries)
        transfers = self._transfers[flat.device]
        with transfers.gradients(flat, ready):
            pushed = [transfers.push(name, self._with_returning(name, values), values.dtype,
                                     lambda what, name=name: self._push_in_time(name, what, limit)) for name, values in slices]
        for (name, values), (step, host) in zip(slices, pushed):
            tensor = self._places[name].tensor
            if host is None:
                transfers.write(values, limit.call(self._session.wait, tensor, step).pieces)
            else:
                limit.call(self._session.wait_into, tensor, step, host)
                transfers.copy(values, host)

    def _push(self, name, values, limit):
        return self._push_in_time(name, self._with_returning(name, values), limit)

    def _with_returning(self, name, values):
        """Adds the residual that a saved state returns to this parameter."""
        returning = self._residuals.returning(name)
        if returning is None:
            return values
        values = values.to(torch.promote_types(values.dtype, torch.float32)) + returning.to(values.device)
        self._count_copied(values.numel() * values.element_size())
        return values

    def _push_in_time(self, name, what, limit):
        step = limit.call(self._session.push, self._places[name].tensor, what)
        self._residuals.returned(name)
        return step

    def _end_step(self):
        self.steps += 1
        self._report.count(self._seconds, 0.0)  # nothing is hidden: the backward pass waits in the hook
        self._summed.clear()
        self._seconds = 0.0
        for transfers in self._transfers.values():
            transfers.tell()
        self._report.tell()


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
