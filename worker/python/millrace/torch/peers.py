"""The path without servers: a State whose ranks sum among themselves, over TCP.

A PeerLibrary has the names of `millrace` that a State uses. Its session has a sum for each parameter.
"""

import importlib
import ipaddress
import math
import os
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from .deadline import Deadline
from .peer_options import WORKER_OPTIONS, check_equal, refusal
from .wait_list import WaitList

# What sums a tensor that sends all entries, where the chosen allreduce selects by itself.
DENSE = "dense_rabenseifner"
_FREE_PORT = 0
_CONNECT_S = 5.0  # for one try to reach torch's store
_LOOK_S = 0.1  # between two looks at the store for other ranks' addresses
_STORE_S_MIN = 0.001  # torch takes 0 as no limit
_OF_JOB = ("name", "workers", "recipe")  # options that all paths have
_groups: "Counter[str]" = Counter()  # groups that this process has made, by name: the same at all ranks


@dataclass(frozen=True)
class PeerTensorStats:
    """Figures of one parameter: entries_sent_last is the mean of the steps since the figures before."""

    name: str
    entries_sent_last: int
    non_finite_dropped: int
    residual_norm: float


@dataclass(frozen=True)
class PeerStats:
    """Figures of this rank since the start."""

    bytes_up: int
    bytes_down: int
    dense_bytes: int  # of dense f32 gradients, one way
    tensors: list


def host_towards(address):
    """Returns this machine's address on the way to another host, in the form of HOST in HOST:PORT."""
    for family, kind, _, _, there in socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(there)  # sends nothing
            except OSError:
                continue
            host = probe.getsockname()[0]
            return f"[{host}]" if ":" in host else host
    raise ValueError(f'there is no way to MASTER_ADDR={address}: give listen="HOST:0", an address of this machine that '
                     "the other ranks reach")


def own_host():
    """Returns the host where a rank listens: loopback where torchrun has started all ranks on this machine, else this
    machine's address on the way to MASTER_ADDR."""
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else os.environ.get("WORLD_SIZE")
    if str(ranks) == os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        return "127.0.0.1"
    return host_towards(os.environ.get("MASTER_ADDR", "localhost"))


def _is_loopback(address):
    try:
        return ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return False  # a name


def check_reachable(addresses):
    """Raises  ValueError: some ranks listen on loopback and others do not: they cannot be on one machine."""
    on_loopback = [rank for rank, address in enumerate(addresses) if _is_loopback(address)]
    if on_loopback and len(on_loopback) < len(addresses):
        rank = on_loopback[0]
        raise ValueError(f"rank {rank} listens at {addresses[rank]}, which other machines do not reach: give it "
                         'listen="HOST:0" with an address of its machine that they reach')


def rendezvous_store(limit, error):
    """Returns the store of torch.distributed, or the one that torchrun's environment names.

    limit  Deadline of all waits together.
    error  exception that takes a sentence and a code, where the process that serves the store does not answer in time.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()  # torch has no other access to it
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise ValueError("the ranks cannot find each other. Start with torchrun, call "
                         "torch.distributed.init_process_group() first, or give addresses=")
    # torch 2.4 and later ask for libuv even where a store is a client's. Debian's torch lacks it.
    without_libuv = {"use_libuv": False} if "use_libuv" in (dist.TCPStore.__init__.__doc__ or "") else {}
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    _await_listener(host, port, limit, error)
    try:
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=max(limit.left(), _STORE_S_MIN)),
                              **without_libuv)
    except RuntimeError as failure:
        raise error(f"rank 0 is missing: the process at {host}:{port} does not answer as torch's store: {failure}",
                    "unavailable" if limit.left() else "timeout") from failure
    # torchrun's store keeps the keys of attempts before.
    return dist.PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _await_listener(host, port, limit, error):
    """Waits until a process listens. TCPStore() would do so in C++, where Ctrl-C does not end the wait.

    Raises  error: none does.
    """
    while True:
        try:
            socket.create_connection((host, port), timeout=min(_CONNECT_S, max(limit.left(), _LOOK_S))).close()
            return
        except OSError as failure:
            if not limit.left():
                raise error(f"rank 0 is missing: no process serves torch's store at {host}:{port} after "
                            f"{limit.seconds:g} s: {failure}", "timeout") from failure
            time.sleep(_LOOK_S)


def exchange_through(store, name, rank, world_size, limit, error):
    """Returns the function that tells the store this rank's address, and returns those of all ranks.

    limit  Deadline.
    error  exception that takes a sentence and a code, for ranks whose address is missing then.
    Ctrl-C ends its waits: each is short. Store.get() would wait in C++, and not every version of torch has Store.check().
    """
    number = _groups[name]
    _groups[name] += 1

    def exchange(own):
        group = f"millrace/{name}/{number}"
        keys = [f"{group}/{of}" for of in range(world_size)]
        store.set(keys[rank], own)
        store.add(f"{keys[rank]}/set", 1)
        store.add(f"{group}/count", 1)
        while store.add(f"{group}/count", 0) < world_size:
            if not limit.left():
                missing = [of for of in range(world_size) if store.add(f"{keys[of]}/set", 0) == 0]
                raise error(f"no address of rank {', '.join(map(str, missing))} is in torch's store after "
                            f"{limit.seconds:g} s", "timeout")
            time.sleep(_LOOK_S)
        addresses = [store.get(key).decode() for key in keys]
        check_reachable(addresses)
        return addresses

    return exchange


class PeerLibrary:
    """Has the names of the module `millrace` for a State without servers.

    allreduce  text of the allreduce (millrace.peers).
    name       of the group.
    addresses  of all ranks, or None: torch's store.
    listen     HOST:PORT of this rank, or None.
    insecure   other machines may reach the ranks, though they have no key.
    silence    seconds without an answer after which a rank counts as dead.
    timeout    seconds for the ranks' meeting, and for a step.
    """

    def __init__(self, library, allreduce, name, addresses=None, listen=None, insecure=False, silence=10.0, timeout=600.0):
        self._library, self._allreduce, self._name = library, allreduce, name
        self._addresses, self._listen, self._insecure = addresses, listen, insecure
        self._silence, self._timeout = silence, timeout
        self._peers = importlib.import_module(".peers", library.__name__)
        known = {info.name: info for info in self._peers.algorithms()}
        self._info = known.get(allreduce.split(":")[0])
        if self._info is None:
            raise ValueError(f"no allreduce is called '{allreduce}': take one of {', '.join(known)}")
        self.Tensor, self.WorkerConfig, self.JobError = library.Tensor, library.WorkerConfig, library.JobError
        self.advise = getattr(library, "advise", None)

    def JobConfig(self, **options):  # the name is that of millrace
        """Returns the options of the job. Raises TypeError: one that servers alone have."""
        for name in options:
            if name not in self._peers.OPTIONS and name not in _OF_JOB:
                raise TypeError(refusal(name, self._peers.OPTIONS))
        return self._library.JobConfig(**options)

    def check_worker_options(self, options):
        """Raises  TypeError: one that servers alone have."""
        for name in options:
            if name not in WORKER_OPTIONS:
                raise TypeError(refusal(name, WORKER_OPTIONS))

    def Session(self, job, me, tensors):  # the name is that of millrace
        """Meets the other ranks, and returns a session with a sum for each tensor."""
        algorithms = [self._algorithm(job, tensor) for tensor in tensors]
        limit = Deadline(self._timeout)
        group, sums = self._meet(me, job.workers, limit), []
        try:
            self._compare(group, job, tensors, algorithms, limit)
            for tensor, (algorithm, options) in zip(tensors, algorithms):
                sums.append(self._peers.GradientSum(group, tensor.dimension, algorithm, job=options))
            port = self._peers.Port(group, sums, self._name, me) if me.http else None
        except BaseException:
            for one in sums:
                one.close()
            group.close()
            raise
        return PeerSession(self._library, group, sums, tensors, self._peers.local_clip_norm(job), port)

    def _compare(self, group, job, tensors, algorithms, limit):
        options = {name: text for name, text in job.changed().items() if name != "name"}
        for at, (tensor, (algorithm, of_tensor)) in enumerate(zip(tensors, algorithms)):
            options[f"parameter {at}"] = [tensor.name, tensor.dimension, algorithm, of_tensor.changed()]
        check_equal(lambda own: group.gather(own, limit.left()), group.rank, options, self._library.JobError)

    def _meet(self, me, world_size, limit):
        rank = me.worker
        options = {"name": self._name, "key_file": me.key_file, "insecure": self._insecure, "silence": self._silence,
                   "start_timeout": self._timeout}
        if self._addresses is not None:
            if len(self._addresses) != world_size:
                raise ValueError(f"addresses has {len(self._addresses)} entries for {world_size} ranks")
            return self._peers.Group(rank, self._addresses, listen=self._listen, connect_timeout=limit.left(), **options)
        listen = self._listen or f"{own_host()}:{_FREE_PORT}"
        store = rendezvous_store(limit, self._library.JobError)
        exchange = exchange_through(store, self._name, rank, world_size, limit, self._library.JobError)
        return self._peers.Group(rank, listen=listen, exchange=exchange, connect_timeout=limit.left(), **options)

    def _algorithm(self, job, tensor):
        """Returns the allreduce and the options of a tensor."""
        if tensor.priority or tensor.output_layer:
            raise ValueError(f"rules: '{tensor.name}' has priority or output_layer: the sums of peers have no order of "
                             "their own, and no selection by layer")
        options = self._library.JobConfig(**job.changed())
        set_by_job = "codec_up" in job.changed()
        options.clip = 0  # the session clips all tensors together
        for name in ("select", "codec_up", "codec_down", "reselect"):
            if getattr(tensor, name) is not None:
                setattr(options, name, getattr(tensor, name))
        if tensor.codec_up is None and not set_by_job:
            options.codec_up = "raw+raw"
        sends_all = options.text("select") == "none"
        if sends_all and (self._info.takes_k or self._info.selects):
            options.codec_up = "raw+raw"
            return DENSE, options
        return self._allreduce, options


class PeerSession:
    """Is a rank's part in the sums of all parameters, with the calls of millrace.Session that a State makes.

    clip     this rank's gradients of a step are scaled down to this L2 norm, over all tensors. Then no sum of a step
             starts before all tensors are pushed. 0: each starts with its push.
    port     millrace.peers.Port, or None.
    Threads  any.
    """

    def __init__(self, library, group, sums, tensors, clip=0.0, port=None):
        self._library, self._group, self._sums, self.tensors = library, group, sums, tensors
        self._clip, self._port = clip, port
        self._steps = [0] * len(sums)  # started
        self._norms = {}  # {tensor: squared norm} of the step that is being pushed, with clip
        self._changed = threading.Condition()  # guards the two above
        self._closed = False
        self._counted_at = None  # when the step before ended
        self._before = [(0, 0, 0)] * len(sums)  # steps, entries and the mean of the figures before

    @property
    def http_port(self):
        return self._port.port if self._port is not None else 0

    @property
    def group(self):
        """The millrace.peers.Group."""
        return self._group

    def push(self, tensor, gradient, timeout=None):
        """Starts the sum of a step, or with clip takes the gradient; never waits. Returns the step's number."""
        if not self._clip:
            return self._started(tensor, self._sums[tensor].push(gradient))
        self._sums[tensor].fill(gradient)
        squared_norm = self._sums[tensor].squared_norm()
        with self._changed:
            if tensor in self._norms:
                raise self._library.JobError(f"{self.tensors[tensor].name} is pushed again before all parameters are: "
                                             "gradients are clipped by the norm over all of them", "invalid_argument")
            self._norms[tensor] = squared_norm
            step = self._steps[tensor]
            if len(self._norms) == len(self._sums):
                self._start_all()
            return step

    def _started(self, tensor, step):
        self._steps[tensor] = step + 1
        return step

    def _start_all(self):
        # In the order of the tensors: the same bits, and the same sums, for any order of the pushes.
        squared_norm = 0.0
        for tensor in range(len(self._sums)):
            squared_norm += self._norms[tensor]  # sum() of later Pythons rounds otherwise
        norm = math.sqrt(squared_norm)
        self._norms.clear()
        for tensor in range(len(self._sums)):
            self._started(tensor, self._sums[tensor].start(self._clip / norm if norm > self._clip else 1.0))
        self._changed.notify_all()

    def try_wait_into(self, tensor, step, out, timeout=0):
        if self._clip:
            began = time.monotonic()
            with self._changed:
                if not self._changed.wait_for(lambda: self._closed or self._steps[tensor] > step, timeout):
                    return None
            timeout = max(0.0, timeout - (time.monotonic() - began))
        return self._sums[tensor].try_wait_into(step, out, timeout)

    def wait_list(self):
        return WaitList(self)

    def wait_into(self, tensor, step, out, timeout=600.0):
        entries = self.try_wait_into(tensor, step, out, timeout)
        if entries is None:
            raise self._library.JobError(f"the sum of step {step} of {self.tensors[tensor].name} has not ended in time: "
                                         "another rank has not started it", "timeout")
        return entries

    def take_residual(self, tensor):
        return self._sums[tensor].take_residual()

    def take_velocity(self, tensor):
        return self._sums[tensor].take_velocity()

    def restore(self, tensor, residual, velocity):
        self._sums[tensor].restore(residual, velocity)

    def retained(self, tensor):
        return self._sums[tensor].retained()

    def restore_retained(self, tensor, numbers):
        return self._sums[tensor].restore_retained(numbers)

    def count_step(self, waited):
        """Counts a step in the metrics. waited: seconds in which the training loop was blocked on sums."""
        if self._port is None:
            return
        now = time.monotonic()
        compute = 0.0 if self._counted_at is None else max(0.0, now - self._counted_at - waited)
        self._counted_at = now
        self._port.count_step(compute, waited)

    def stats(self):
        traffic = self._group.traffic()
        dense = 4 * sum(steps * tensor.dimension for steps, tensor in zip(self._steps, self.tensors))
        return PeerStats(traffic.bytes_sent, traffic.bytes_received, dense,
                         [self._tensor_stats(at) for at in range(len(self._sums))])

    def save(self, path):
        raise RuntimeError("save() is of servers: with path=\"peers\" use state_dict()")

    def finish(self, timeout=600.0):
        """Waits until all ranks have received all messages of this one."""
        self._group.barrier(timeout)

    def close(self):
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._port is not None:
            self._port.close()
        for one in self._sums:
            one.close()
        self._group.close()

    def _tensor_stats(self, at):
        counts, steps = self._sums[at].counts(), self._steps[at]
        steps_before, entries_before, mean = self._before[at]
        if steps > steps_before:
            mean = (counts.entries - entries_before) // (steps - steps_before)
        self._before[at] = (steps, counts.entries, mean)
        return PeerTensorStats(self.tensors[at].name, mean, counts.non_finite_dropped, counts.residual_norm)
