"""Options of a State: which belong to the job and which to the worker, this process's rank, and its HTTP port."""

import os

import torch.distributed

from ..configs import nearest_name
from .peers import PeerLibrary

PEER_KEYWORDS = ("allreduce", "addresses", "listen", "insecure", "silence")


def rank_and_world_size(rank, world_size):
    """Returns this process's rank and the number of processes: the given ones, torch.distributed's, or those of the
    environment (RANK, WORLD_SIZE).

    Raises  ValueError: neither knows them.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank() if rank is None else rank
        world_size = torch.distributed.get_world_size() if world_size is None else world_size
    rank = os.environ.get("RANK") if rank is None else rank
    world_size = os.environ.get("WORLD_SIZE") if world_size is None else world_size
    if rank is None or world_size is None:
        raise ValueError("the rank and the number of processes are unknown. Start with torchrun, call "
                         "torch.distributed.init_process_group() first, or give rank= and world_size=")
    rank, world_size = int(rank), int(world_size)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} processes: give 0 to {world_size - 1}")
    return rank, world_size


def check_sharded(model, named_parameters, rank, world_size, grad_scaler):
    """Raises  TypeError, ValueError: a State with mesh= cannot have these arguments."""
    if model is None:
        raise ValueError("mesh= needs model=, sharded by fully_shard() over the second dimension of the mesh")
    for name, value in (("named_parameters", named_parameters), ("rank", rank), ("world_size", world_size)):
        if value is not None:
            raise TypeError(f"{name}= does not go with mesh=, which has it")
    if grad_scaler is not None:
        raise ValueError("grad_scaler= is of DistributedDataParallel: FSDP2 trains in bf16 without one")


def is_on(of_job, name):
    """Says whether an option that is on or off is on, by its value or by its text."""
    return of_job.get(name) in (True, "on", "true")


def enabled(grad_scaler):
    """Returns the GradScaler, or None where it is disabled: such a one scales no loss and skips no step."""
    return grad_scaler if getattr(grad_scaler, "is_enabled", lambda: True)() else None


def check_clip(clips, grad_scaler, mesh_place):
    """Raises  ValueError: the State clips gradients, and these arguments do not go with it."""
    if clips and grad_scaler is not None:
        raise ValueError("clip= changes the gradients of a skipped step, which could not be withdrawn: with grad_scaler= use "
                         "torch.nn.utils.clip_grad_norm_()")
    if clips and mesh_place is not None:
        raise ValueError("clip= takes the norm over all parameters, and a job has those of one shard alone: with mesh= use "
                         "torch.nn.utils.clip_grad_norm_()")


def check_scaler(grad_scaler, of_job):
    """Raises  ValueError: the State has a GradScaler, and these options of the job do not go with it."""
    if grad_scaler is None:
        return
    if of_job.get("non_finite", "refuse") != "refuse":
        raise ValueError('non_finite="drop" hides infinite gradients from the grad_scaler: leave out one of both')


def check_save_path(of_worker, instead):
    """Raises  ValueError: option save_path, whose file would lack values that Python holds between two steps.

    instead  the calls that save these values too.
    """
    if of_worker.get("save_path"):
        raise ValueError("save_path= would write a file without the residual that a saved state or a skipped step holds back: "
                         f"call {instead} between two steps")


def job_name(path, servers, job):
    """Returns the name of the job. Raises  ValueError: the path is unknown, or servers do not fit it."""
    if path == "peers":
        if servers is not None:
            raise ValueError('path="peers" has no servers: leave them out, or take path="server"')
        return job or "peers"
    if path not in ("server", "switch"):
        raise ValueError(f'no path "{path}": take "server", "switch" or "peers"')
    if servers is None or job is None:
        raise ValueError(f'path="{path}" needs the addresses of the shards and job=')
    return job


def library_of_path(path, library, job, timeout, options):
    """Returns the module that a State uses: `library`, or a PeerLibrary. Takes the keywords of peers out of `options`."""
    given = {name: value for name in PEER_KEYWORDS if (value := options.pop(name, None)) is not None}
    if path == "peers":
        if isinstance(given.get("addresses"), str):
            given["addresses"] = given["addresses"].split(",")
        return PeerLibrary(library, given.pop("allreduce", "ssar_split_allgather"), job, timeout=timeout, **given)
    if given:
        raise TypeError(f'option \'{next(iter(given))}\' is of path="peers"')
    return library


def shard_list(servers):
    """Returns the addresses of "tcp://a:7600,tcp://b:7600", or of a list of them."""
    addresses = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = [address.strip() for address in addresses if address.strip()]
    if not addresses:
        raise ValueError('servers is empty: give the addresses of the shards, as "tcp://a:7600,tcp://b:7600"')
    return addresses


def http_of_rank(http, rank):
    """Returns the HTTP address of one rank: the given port + rank, on loopback where only a port is given. Port 0 stays
    0, any free port."""
    if http is None or http == "":
        return ""
    host, _, port = str(http).rpartition(":")
    if not port.isdigit():
        raise ValueError(f"http: '{http}' has no port: give HOST:PORT, as 127.0.0.1:9201; rank r listens on PORT + r")
    number = int(port)
    return f"{host or '127.0.0.1'}:{number + rank if number else 0}"


def split_options(library, options):
    """Returns the options of the job and those of the worker, as two dicts, without those that are None.

    None sets the default in a JobConfig, and the caller's defaults differ from the library's.

    library  the module with JobConfig and WorkerConfig.
    Raises   TypeError: neither has an option of that name; the message names the nearest one.
    """
    job, worker = library.JobConfig(), library.WorkerConfig()
    of_job, of_worker = {}, {}
    for name, value in options.items():
        if name.startswith("_") or not (hasattr(job, name) or hasattr(worker, name)):
            known = [word for config in (job, worker) for word in dir(config) if not word.startswith("_")]
            raise TypeError(f"no option '{name}'" + nearest_name(name, known))
        if value is not None:
            (of_job if hasattr(job, name) else of_worker)[name] = value
    return of_job, of_worker
