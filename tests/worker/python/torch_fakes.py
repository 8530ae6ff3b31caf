"""Doubles of the module `millrace`: jobs whose sums are dense, in one process or over gloo, and buckets without DDP.

A FakeLibrary has the names of `millrace` that millrace.torch uses. Its sessions keep a residual and select the largest
entries, as the library does.
"""

import array
import contextlib
import math
import threading
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist

from millrace.torch.wait_list import WaitList

JOB_OPTIONS = ("name", "workers", "combine", "select", "reselect", "codec_up", "codec_down", "momentum", "unbiased",
               "non_finite", "fuse_below", "mode")
WORKER_OPTIONS = ("worker", "shards", "http", "returns", "save_path")
FUSE_BELOW = 16384
DEFAULTS = {"fuse_below": FUSE_BELOW}


class JobError(RuntimeError):
    def __init__(self, sentence, code):
        super().__init__(sentence)
        self.code = code


class _Options:
    names = ()

    def __init__(self, **options):
        for name in self.names:
            setattr(self, name, DEFAULTS.get(name))
        for name, value in options.items():
            if name not in self.names:
                raise TypeError(name)
            setattr(self, name, value)


class JobConfig(_Options):
    names = JOB_OPTIONS


class WorkerConfig(_Options):
    names = WORKER_OPTIONS


class Tensor:
    def __init__(self, name, dimension, *, select=None, reselect=None, codec_up=None, codec_down=None, priority=0,
                 output_layer=False):
        self.name, self.dimension, self.select = name, dimension, select
        self.options = (reselect, codec_up, codec_down, priority, output_layer)


class SumsInProcess:
    """Adds the contributions of the sessions of one process."""

    def __init__(self):
        self._arrived = threading.Condition()
        self._contributions = {}  # (job, tensor, step): {worker: values}

    def contribute(self, key, worker, values):
        with self._arrived:
            self._contributions.setdefault(key, {})[worker] = values
            self._arrived.notify_all()

    def sum(self, key, workers, timeout):
        """Returns the sum once all workers have contributed, or None after the time-out."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self._contributions.get(key, ())) == workers, timeout):
                return None
            parts = self._contributions[key]
            return sum(parts[worker] for worker in sorted(parts))


class SumsOverGloo:
    """Adds the contributions of the ranks of a group of its own: all ranks ask for sums in one order."""

    def __init__(self):
        self._group = dist.new_group(backend="gloo")
        self._contributions = {}

    def contribute(self, key, worker, values):
        self._contributions[key] = values

    def sum(self, key, workers, timeout):
        values = self._contributions.pop(key)
        dist.all_reduce(values, group=self._group)
        return values


def selected(values, select):
    """Returns the entries that a selection sends, with zeros elsewhere."""
    if select == "none":
        return values.clone()
    keep = max(1, math.ceil(float(select.split(":")[1]) * values.numel()))
    sent = torch.zeros_like(values)
    at = values.abs().topk(keep).indices
    sent[at] = values[at]
    return sent


def coded(values, codec):
    """Returns the decoded values of a code: f16 rounds, and any other codec keeps them."""
    return values.half().float() if codec is not None and codec.endswith("f16") else values


def as_tensor(values):
    """Returns a tensor, or one that views memory with the buffer protocol."""
    if isinstance(values, torch.Tensor):
        return values
    view = memoryview(values)
    return torch.frombuffer(view, dtype={"f": torch.float32, "d": torch.float64, "e": torch.float16}[view.format])


class Session:
    """A worker of a fake job."""

    def __init__(self, sums, job, me, tensors):
        self.job, self.me, self.tensors = job, me, tensors
        self.sums = sums
        self.state = "running"
        self._steps = [0] * len(tensors)
        self._residuals = [torch.zeros(tensor.dimension) for tensor in tensors]
        self._sent = [0] * len(tensors)
        self.pushed_there = 0  # pushes from a device's memory

    def _check(self):
        if self.state != "running":
            raise JobError(f"the session is {self.state}", "unavailable")

    def _codec(self, tensor):
        return self.tensors[tensor].options[1] or self.job.codec_up or "gap"

    def push(self, tensor, gradient, weight=1.0, timeout=600.0):
        self._check()
        if isinstance(gradient, FakeView):
            self.pushed_there += 1
            if (self.tensors[tensor].select or self.job.select) == "none" and not self._codec(tensor).endswith("f16"):
                raise JobError("a gradient in a device's memory cannot be pushed here: selection none", "unsupported")
            gradient = gradient.values
        gradient = as_tensor(gradient)
        assert gradient.is_contiguous() and gradient.numel() == self.tensors[tensor].dimension
        if not bool(torch.isfinite(gradient).all()):
            raise JobError("a gradient has NaN or infinity", "non_finite")
        accumulated = self._residuals[tensor] + gradient.float()
        sent = coded(selected(accumulated, self.tensors[tensor].select or self.job.select), self._codec(tensor))
        self._residuals[tensor] = accumulated - sent
        self._sent[tensor] = int(sent.count_nonzero())
        step = self._steps[tensor]
        self._steps[tensor] += 1
        self.sums.contribute((self.job.name, tensor, step), self.me.worker, sent)
        return step

    def try_push(self, tensor, gradient, weight=1.0, timeout=0):
        return self.push(tensor, gradient, weight, timeout)

    def wait_into(self, tensor, step, out, timeout=600.0, scale=1.0):
        filled = self.try_wait_into(tensor, step, out, timeout, scale)
        if filled is None:
            raise JobError("blocked on another worker", "timeout")
        return filled

    def try_wait_into(self, tensor, step, out, timeout=0, scale=1.0):
        self._check()
        total = self.sums.sum((self.job.name, tensor, step), self.job.workers, timeout)
        if total is None:
            return None
        divisor = self.job.workers if self.job.combine == "mean" else 1
        as_tensor(out).copy_(total / divisor * scale)
        return SimpleNamespace(step=step)

    def wait_list(self):
        return WaitList(self)

    def try_wait(self, tensor, step, timeout=0):
        """Returns the update in three pieces: of entries, dense, and of entries in the run of both."""
        self._check()
        total = self.sums.sum((self.job.name, tensor, step), self.job.workers, timeout)
        if total is None:
            return None
        divisor = float(self.job.workers if self.job.combine == "mean" else 1)
        half, entries = total.numel() // 2, total.numel()
        at = total[:half].nonzero().flatten()
        pieces = [SimpleNamespace(begin=0, dimension=half, dense=False, indices=array.array("I", at.tolist()),
                                  values=array.array("f", total[at].tolist()), denominator=divisor),
                  SimpleNamespace(begin=half, dimension=entries - half, dense=True, indices=None,
                                  values=array.array("f", total[half:].tolist()), denominator=divisor)]
        return SimpleNamespace(step=step, pieces=pieces)

    def wait(self, tensor, step, timeout=600.0):
        update = self.try_wait(tensor, step, timeout)
        if update is None:
            raise JobError("blocked on another worker", "timeout")
        return update

    def take_residual(self, tensor):
        taken, self._residuals[tensor] = self._residuals[tensor], torch.zeros_like(self._residuals[tensor])
        at = taken.nonzero().flatten()
        return array.array("I", at.tolist()), array.array("f", taken[at].tolist())

    def take_velocity(self, tensor):
        return array.array("I"), array.array("f")

    def restore(self, tensor, residual, velocity):
        assert not len(velocity[0])
        at, values = (torch.tensor(list(part)) for part in residual)
        self._residuals[tensor][at.long()] += values.float()

    def retained(self, tensor):
        return [self._steps[tensor]]

    def restore_retained(self, tensor, numbers):
        return True

    def residual(self, name):
        """Returns a copy of a tensor's residual, for tests."""
        at = [tensor.name for tensor in self.tensors].index(name)
        return self._residuals[at].clone()

    def stats(self):
        tensors = [SimpleNamespace(name=tensor.name, entries_sent_last=sent, residual_norm=float(residual.norm()))
                   for tensor, sent, residual in zip(self.tensors, self._sent, self._residuals)]
        dense = 4 * sum(step * tensor.dimension for step, tensor in zip(self._steps, self.tensors))
        return SimpleNamespace(bytes_up=dense // 10, bytes_down=dense // 10, dense_bytes=dense, tensors=tensors)

    @property
    def http_port(self):
        return 0

    def finish(self, timeout=600.0):
        self.state = "finished"

    def close(self):
        self.state = "closed"


class FakeView:
    """Views a tensor of a FakeDevice."""

    def __init__(self, values):
        assert values.dtype == torch.float32 and values.is_contiguous()
        self.values = values


class FakeDevice:
    """Takes the place of device.Streams: the CPU's tensors play those of a device. Writes down the stream of each copy."""

    def __init__(self, device):
        self.current, self.bytes_up, self.bytes_down = [None], 0, 0

    @contextlib.contextmanager
    def _on(self, stream):
        self.current.append(stream)
        yield
        self.current.pop()

    def gradients(self, buffer, ready):
        assert ready == "ready" and threading.current_thread().name == "millrace pusher"
        return self._on("gradients")

    def updates(self):
        return contextlib.nullcontext()

    def view(self, values):
        assert self.current[-1] == "gradients"
        return FakeView(values)

    def to_host(self, values):
        assert self.current[-1] == "gradients"
        self.bytes_down += values.numel() * values.element_size()
        return values.clone()

    def to_device(self, host):
        self.bytes_up += host.numel() * host.element_size()
        return host.clone()


class FakeLibrary:
    """Replaces the module `millrace`; `sums` adds what its sessions push."""

    JobConfig, WorkerConfig, Tensor, JobError = JobConfig, WorkerConfig, Tensor, JobError

    def __init__(self, sums):
        self._sums = sums

    def Session(self, job, me, tensors):  # the name is that of millrace
        return Session(self._sums, job, me, tensors)


class FakeBucket:
    """A bucket of gradients, as DDP hands it to a hook. Gradients are copied into a flat buffer."""

    def __init__(self, parameters, gradients, last=True, dtype=torch.float32):
        self._parameters, self._last = parameters, last
        self._buffer = torch.cat([gradient.flatten() for gradient in gradients]).to(dtype)

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def is_last(self):
        return self._last


def wait_until(condition, seconds=120.0):
    """Returns whether the condition holds before the time has passed."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
