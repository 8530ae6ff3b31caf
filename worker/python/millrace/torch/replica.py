"""millrace.torch.Replica: data parallel training without a process group; a worker may be killed and started again."""

import importlib
import os
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

import torch

from .deadline import Deadline, seconds_of
from .options import http_of_rank, shard_list, split_options
from .parameters import trained_names
from .plan import COMPRESSION, DENSE_BELOW, SELECT, check_rules, plan_tensors
from .report import Report, Stats


class Replica:
    """Is one worker's membership in a job that trains the parameters of a model.

    replica = millrace.torch.Replica(model, "tcp://a:7600,tcp://b:7600", job="run7", worker=0, workers=4, rate=0.05)
    while replica.steps < 1000:
        model.zero_grad()
        loss_of(model, replica.steps).backward()
        replica.step()
    replica.finish()

    The job's updates change the parameters: parameter -= rate * mean of the workers' gradients. So every worker has the
    job's parameters, and gives them to a worker that joins. A worker that was killed is started again by the same
    command: it takes the parameters and the step over from another worker, and no other process restarts.

    model             its parameters are contiguous float32 tensors in the CPU's memory, and stay where they are. Those
                      without requires_grad are left out.
    servers           "tcp://a:7600,tcp://b:7600" or a list: the shards, the same list at all workers.
    job               name of the job at the shards.
    worker, workers   this worker's number from 0, and how many workers the job begins with.
    rate              learning rate, over 0; or a function of the step's number, equal at all workers. A thread of the
                      session calls it: it must not call the Replica.
    select, codec, dense_below, rules, summary_every, tensorboard, http, timeout
                      as in millrace.State.
    options           any option of a job or a worker by its name (worker/OPTIONS.md), as mode="partial". None: as if
                      it were not given. Three have other defaults here: combine="mean"; returns=True;
                      initial_weights="first", the parameters of the worker with the lowest number.
    Errors   TypeError, ValueError: a parameter or an option that cannot be used. millrace.JobError of the session: the
             process must restart. A step() that fails or is interrupted after its first push leaves the job: the
             parameters would be at different steps. Every later call raises then.
    Threads  one thread calls a Replica.
    """

    def __init__(self, model: torch.nn.Module, servers: Union[str, Sequence[str]], *, job: str, worker: int, workers: int,
                 rate: Union[float, Callable[[int], float]], select: Optional[str] = SELECT, codec: Optional[str] = None,
                 dense_below: int = DENSE_BELOW, rules: Optional[Mapping[str, Mapping[str, Any]]] = None,
                 summary_every: int = 100, tensorboard: Any = None, http: Union[str, int, None] = None,
                 timeout: Optional[float] = 600.0, _library: Any = None, **options: Any) -> None:
        library = _library or importlib.import_module("millrace")
        of_job, of_worker = split_options(library, options)
        compression = {"select": SELECT if select is None else select} | ({} if codec is None else {"codec_up": codec})
        compression |= {name: of_job.pop(name) for name in COMPRESSION if name in of_job}
        of_job = {"name": job, "workers": workers, "combine": "mean", "initial_weights": "first", **of_job}
        of_worker = {"worker": worker, "shards": shard_list(servers), "http": http_of_rank(http, worker),
                     "returns": True, **of_worker}
        named = {name: parameter for parameter, name in trained_names(model).items()}
        for name, parameter in named.items():
            _check_parameter(name, parameter)
        check_rules(rules or {})
        if of_job.get("unbiased") in (True, "on"):
            dense_below = 0
        plan = plan_tensors({name: parameter.numel() for name, parameter in named.items()}, compression,
                            library.JobConfig(**of_job, **compression).fuse_below, dense_below, rules)
        if not plan.tensors:
            raise ValueError("the model has no parameters that need gradients")
        scale = _scale_of(rate)
        tensors = [library.Tensor(tensor.name, tensor.dimension, weights=named[tensor.name].detach(), **scale,
                                  **tensor.options) for tensor in plan.tensors]
        self._parameters = [(tensor.name, named[tensor.name]) for tensor in plan.tensors]
        self._timeout = seconds_of(timeout)
        self._broken: Optional[BaseException] = None  # of a step that failed
        self._left = False
        self._session = library.Session(library.JobConfig(**of_job, **plan.job), library.WorkerConfig(**of_worker), tensors)
        entries = sum(tensor.dimension for tensor in plan.tensors)
        self._report = Report(self._session, entries, summary_every, tensorboard)
        self._steps = self._steps_of_session()

    @property
    def steps(self) -> int:
        """The job's steps that the parameters include. A worker that rejoined continues from there."""
        return self._steps

    @property
    def session(self) -> Any:
        """The Session."""
        return self._session

    def step(self) -> bool:
        """Sends the gradients of all parameters, and blocks until the step's updates are in the parameters.

        Each gradient is read where it is. A parameter without one sends zeros. The entries that a worker does not send
        stay in its residual, which later steps send.
        Returns  whether another worker's parameters replaced this worker's meanwhile. A caller that keeps state of its
                 own beside the parameters must know this.
        Raises   TypeError: a gradient is sparse. JobError with code "non_finite": a gradient has NaN or infinity.
        """
        self._raise_broken()
        gradients = [_gradient_of(name, parameter) for name, parameter in self._parameters]
        numbers: List[int] = []
        try:
            replaced, waited = self._exchange(gradients, numbers)
        except BaseException as error:
            # The push that Ctrl-C interrupts may have been made.
            if numbers or not isinstance(error, Exception):
                self._broken = error
                self.close()
            raise
        self._steps = self._steps_of_session()
        self._report.count(waited, 0.0)  # nothing is hidden: the gradients are complete
        self._report.tell()
        return replaced

    def _exchange(self, gradients, numbers):
        """Pushes the gradients and waits for their updates. Adds the number of each push to `numbers`.

        Returns  whether another worker's parameters replaced this worker's, and the seconds of the wait.
        """
        limit = Deadline(self._timeout)
        for place, gradient in enumerate(gradients):
            numbers.append(limit.call(self._session.push, place, gradient))
        pushed = time.monotonic()
        replaced = False
        for place, number in enumerate(numbers):
            replaced |= limit.call(self._session.wait, place, number).replaced
        return replaced, time.monotonic() - pushed

    def stats(self) -> Stats:
        """Returns the figures of this worker up to now (report.Stats). Its steps are those of this process."""
        return self._report.stats()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes residual, velocity, parameters and step to a file. Option load_path begins with it."""
        self._raise_broken()
        self._session.save(path)

    def finish(self, timeout: Optional[float] = 600.0) -> None:
        """Leaves the job as finished, when the shards have acknowledged everything. Does nothing after finish() or close()."""
        self._raise_broken()
        if not self._left:
            self._session.finish(timeout=timeout)
            self.close()

    def close(self) -> None:
        """Leaves the job at once: as failed, unless finish() has succeeded."""
        self._left = True
        self._session.close()

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def _raise_broken(self):
        if self._broken is not None:
            raise RuntimeError("an earlier step failed, and this Replica has left its job: "
                               "begin with another one") from self._broken

    def _steps_of_session(self):
        return min(self._session.steps_applied(place) for place in range(len(self._parameters)))


def _check_parameter(name, parameter):
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu" or not parameter.is_contiguous():
        layout = "contiguous" if parameter.is_contiguous() else "not contiguous"
        raise TypeError(f"parameter '{name}' is {parameter.dtype} on {parameter.device} and {layout}: updates are added "
                        "in place to contiguous float32 parameters in the CPU's memory")


def _scale_of(rate):
    """Returns the scale or the schedule of a tensor: an update is added, and a gradient is subtracted."""
    if callable(rate):
        return {"schedule": lambda step: -float(rate(step))}
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate is {rate}: a learning rate is a finite number over 0")
    return {"scale": -float(rate)}


def _gradient_of(name, parameter):
    """Returns the gradient in the layout of the parameter, or zeros where the step did not use the parameter."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter, requires_grad=False)
    if gradient.layout != torch.strided:
        raise TypeError(f"the gradient of '{name}' has layout {gradient.layout}: a Replica takes dense gradients")
    return gradient.detach().contiguous()
