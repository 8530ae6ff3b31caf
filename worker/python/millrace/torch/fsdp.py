"""FSDP2: the sum over replicas of sharded gradients. It takes the place of HSDP's all-reduce.

A mesh of R replicas with S shards each: FSDP2 shards over the S ranks of a replica, and reduces and scatters the
gradients there. Then rank s of every replica has the gradient of the same part of every parameter. These R ranks are
the workers of job JOB.shard<s>. So S jobs run side by side, and none of them has the parameters of another.
"""

import time
from dataclasses import dataclass
from typing import Any, Callable

import torch

# What is looked up inside of FSDP2, which has no public access to it.
_INSIDE = ("_get_fsdp_state", "_fsdp_param_groups", "fsdp_params", "sharded_param", "sharded_size", "padded_sharded_param_size")


def fsdp_hook(state: Any, module: torch.nn.Module) -> Callable[[torch.Tensor], None]:
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
        """What tells the names of this shard's parameters in saved states from those of the others."""
        return f"@{self.shard}/{self.shards}"


@dataclass(frozen=True)
class _Section:
    """A parameter's part of the flat gradient of its module; padding follows up to the next one."""

    name: str
    begin: int
    entries: int


class ShardedModel:
    """Knows this rank's shards of a model: which part of a module's flat gradient belongs to which parameter.

    sizes    {name: entries of this rank's shard}, in the order of the model; 0 where the rank has no row.
    Raises   ValueError: fully_shard() has not wrapped the model; parameters are not on the CPU; shards of several
             replicas are one mesh already. RuntimeError: an FSDP2 with another inside.
    """

    def __init__(self, model):
        try:
            from torch.distributed.fsdp import FSDPModule
        except ImportError:
            FSDPModule = None
        if not hasattr(FSDPModule, "set_all_reduce_hook"):
            raise RuntimeError(f"torch {torch.__version__} has no FSDPModule.set_all_reduce_hook(): "
                               "FSDP2 through Millrace is tested with torch 2.14")
        names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._layouts = {}  # module: (entries of its flat gradient, sections)
        sizes = {}
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self._layouts[module] = _layout_of(module, names)
                sizes.update((section.name, section.entries) for section in self._layouts[module][1])
        missing = [name for name in names.values() if name not in sizes]
        if missing:
            raise ValueError(f"no module that fully_shard() has wrapped has the parameter '{missing[0]}': wrap the model itself, "
                             "then make the State")
        self.sizes = {name: sizes[name] for name in names.values()}

    def modules(self):
        """Returns the wrapped modules that have parameters with gradients."""
        return [module for module, (entries, _) in self._layouts.items() if entries]

    def check(self, module):
        """Raises  ValueError: the module is not one of the model's that fully_shard() has wrapped."""
        if module not in self._layouts:
            raise ValueError(f"fsdp_hook: {type(module).__name__} is not a module of model= that fully_shard() has wrapped")

    def slices(self, module, flat):
        """Returns (name, view) of the parameters in a module's flat gradient, without those that have no entries.

        Raises  TypeError: a gradient that is not on the CPU. ValueError: a parameter had no gradient.
        """
        if flat.device.type != "cpu":
            raise TypeError(f"a gradient on {flat.device}: the hook takes gradients in the CPU's memory")
        entries, sections = self._layouts[module]
        if flat.numel() != entries or flat.dim() != 1 or not flat.is_contiguous():
            raise ValueError(f"the gradient of {type(module).__name__} has {flat.numel()} entries, and its parameters "
                             f"{entries}: each parameter of a module needs a gradient in every step")
        return [(section.name, flat.narrow(0, section.begin, section.entries)) for section in sections if section.entries]


def _layout_of(module, names):
    """Returns the entries of a module's flat gradient, and its sections."""
    try:
        groups = module._get_fsdp_state()._fsdp_param_groups
        parameters = [parameter for group in groups for parameter in group.fsdp_params]
        shapes = [(parameter.sharded_param, parameter.sharded_size.numel(), parameter.padded_sharded_param_size.numel())
                  for parameter in parameters]
        replicated = any(group._is_hsdp for group in groups)
    except AttributeError as error:
        raise RuntimeError(f"FSDP2 of torch {torch.__version__} lacks one of {', '.join(_INSIDE)}: FSDP2 through Millrace "
                           "is tested with torch 2.14") from error
    if replicated:
        raise ValueError('the model is sharded over a mesh with replicas, so FSDP2 adds them up itself: fully_shard(module, '
                         'mesh=mesh["shard"])')
    begin, sections = 0, []
    for parameter, entries, padded in shapes:
        if parameter.requires_grad:
            sections.append(_Section(names[parameter], begin, entries))
            begin += padded
    return begin, sections


class ShardedExchange:
    """Sums the gradients of one module after the other, each within its hook.

    model    ShardedModel.
    places   {name: Place}; none is late, since a hook ends with the sums of its module.
    Threads  those of the backward pass, one at a time.
    Errors   the first error ends the exchange: every later call raises it.
    """

    def __init__(self, session, model, places, residuals, report, timeout):
        self._session, self._model, self._places = session, model, places
        self._residuals, self._report, self._timeout = residuals, report, timeout
        self._expected = set(model.modules())
        self._summed = set()  # modules of the present step
        self._pushing = self._waiting = 0.0  # seconds of the present step
        self._error = None
        self.steps = 0

    def sum(self, module, flat):
        """Replaces the flat gradient of a module by the mean over the replicas."""
        if self._error is not None:
            raise self._error
        try:
            if module in self._summed:  # the step did not use every module
                self._end_step()
            self._sum(self._model.slices(module, flat))
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else RuntimeError("the backward pass was interrupted")
            raise
        self._summed.add(module)
        if self._summed == self._expected:
            self._end_step()

    def give_all_back(self):
        """Has nothing to return: each parameter of a module has a gradient in every step."""

    def failed(self):
        """Returns whether an error ended the exchange."""
        return self._error is not None

    def close(self):
        """Ends the exchange."""
        self._error = self._error or RuntimeError("the State has left its job: make another one")

    def _sum(self, slices):
        began = time.monotonic()
        steps = [self._push(name, values) for name, values in slices]
        pushed = time.monotonic()
        for (name, values), step in zip(slices, steps):
            self._session.wait_into(self._places[name].tensor, step, values, timeout=self._timeout)
        self._pushing += pushed - began
        self._waiting += time.monotonic() - pushed

    def _push(self, name, values):
        returning = self._residuals.returning(name)
        if returning is not None:
            values = values.to(torch.promote_types(values.dtype, torch.float32)) + returning
        step = self._session.push(self._places[name].tensor, values, timeout=self._timeout)
        self._residuals.returned(name)
        return step

    def _end_step(self):
        self.steps += 1
        self._report.count(0.0, self._pushing, self._pushing + self._waiting)
        self._summed, self._pushing, self._waiting = set(), 0.0, 0.0
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
                           for key in ("residual", "velocity") if key in state}}
        own["residual"] = {rank: by_name for rank, by_name in own["residual"].items() if by_name}
        if own["residual"]:
            found.append(own)
    if not found:
        raise ValueError(f"no state of shard {place.shard} of {place.shards}: a saved residual is for the same number of "
                         "shards")
    return found


def _own(by_name, suffix):
    return {name[:-len(suffix)]: values for name, values in by_name.items() if name.endswith(suffix)}
