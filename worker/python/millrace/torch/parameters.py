"""Names of parameters: a tensor of the job is one parameter, and never a bucket, since DDP rebuilds its buckets."""

import gc
import logging
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

_log = logging.getLogger("millrace.torch")


def names_of(model):
    """Returns {parameter: name} of a model, or of the model inside a DistributedDataParallel. A tied parameter has its
    first name."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    return {parameter: name for name, parameter in model.named_parameters()}


def trained_names(model):
    """Returns {parameter: name} of the parameters that DDP exchanges: those that need gradients and are not ignored."""
    ignored = set(getattr(model, "parameters_to_ignore", ()))
    module = model.module if isinstance(model, DistributedDataParallel) else model
    ignored |= set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    return {parameter: name for parameter, name in names_of(model).items()
            if parameter.requires_grad and name not in ignored}


def named_mapping(named_parameters):
    """Returns {parameter: name} of pairs (name, parameter), as Module.named_parameters() gives them, or of a dict."""
    pairs = named_parameters.items() if hasattr(named_parameters, "items") else named_parameters
    found, names = {}, set()
    for name, parameter in pairs:
        if not isinstance(parameter, torch.Tensor):
            raise TypeError(f"named_parameters: '{name}' is a {type(parameter).__name__}, not a parameter")
        if name in names:
            raise ValueError(f"named_parameters: two parameters have the name '{name}'")
        if parameter not in found:
            found[parameter] = name
            names.add(name)
    return found


_LOOKS_MAX = 8  # passes over the objects of the process; each takes 0.1 s among a million of them


class Owners:
    """Knows whether DDP may leave parameters of a bucket out of a step, by option find_unused_parameters.

    A hook does not learn which DistributedDataParallel hands over its bucket, and an older one of the same model may
    live on. So one of them with the option is enough: it only delays residuals.

    model  that of a State, or None.
    Cost   _LOOKS_MAX calls of find_owners() at most. In the place of further ones the option counts as set: a hook around hook()
           may copy every bucket, and two objects may take turns.
    """

    def __init__(self, model=None):
        self._given = [weakref.ref(model)] if isinstance(model, DistributedDataParallel) else []
        self._found = []  # weak
        self._address = None  # of the last bucket
        self._looks = 0
        self._has_warned = False
        self.finds_unused = False

    def look(self, buffer, parameters):
        """Looks for the owners again where another one may hand over this bucket, a step's first one."""
        address = buffer.data_ptr()  # a living owner keeps the memory of its buckets
        if address == self._address and all(owner() is not None for owner in self._found):
            return
        if self._looks == _LOOKS_MAX:
            self.finds_unused = True
            return
        self._looks += 1
        self._address, self._found = address, [weakref.ref(owner) for owner in find_owners(parameters)]
        owners = [owner for owner in (known() for known in self._given + self._found) if owner is not None]
        self.finds_unused = any(owner.find_unused_parameters for owner in owners)
        if not owners and gc.get_freeze_count():
            self.finds_unused = True
            if not self._has_warned:
                _log.warning("gc.freeze() has hidden the DistributedDataParallel: a parameter's residual waits while its "
                             "gradient is all zeros. Give the State model=, the DistributedDataParallel itself")
            self._has_warned = True


def owner_names(parameters):
    """Returns {parameter: name} of the model that has all these parameters, by its DistributedDataParallel.

    Raises  LookupError: there is none, or two of them give other names.
    """
    found = [names_of(owner) for owner in find_owners(parameters)]
    if not found:
        raise LookupError("no DistributedDataParallel has the parameters of these buckets. Give the State model= or "
                          "named_parameters=, so that it knows their names")
    for names in found:
        for parameter in parameters:
            if names[parameter] != found[0][parameter]:
                raise LookupError(f"one DistributedDataParallel calls a parameter '{found[0][parameter]}', and another one "
                                  f"'{names[parameter]}'. Give the State model= or named_parameters=")
    return found[0]


def find_owners(parameters):
    """Returns the DistributedDataParallels that have all these parameters, among the live objects of the process.

    Cost    one pass over the objects that the garbage collector knows.
    """
    wanted, found = set(parameters), []
    for candidate in gc.get_objects():
        # type(), since isinstance() would run the code of proxies.
        if not issubclass(type(candidate), DistributedDataParallel):
            continue
        # One whose __init__() failed lacks a module, or has handed over no bucket.
        if "reducer" in candidate.__dict__ and wanted <= set(candidate.module.parameters()):
            found.append(candidate)
    return found
