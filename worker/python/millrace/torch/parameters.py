"""Names of parameters: a tensor of the job is one parameter, and never a bucket, since DDP rebuilds its buckets."""

import gc

import torch
from torch.nn.parallel import DistributedDataParallel


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


def finds_unused(parameters):
    """Says whether the DistributedDataParallel of these parameters may leave some of them out of a step."""
    try:
        return bool(find_owner(parameters).find_unused_parameters)
    except LookupError:
        return False


def find_owner(parameters):
    """Returns the DistributedDataParallel that has all these parameters, among the live objects of the process.

    Cost    one pass over the objects that the garbage collector knows, once a State.
    Raises  LookupError: there is none.
    """
    wanted = set(parameters)
    for candidate in gc.get_objects():
        # type(), since isinstance() would run the code of proxies.
        if not issubclass(type(candidate), DistributedDataParallel):
            continue
        if wanted <= set(candidate.module.parameters()):
            return candidate
    raise LookupError("no DistributedDataParallel has the parameters of this bucket. Give the State model= or "
                      "named_parameters=, so that it knows their names")
