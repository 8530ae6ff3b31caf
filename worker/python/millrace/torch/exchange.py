"""The exchange of a step: buckets go up as the backward pass computes them, a thread waits for the updates in order."""

import logging
import queue
import threading
import time
from dataclasses import dataclass, field

import torch

from .loss_scale import FLAG

_log = logging.getLogger("millrace.torch")

# The waiter looks this often whether the process ends; a wait for an update is cut into such pieces.
POLL_S = 0.25


@dataclass(frozen=True)
class Place:
    """Says where a parameter is in the job.

    late  its update arrives after the step's last push: the waiter awaits it behind the others.
    """

    tensor: int
    entries: int
    late: bool


@dataclass(eq=False)
class Bucket:
    """Holds a bucket of DDP in one step.

    buffer   [entries] the gradients of the bucket; the updates are written into it.
    slices   (name, view of the buffer) of each parameter with entries.
    missing  parameters whose update is still awaited.
    """

    buffer: torch.Tensor
    slices: list
    last: bool
    future: torch.futures.Future
    missing: int = 0


@dataclass(eq=False)
class _Step:
    first_push: float
    last_push: float = 0.0
    buckets: list = field(default_factory=list)
    late: list = field(default_factory=list)
    flag: torch.Tensor = None
    finished: threading.Event = field(default_factory=threading.Event)
    error: Exception = None  # stays in the list of steps, so that buckets which are sent later get it as well


@dataclass(frozen=True)
class _Wait:
    tensor: int
    number: int  # of the step, as push() returned it
    out: torch.Tensor
    bucket: Bucket  # None: the tensor FLAG


def slices_of(buffer, names_and_entries):
    """Returns (name, view) of the parameters of a flat buffer, in its order, without those that have no entries."""
    slices, begin = [], 0
    for name, entries in names_and_entries:
        if entries:
            slices.append((name, buffer.narrow(0, begin, entries)))
        begin += entries
    if begin != buffer.numel():
        raise ValueError(f"the bucket has {buffer.numel()} entries, and its parameters {begin}")
    return slices


class Exchange:
    """Pushes buckets to a session and completes their futures with the updates.

    places       {name: Place}, FLAG among them with a loss scale.
    residuals    values that the next push of a parameter adds.
    loss_scale   LossScale or None.
    report       notified of every step.
    Threads  send() and the calls beside it belong to the thread of the backward pass. One waiter thread awaits updates,
             in the order of the pushes, and ends with the process.
    Errors   the first error ends the exchange: all futures get it, and every later call raises it.
    """

    def __init__(self, session, places, residuals, loss_scale, report, timeout=600.0):
        self._session, self._places, self._residuals = session, places, residuals
        self._loss_scale, self._report, self._timeout = loss_scale, report, timeout
        self.steps = 0  # whose last bucket is sent; the caller's thread counts
        self._queue = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the futures and of the error
        self._steps = []  # begun, and not finished
        self._open = None  # the step whose last bucket is not sent yet
        self._error = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="millrace waiter")
        self._thread.start()

    def send(self, bucket):
        """Pushes a bucket. Its future completes with the buffer when all updates are in it.

        Returns  after the step's last bucket: the step, for await_step(); else None.
        """
        self.raise_error()
        step = self._open or self._begin_step()
        step.buckets.append(bucket)
        bucket.missing = len(bucket.slices)
        try:
            for name, values in bucket.slices:
                self._push(step, bucket, name, values)
            if not bucket.slices and self._loss_scale is None:
                self._complete(bucket)
            return self._end_pushes(step) if bucket.last else None
        except Exception as error:
            self._fail(error)
            raise

    def await_step(self, step):
        """Blocks until the step has finished. Signals interrupt the wait in the main thread.

        Raises  the error that ended the exchange.
        """
        step.finished.wait()
        if step.error is not None:
            raise step.error

    def raise_error(self):
        """Raises the error that ended the exchange, if there is one."""
        if self._error is not None:
            raise self._error

    def failed(self):
        """Returns whether an error ended the exchange."""
        return self._error is not None

    def close(self):
        """Ends the waiter. Steps that are not finished fail."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not threading.current_thread():  # the garbage collector may end a State in any thread
            self._thread.join()
        self._fail(RuntimeError("the State has left its job: make another one"))

    def _begin_step(self):
        step = _Step(first_push=time.monotonic())
        if self._loss_scale is not None:
            self._loss_scale.begin_step()
        with self._lock:
            self._steps.append(step)
        self._open = step
        return step

    def _end_pushes(self, step):
        if self._loss_scale is not None:
            step.flag = self._loss_scale.flag()
            place = self._places[FLAG]
            number = self._session.push(place.tensor, step.flag, timeout=self._timeout)
            step.late.append(_Wait(place.tensor, number, step.flag, None))
        step.last_push = time.monotonic()
        for wait in step.late:
            self._queue.put(wait)
        self._open = None
        self.steps += 1
        self._queue.put(step)
        return step

    def _push(self, step, bucket, name, values):
        place = self._places[name]
        if self._loss_scale is not None:
            self._loss_scale.before_push(name, values)
        try:
            number = self._push_with_residual(place, name, values)
        except Exception as error:
            if self._loss_scale is None or getattr(error, "code", "") != "non_finite":
                raise
            self._loss_scale.without_gradient(name, values)
            number = self._push_with_residual(place, name, values)
        wait = _Wait(place.tensor, number, values, bucket)
        if place.late:
            step.late.append(wait)
        else:
            self._queue.put(wait)

    def _push_with_residual(self, place, name, values):
        returning = self._residuals.returning(name)
        if returning is not None:
            values = values.to(torch.promote_types(values.dtype, torch.float32)) + returning
        number = self._session.push(place.tensor, values, timeout=self._timeout)
        self._residuals.returned(name)
        return number

    def _run(self):
        while True:
            try:
                item = self._queue.get(timeout=POLL_S)
            except queue.Empty:
                if self._ends():
                    return
                continue
            if item is None:
                return
            try:
                self._await_update(item) if isinstance(item, _Wait) else self._finish(item)
            except Exception as error:
                self._fail(error)

    def _await_update(self, wait):
        self.raise_error()
        deadline = time.monotonic() + self._timeout
        while self._session.try_wait_into(wait.tensor, wait.number, wait.out, timeout=POLL_S) is None:
            if time.monotonic() > deadline or self._ends():
                # Its error names the process that the job is blocked on.
                self._session.wait_into(wait.tensor, wait.number, wait.out, timeout=0)
                break
        if wait.bucket is not None:
            wait.bucket.missing -= 1
            if wait.bucket.missing == 0 and self._loss_scale is None:
                self._complete(wait.bucket)

    def _finish(self, step):
        self.raise_error()
        if self._loss_scale is not None:
            self._loss_scale.end_step(step.flag, [part for bucket in step.buckets for part in bucket.slices])
            for bucket in step.buckets:
                self._complete(bucket)
        self._report.count(step.first_push, step.last_push, time.monotonic())
        with self._lock:
            self._steps.remove(step)
        step.finished.set()
        try:
            self._report.tell()
        except Exception:
            _log.exception("the figures of a step could not be reported; training continues")

    def _complete(self, bucket):
        with self._lock:
            if not bucket.future.done():
                bucket.future.set_result(bucket.buffer)

    def _fail(self, error):
        with self._lock:
            if self._error is None:
                self._error = error
            for step in self._steps:
                step.error = self._error
                for bucket in step.buckets:
                    if not bucket.future.done():
                        bucket.future.set_exception(self._error)
                step.finished.set()

    def _ends(self):
        return self._closed or not threading.main_thread().is_alive()
