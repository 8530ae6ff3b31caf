"""A worker's membership in one running job."""

import atexit
import os
import time
import weakref
from types import TracebackType
from typing import Any, List, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _millrace, logs
from .configs import JobConfig, WorkerConfig
from .errors import JobError
from .stats import SessionStatus, Stats, stats_of
from .tensor import Tensor
from .updates import NO_ENTRIES, Entries, Filled, Piece, PulledSteps, Update

DEFAULT_TIMEOUT_S = 600.0
_FOREVER = float("inf")
_END_S = 2.0
_NO_WEIGHTS = "the weights were not there"

TensorKey = Union[int, str]
_Result = TypeVar("_Result")


def check(job: JobConfig, me: WorkerConfig, tensors: Sequence[Tensor]) -> None:
    """Raises the errors that Session() would raise by itself, without asking a shard."""
    _millrace.Session.check(job._set, me._set, [tensor.row() for tensor in tensors])


class Session:
    """Membership in a running job. Making one joins the job, or creates it, and blocks until all workers have joined.

    with millrace.Session(job, me, [millrace.Tensor("w", 1000)]) as session:
        step = session.push("w", gradient)
        session.wait_into("w", step, gradient)

    Arrays    any array in C order and in the CPU's memory with the buffer protocol or __dlpack__: of NumPy, torch, JAX.
              f32 is read and written in place; f64, f16 and bf16 are converted in C++. Shapes have no meaning.
    tensor    a tensor's name, or its place in the list.
    timeout   in seconds; None: no limit; 0: no wait. A call that timed out has taken nothing and may be repeated.
    Errors    JobError. TypeError and ValueError for arrays that cannot be used.
    Signals   Ctrl-C ends every wait of the main thread within about 0.1 s.
    Threads   any; one tensor is pushed by one thread at a time. Calls release the interpreter's lock.
    fork()    a session belongs to its process: in a child every call raises JobError.
    The block's end calls finish(), unless the block has called close(). Where the block raised, it leaves the job at once.
    """

    def __init__(self, job: JobConfig, me: WorkerConfig, tensors: Sequence[Tensor]) -> None:
        rows = [tensor.row() for tensor in tensors]
        self._places = {row[0]: place for place, row in enumerate(rows)}
        self._session = _millrace.Session(job._set, me._set, rows, logs.queue())
        self._closed = False
        _live.add(self)

    def tensor(self, name: str) -> int:
        """Returns the place of the tensor of that name."""
        return self._session.tensor(name)

    def push(self, tensor: TensorKey, gradient: Any, weight: float = 1.0,
             timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> int:
        """Adds a gradient to the tensor's residual and sends the selected part of it. Returns the step's number.

        gradient  [dimension]; read before the call returns, and not kept. Also f32 in a CUDA device's memory, with
                  __dlpack__ or __cuda_array_interface__, where the job's method allows it. The residual is
                  on the device then, and the selected entries alone cross the bus. The call waits for the current
                  stream and the default one, or for that of __cuda_array_interface__.
        weight    share in a weighted mean (option combine = weighted_mean), finite and positive.
        Blocks    only until the step may be pushed: until update step - 1 - staleness is there.
        Small     neighbouring tensors below option `fuse_below` (16,384) entries are sent when the last of them is pushed:
                  push them all before a wait.
        Errors    non_finite: NaN or infinity, where option `non_finite` refuses them. invalid_argument: a wrong size.
                  Of a device: unsupported: the job's method, or a build without CUDA. unavailable: no driver.
        """
        step = self.try_push(tensor, gradient, weight, timeout)
        return self._in_time(step, "the next step could not be pushed", timeout)

    def try_push(self, tensor: TensorKey, gradient: Any, weight: float = 1.0,
                 timeout: Optional[float] = 0) -> Optional[int]:
        """Does the same, and returns None where the time has passed."""
        return self._session.push(self._place(tensor), gradient, weight, _seconds(timeout))

    def push_sparse(self, tensor: TensorKey, indices: Any, values: Any, weight: float = 1.0,
                    timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> int:
        """Does the same for a gradient of a few entries.

        indices  [n] integers of 32 or 64 bits, in any order; values of equal indices are added up. u32 and i32 are not
                 copied.
        values   [n].
        """
        step = self.try_push_sparse(tensor, indices, values, weight, timeout)
        return self._in_time(step, "the next step could not be pushed", timeout)

    def try_push_sparse(self, tensor: TensorKey, indices: Any, values: Any, weight: float = 1.0,
                        timeout: Optional[float] = 0) -> Optional[int]:
        """Does the same, and returns None where the time has passed."""
        return self._session.push_sparse(self._place(tensor), indices, values, weight, _seconds(timeout))

    def push_rows(self, tensor: TensorKey, width: int, rows: Any, values: Any, weight: float = 1.0,
                  timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> int:
        """Does the same for rows of a table, each of `width` entries: row r has those from r * width on.

        rows    [n] integers of 32 or 64 bits, in any order; rows that are listed twice are added up.
        values  [n, width].
        """
        step = self.try_push_rows(tensor, width, rows, values, weight, timeout)
        return self._in_time(step, "the next step could not be pushed", timeout)

    def try_push_rows(self, tensor: TensorKey, width: int, rows: Any, values: Any, weight: float = 1.0,
                      timeout: Optional[float] = 0) -> Optional[int]:
        """Does the same, and returns None where the time has passed."""
        _check_width(values, width)
        return self._session.push_rows(self._place(tensor), width, rows, values, weight, _seconds(timeout))

    def ready(self, tensor: TensorKey, step: int) -> bool:
        """Returns True where wait() would not wait. Takes nothing."""
        return self._session.ready(self._place(tensor), step)

    def wait(self, tensor: TensorKey, step: int, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> Update:
        """Blocks until the step's update arrives and hands it out, once. Push its fused neighbours before (push()).

        Errors  timeout: names the workers or shards that the job is blocked on. invalid_argument: a step that was not
                pushed, or was handed out before.
        """
        return self._in_time(self.try_wait(tensor, step, timeout), f"no update of step {step}", timeout)

    def try_wait(self, tensor: TensorKey, step: int, timeout: Optional[float] = 0) -> Optional[Update]:
        """Does the same, and returns None where the time has passed."""
        record = self._session.wait(self._place(tensor), step, _seconds(timeout))
        if record is None:
            return None
        place, number, applied, replaced, pieces = record
        return Update(place, number, applied, replaced, tuple(Piece(*piece) for piece in pieces))

    def wait_into(self, tensor: TensorKey, step: int, out: Any, timeout: Optional[float] = DEFAULT_TIMEOUT_S,
                  scale: float = 1.0) -> Filled:
        """Blocks until the step's update arrives and writes it densely: out[i] = sum[i] / denominator * scale.

        out  [dimension] writable; entries that the update lacks become 0. It may be the array that was pushed.
        """
        filled = self.try_wait_into(tensor, step, out, timeout, scale)
        return self._in_time(filled, f"no update of step {step}", timeout)

    def try_wait_into(self, tensor: TensorKey, step: int, out: Any, timeout: Optional[float] = 0,
                      scale: float = 1.0) -> Optional[Filled]:
        """Does the same, and returns None where the time has passed."""
        record = self._session.wait_into(self._place(tensor), step, out, _seconds(timeout), scale)
        return None if record is None else Filled(*record)

    def wait_list(self) -> "WaitList":
        """Returns an empty WaitList of this session."""
        return WaitList(self)

    def attach_weights(self, tensor: TensorKey, weights: Any, scale: float, apply: str = "on_await") -> None:
        """Attaches weights: from the next update on, weights[i] += scale * sum[i] / denominator.

        For workers that need neither joiners nor rejoins; the others give their weights to Tensor.

        weights  [dimension] writable f32. The session keeps the array alive.
        """
        self._session.attach_weights(self._place(tensor), weights, scale, apply)

    def set_scale(self, tensor: TensorKey, scale: float) -> None:
        """Changes the scale of weights that attach_weights() has attached."""
        self._session.set_scale(self._place(tensor), scale)

    def steps_applied(self, tensor: TensorKey) -> int:
        """Returns the number of the job's steps in the attached weights: the least over the tensor's parts."""
        return self._session.steps_applied(self._place(tensor))

    def take_residual(self, tensor: TensorKey) -> Entries:
        """Hands out the tensor's residual and sets it to zero. push_sparse() gives it back, to any worker.

        Errors  invalid_argument: a step of the tensor, or of one that travels with it, is pushed and not answered.
        """
        return Entries(*self._session.take_residual(self._place(tensor)))

    def take_velocity(self, tensor: TensorKey) -> Entries:
        """Hands out the tensor's velocity, of option momentum, and sets it to zero. Without momentum it is empty.

        Errors  those of take_residual().
        """
        return Entries(*self._session.take_velocity(self._place(tensor)))

    def restore(self, tensor: TensorKey, residual: Tuple[Any, Any] = NO_ENTRIES,
                velocity: Tuple[Any, Any] = NO_ENTRIES) -> None:
        """Adds entries to the tensor's residual and velocity, as the take_ calls handed them out.

        They gain no momentum. With option momentum a push is no substitute.

        residual, velocity  pairs (indices [n], values [n]), in any order; values of equal indices are added up.
        Errors  those of take_residual(). non_finite. invalid_argument: a velocity in a job without momentum.
        """
        self._session.restore(self._place(tensor), (residual[0], residual[1]), (velocity[0], velocity[1]))

    def retained(self, tensor: TensorKey) -> List[int]:
        """Returns the numbers that later steps of the tensor depend on beside residual and velocity.

        They are of its steps, of its selection, and of a reproducible job's grid.
        Errors  those of take_residual().
        """
        return self._session.retained(self._place(tensor))

    def restore_retained(self, tensor: TensorKey, numbers: Sequence[int]) -> bool:
        """Continues with the numbers of an earlier job, so that with residual and velocity the same bits follow.

        That holds in reproducible jobs without option reselect, if all workers restore. Returns False, and changes
        nothing, where that job had other settings: workers, seed, path, grid, select or dimension.
        Errors  those of take_residual(). invalid_argument: other numbers; nothing changes then.
        """
        return self._session.restore_retained(self._place(tensor), list(numbers))

    def pull(self, tensor: TensorKey, out: Any, at_least_step: int = 0,
             timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> PulledSteps:
        """Writes the weights that the shards hold, of a job with a store.

        out            [dimension] writable.
        at_least_step  the weights include the updates of all steps below it.
        """
        return self._in_time(self.try_pull(tensor, out, at_least_step, timeout), _NO_WEIGHTS, timeout)

    def try_pull(self, tensor: TensorKey, out: Any, at_least_step: int = 0,
                 timeout: Optional[float] = 0) -> Optional[PulledSteps]:
        """Does the same, and returns None where the time has passed."""
        return _pulled(self._session.pull(self._place(tensor), None, out, at_least_step, _seconds(timeout)))

    def pull_range(self, tensor: TensorKey, begin: int, out: Any, at_least_step: int = 0,
                   timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> PulledSteps:
        """Pulls weights [begin, begin + len(out)) of the tensor."""
        return self._in_time(self.try_pull_range(tensor, begin, out, at_least_step, timeout), _NO_WEIGHTS, timeout)

    def try_pull_range(self, tensor: TensorKey, begin: int, out: Any, at_least_step: int = 0,
                       timeout: Optional[float] = 0) -> Optional[PulledSteps]:
        """Does the same, and returns None where the time has passed."""
        return _pulled(self._session.pull(self._place(tensor), begin, out, at_least_step, _seconds(timeout)))

    def pull_indices(self, tensor: TensorKey, indices: Any, out: Any, at_least_step: int = 0,
                     timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> PulledSteps:
        """Pulls the weights of a list of indices.

        indices  [n] integers, strictly increasing.
        out      [n] writable.
        """
        return self._in_time(self.try_pull_indices(tensor, indices, out, at_least_step, timeout), _NO_WEIGHTS, timeout)

    def try_pull_indices(self, tensor: TensorKey, indices: Any, out: Any, at_least_step: int = 0,
                         timeout: Optional[float] = 0) -> Optional[PulledSteps]:
        """Does the same, and returns None where the time has passed."""
        return _pulled(self._session.pull_indices(self._place(tensor), indices, out, at_least_step, _seconds(timeout)))

    def pull_rows(self, tensor: TensorKey, width: int, rows: Any, out: Any, at_least_step: int = 0,
                  timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> PulledSteps:
        """Pulls rows of a table, as push_rows() has them: one index is sent for each.

        rows  [n] integers, strictly increasing.
        out   [n, width] writable.
        """
        return self._in_time(self.try_pull_rows(tensor, width, rows, out, at_least_step, timeout), _NO_WEIGHTS, timeout)

    def try_pull_rows(self, tensor: TensorKey, width: int, rows: Any, out: Any, at_least_step: int = 0,
                      timeout: Optional[float] = 0) -> Optional[PulledSteps]:
        """Does the same, and returns None where the time has passed."""
        _check_width(out, width)
        return _pulled(self._session.pull_rows(self._place(tensor), width, rows, out, at_least_step, _seconds(timeout)))

    def place_weights(self, weights: Sequence[Any], timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> None:
        """Gives the store its first weights, of all tensors at once (option store_begin = worker).

        weights  by tensor, [dimension] each, finite. Those of the worker with the lowest number count.
        """
        self._in_time(self.try_place_weights(weights, timeout) or None, "the store has no first weights", timeout)

    def try_place_weights(self, weights: Sequence[Any], timeout: Optional[float] = 0) -> bool:
        """Does the same, and returns False where the time has passed."""
        return self._session.place_weights(list(weights), _seconds(timeout))

    def status(self) -> SessionStatus:
        """Returns the present state, for displays."""
        return SessionStatus(*self._session.status())

    def stats(self) -> Stats:
        """Returns the sums since the session connected."""
        return stats_of(self._session.stats())

    @property
    def http_port(self) -> int:
        """The port of option `http`; 0: none."""
        return self._session.http_port()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes this worker's state atomically: residual, weights, positions. Option load_path begins with it."""
        self._session.save(os.fspath(path))

    def finish(self, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> None:
        """Waits until every push is answered, then leaves the job as finished. wait() still hands out updates."""
        self._in_time(self.try_finish(timeout) or None, "the job has not answered everything", timeout)

    def try_finish(self, timeout: Optional[float] = 0) -> bool:
        """Does the same, and returns False where the time has passed."""
        return self._session.finish(_seconds(timeout))

    def close(self) -> None:
        """Leaves the job at once. Calls of other threads that wait end with an error. Does nothing twice."""
        self._closed = True
        self._session.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            if kind is None and not self._closed:
                self.finish()
        finally:
            self.close()

    def _place(self, tensor: TensorKey) -> int:
        if isinstance(tensor, str):
            place = self._places.get(tensor)
            return self.tensor(tensor) if place is None else place
        return tensor

    def _in_time(self, result: Optional[_Result], missed: str, timeout: Optional[float]) -> _Result:
        if result is None:
            within = f" within {timeout:g} s" if timeout else ""
            raise JobError(f"{missed}{within}: {self.status().waiting_for}", "timeout", "job")
        return result


class WaitList:
    """Lists updates that one thread awaits while another one still pushes: each is written as soon as it is there.

    A call takes the interpreter's lock once for many tensors. Session.push() and Session.wait_into() take it for each.
    A list has one part after the other, for example a part for each step.

    waits = session.wait_list()
    thread A: waits.push([("w", gradient_of_w), ("v", gradient_of_v)]); waits.end()
    thread B: waits.write()

    Threads  one calls push() and add(), and another one write() or try_write(). Any thread may call end().
    Memory   the list holds the arrays of a part until write() or try_write() has returned it as written.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._waits = session, _millrace.WaitList(session._session)

    def push(self, gradients: Sequence[Tuple[TensorKey, Any]], timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> None:
        """Pushes gradients in their order, with weight 1. The update of each will be written over its gradient.

        gradients  (tensor, gradient) of each: [dimension] writable, in the host's memory.
        Errors     those of Session.push(). The list has the updates of the gradients before.
        """
        pairs = [(self._session._place(tensor), gradient) for tensor, gradient in gradients]
        pushed = self._waits.push(pairs, _seconds(timeout))
        self._session._in_time(pushed == len(pairs) or None, "the next step could not be pushed", timeout)

    def add(self, tensor: TensorKey, step: int, out: Any) -> None:
        """Adds the update of a step that is pushed, as Session.wait_into() takes it."""
        self._waits.add(self._session._place(tensor), step, out)

    def end(self) -> None:
        """Ends a part of the list: later updates are of the next part."""
        self._waits.end()

    def write(self, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> None:
        """Blocks until a part has ended and its updates are written, in their order. The next call writes the next part.

        Errors  those of Session.wait_into().
        """
        self._session._in_time(self.try_write(timeout) or None, "not all updates of a list are there", timeout)

    def try_write(self, timeout: Optional[float] = 0) -> bool:
        """Does the same, and returns False where the time has passed. The updates before it are written then."""
        return self._waits.write(_seconds(timeout))


def _pulled(record: Optional[Tuple[int, int]]) -> Optional[PulledSteps]:
    return None if record is None else PulledSteps(*record)


def _seconds(timeout: Optional[float]) -> float:
    return _FOREVER if timeout is None else timeout


def _check_width(rows: Any, width: int) -> None:
    """Refuses an array of two dimensions whose rows have another length."""
    shape = tuple(getattr(rows, "shape", ()))
    if len(shape) == 2 and shape[1] != width:
        raise ValueError(f"an array with rows of {shape[1]} entries, where width is {width}")


_live: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _close_all() -> None:
    """Ends sessions and the calls of other threads while the interpreter still runs.

    A schedule needs it, and at its end the interpreter unwinds threads that return to Python.
    """
    sessions: List[Session] = list(_live)
    for session in sessions:
        session.close()
    deadline = time.monotonic() + _END_S
    while any(session._session.calls() for session in sessions) and time.monotonic() < deadline:
        time.sleep(0.002)


atexit.register(_close_all)
