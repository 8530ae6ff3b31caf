"""The exchange of a step: buckets go up as the backward pass computes them, a thread waits for the updates in order.

Buckets of a device have a second thread, which pushes them: a push waits for the gradient, and the backward pass must
not.
"""

import collections
import contextlib
import math
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch

from . import device
from ..updates import NO_ENTRIES
from .bucket import Bucket
from .deadline import Deadline
from .loss_scale import FLAG
from .report import seconds_beside

# The waiter looks this often whether the process ends; a wait for an update is cut into such pieces.
POLL_S = 0.25
# Futures complete before the waiter ends their step. It needs no more than this between the two.
_END_OF_STEP_S = 10.0
GIVEN_UP = ("an earlier backward pass ended within its step: other ranks may have its gradients, and this rank's model lacks the "
            "update")


def not_counted(copied_bytes):
    """Counts nothing."""


def lasting(error):
    """Returns the error of later calls, after this one ended a step."""
    return error if isinstance(error, Exception) else RuntimeError("the step was interrupted")


class _Gate:
    """Is a threading.Event that is set once. Its code is short: behind a step no cache has it, and Event's takes 20 µs more.

    REQUIRES: one thread at a time calls set().
    """

    def __init__(self):
        self._is_set, self._lock = False, threading.Lock()
        self._lock.acquire()

    def set(self):
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def wait(self, timeout):
        if not self._lock.acquire(timeout=timeout):
            return False
        self._lock.release()
        return True


@dataclass(eq=False)
class _Step:
    last_push: float = 0.0
    buckets: list = field(default_factory=list)
    late: list = field(default_factory=list)
    flag: Any = None  # memory of the tensor FLAG
    finished: _Gate = field(default_factory=_Gate)
    error: Optional[Exception] = None  # stays in the list of steps, so that buckets which are sent later get it as well


class _Wait(NamedTuple):
    tensor: int
    number: int  # of the step, as push() returned it
    out: Any  # memory or a tensor
    bucket: Any  # Bucket; None: the tensor FLAG
    host: Any = None  # a tensor that takes the update on its way to `out`, which is a device's
    late: bool = False  # as Place has it


class _Written(NamedTuple):
    """Says that the parameters of a bucket in the host's memory that are not late have their updates."""

    bucket: Bucket
    updates: int  # in the waiter's list
    pushed: float  # when the item was handed over
    step: Any = None  # _Step that ends with them


class Exchange:
    """Pushes buckets to a session and completes their futures with the updates.

    places         {name: Place}, FLAG among them with a loss scale.
    residuals      values that the next push of a parameter adds.
    loss_scale     LossScale or None.
    report         notified of every step.
    flag_has_rest  the session may keep a part of a raised FLAG for later steps.
    count_copied   called with the bytes of each copy of a gradient that is made here, for millrace.copies().
    timeout        seconds that the waits of a step may take together, and its pushes together.
    clock          returns seconds, for the figures of a step.
    Threads  send() and the calls beside it belong to the thread of the backward pass. One waiter thread awaits updates,
             in the order of the pushes, and ends with the process. So does the pusher, which buckets of a device have.
    Errors   the first error ends the exchange: all futures get it, and every later call raises it. An interruption of
             send() or await_step() is one.
    """

    def __init__(self, session, places, residuals, loss_scale, report, timeout=600.0, flag_has_rest=False,
                 count_copied=not_counted, clock=time.monotonic):
        self._flag_has_rest, self._count_copied, self._clock = flag_has_rest, count_copied, clock
        # A step may leave parameters out at all ranks: DDP ignores the update of such a parameter. So a rank holds the
        # residual of a parameter back while its gradient is all zeros.
        self.finds_unused = False
        self._held_back = {}  # {name: (residual, velocity)}
        self._session, self._places, self._residuals = session, places, residuals
        self._loss_scale, self._report, self._timeout = loss_scale, report, timeout
        self.steps = 0  # whose last bucket is sent; the caller's thread counts
        self._waits = session.wait_list()  # a part in front of each item
        self._items = collections.deque()  # of the waiter
        self._waits_since = time.monotonic()  # the waiter, for its next item
        self._lock = threading.Lock()  # of the futures and of the error
        self._steps = []  # begun, and not finished
        self._open = None  # the step whose last bucket is not sent yet
        self._unawaited = None  # the step whose last bucket is sent, and whose backward pass has not ended
        self._error = None
        self._closed = False
        self._push_seconds = self._wait_seconds = 0.0  # in pushes and waits of the present step, each of one thread
        self._transfers = {}  # of each device; the pusher adds them
        self._unpushed = queue.SimpleQueue()
        self._pusher = None
        self._thread = threading.Thread(target=self._run, name="millrace waiter")
        self._thread.start()

    def send(self, bucket):
        """Pushes a bucket, and makes its future, which completes with the buffer when all updates are in it.

        Returns  after the step's last bucket: the step, for await_step(); else None.
        """
        self.raise_error()
        self._raise_if_ends()
        step = self._open or self._begin_step()
        step.buckets.append(bucket)
        if bucket.last:
            self._open, self._unawaited = None, step
            self.steps += 1
        if bucket.ready is not None:
            self._give_future(bucket)
            if self._pusher is None:
                self._pusher = threading.Thread(target=self._serve_pusher, name="millrace pusher")
                self._pusher.start()
            self._unpushed.put((step, bucket))
        else:
            try:
                self._push_bucket((step, bucket))
            except BaseException as error:
                self.fail(lasting(error))
                raise
        return step if bucket.last else None

    def await_step(self, step):
        """Blocks until the step has finished. Signals interrupt the wait in the main thread.

        Raises  the error that ended the exchange.
        """
        try:
            while not step.finished.wait(POLL_S):
                self._raise_if_ends()
        except BaseException as error:
            self.fail(lasting(error))
            raise
        if step.error is not None:
            raise step.error
        self._unawaited = None

    def give_back(self, name):
        """Returns the values of a parameter that were held back to the session. REQUIRES: no step of it is under way."""
        if name in self._held_back:
            self._session.restore(self._places[name].tensor, *self._held_back[name])
            del self._held_back[name]

    def give_all_back(self):
        """Does the same for all parameters."""
        for name in list(self._held_back):
            self.give_back(name)

    def raise_error(self):
        """Raises the error that ended the exchange, if there is one."""
        if self._error is not None:
            raise self._error

    def raise_within_step(self):
        """Raises the error that ended the exchange. RuntimeError: a step is under way, or a backward pass ended within it."""
        self.raise_error()
        if self.failed():
            raise RuntimeError(GIVEN_UP)
        for step in self._steps[:]:
            if not step.finished.wait(_END_OF_STEP_S):
                raise RuntimeError("a step is under way")
        self.raise_error()

    def failed(self):
        """Returns whether an error ended the exchange, or a backward pass ended within a step."""
        return self._error is not None or self._open is not None or self._unawaited is not None

    def leave(self):
        """Leaves the end of the step to its futures. REQUIRES: its last bucket is sent, outside of a backward pass."""
        self._unawaited = None

    def copied(self):
        """Returns the bytes that the exchange copied to devices and from them, beside those of the session."""
        return device.copied(list(self._transfers.values()))

    def close(self):
        """Ends the waiter. Steps that are not finished fail."""
        self._closed = True
        self._unpushed.put(None)
        self._put(None)
        for thread in (self._pusher, self._thread):
            # The garbage collector may end a State in any thread.
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        self.fail(self._end_error())

    def _begin_step(self):
        if self._unawaited is not None:
            error = RuntimeError(GIVEN_UP)
            self.fail(error)
            raise error
        step = self._open = _Step()
        with self._lock:
            self._steps.append(step)
        return step

    def _push_bucket(self, step_and_bucket):
        step, bucket = step_and_bucket
        self.raise_error()
        bucket.began = self._clock()
        if bucket.ready is None:
            early = self._push_slices(step, bucket, None)
        else:
            there = bucket.buffer.device
            if there not in self._transfers:
                entries = {name: place.entries for name, place in self._places.items() if name != FLAG}
                self._transfers[there] = device.Transfers(there, self._session, entries)
            with self._transfers[there].gradients(bucket.buffer, bucket.ready):
                early = self._push_slices(step, bucket, self._transfers[there])
            if bucket.last:
                self._transfers[there].tell()
        bucket.pushed = self._clock()
        self._give_future(bucket)
        if not bucket.layout.names and self._loss_scale is None:
            self._complete(bucket)
        if bucket.last:
            self._end_pushes(step, bucket, early)
        elif early:
            self._put(_Written(bucket, early, time.monotonic()))

    def _push_slices(self, step, bucket, transfers):
        """Pushes the parameters of a bucket. Returns how many of them are in the waiter's list."""
        if self._loss_scale is not None and bucket is step.buckets[0]:
            self._loss_scale.begin_step()
        if transfers is not None:
            for at, (name, values) in enumerate(bucket.slices):
                wait = self._push(step, bucket, at, name, values, transfers)
                (step.late.append if wait.late else self._put)(wait)
            return 0
        pushes = bucket.layout.pushes(bucket.buffer, self._places)
        if pushes.early:
            self._push_early(step, bucket, pushes)
        for at, name, values in pushes.late:
            step.late.append(self._push(step, bucket, at, name, values, None))
        return len(pushes.early)

    def _push_early(self, step, bucket, pushes):
        """Pushes parameters that are not late. The waiter writes their updates meanwhile, without the interpreter's lock."""
        if self._loss_scale is None and not self.finds_unused and not self._held_back and not self._residuals.names():
            self._timed_push(self._waits.push, pushes.gradients)
        else:
            for at, name, values in pushes.early:
                wait = self._push(step, bucket, at, name, values, None)
                self._waits.add(wait.tensor, wait.number, wait.out)

    def _give_future(self, bucket):
        """Makes the future of a bucket that has none. Of the host it is made behind the pushes: until then nothing reads it.

        Raises  the error that ended the exchange: its fail() has not seen this future.
        """
        if bucket.future is None:
            with self._lock:
                self.raise_error()
                bucket.future = device.future_of(bucket.buffer)

    def _put(self, item):
        """Hands an item to the waiter: it is behind the updates that its list has so far."""
        self._items.append(item)
        self._waits.end()

    def _end_pushes(self, step, bucket, early):
        """Ends the pushes of a step with its last bucket, of which `early` parameters are in the waiter's list."""
        if self._loss_scale is not None:
            step.flag = self._loss_scale.flag()
            place = self._places[FLAG]
            number = self._push_in_time(place, step.flag, False)
            step.late.append(_Wait(place.tensor, number, step.flag, None))
        step.last_push = self._clock()
        self._push_seconds = 0.0
        if early:
            self._put(_Written(bucket, early, time.monotonic(), None if step.late else step))
        for wait in step.late:
            self._put(wait)
        if step.late or not early:
            self._put(step)

    def _push(self, step, bucket, at, name, values, transfers):
        """Returns the wait for the update.

        values  memory of the parameter's part of the bucket, or its tensor.
        """
        place = self._places[name]
        if self._loss_scale is not None:
            scaled = bucket.slices[at][1]
            self._loss_scale.before_push(name, scaled)
            self._count_copied(scaled.numel() * scaled.element_size())
        try:
            number, host = self._push_with_residual(place, name, values, bucket, at, transfers)
        except Exception as error:
            if self._loss_scale is None or getattr(error, "code", "") != "non_finite":
                raise
            self._loss_scale.without_gradient(name, bucket.slices[at][1])
            number, host = self._push_with_residual(place, name, values, bucket, at, transfers)
        return _Wait(place.tensor, number, values, bucket, host, place.late)

    def _push_with_residual(self, place, name, values, bucket, at, transfers):
        """Returns the step's number; and of a device's gradient that was copied to the host, the memory for the update."""
        may_hold = self.finds_unused and transfers is None and not place.late
        # A push of any kind gives held values back: the option may have gone with its DistributedDataParallel.
        if (may_hold or name in self._held_back) and self._holds_back(place, name, bucket.slices[at][1] if may_hold else None):
            return self._push_in_time(place, values, False), None
        returning = self._residuals.returning(name)
        if returning is not None:
            values = bucket.slices[at][1]
            values = values.to(torch.float32) + returning.to(values.device)  # as the session adds its residual
            self._count_copied(4 * place.entries)
        if transfers is None:
            number, host = self._push_in_time(place, values, False), None
        else:
            number, host = transfers.push(name, values, bucket.buffer.dtype, lambda there: self._push_in_time(place, there, True))
        if returning is not None:
            self._residuals.returned(name)
        return number, host

    def _holds_back(self, place, name, gradient):
        """Gives back the values that the step before has held back, and holds them back where this one has no gradient.

        gradient  None: holds nothing back.
        A tensor that travels with its neighbours is under way when the first of them is pushed: not for such.
        """
        try:
            self.give_back(name)
            # Nearly every gradient has entries at its begin, where a look costs no pass.
            if gradient is None or bool(gradient[:1024].any()) or bool(gradient.any()):
                return False
            self._held_back[name] = self._session.take_residual(place.tensor), NO_ENTRIES
            self._held_back[name] = self._held_back[name][0], self._session.take_velocity(place.tensor)
        except Exception as error:
            if getattr(error, "code", "") != "invalid_argument":
                raise
            return False  # the session rejoins: it neither hands out a residual nor takes one
        return True

    def _push_in_time(self, place, values, by_pusher):
        """Pushes, from the pusher in pieces of time: close() awaits it."""
        if not by_pusher or not hasattr(self._session, "try_push"):
            return self._timed_push(self._session.push, place.tensor, values)
        began = time.monotonic()
        limit = Deadline(self._timeout, self._push_seconds)
        number = self._in_time(limit, self._session.try_push, self._session.push, place.tensor, values)
        self._push_seconds += time.monotonic() - began
        return number

    def _timed_push(self, push, *arguments):
        """Returns the result of a push, which takes its part of the step's time."""
        began = time.monotonic()
        result = Deadline(self._timeout, self._push_seconds).call(push, *arguments)
        self._push_seconds += time.monotonic() - began
        return result

    def _run(self):
        calls = {_Wait: self._await_update, _Written: self._bucket_is_written, _Step: self._finish}
        try:
            while (item := self._next_item()) is not None:
                calls[type(item)](item)
                self._waits_since = time.monotonic()
        except Exception as error:
            self.fail(error)

    def _next_item(self):
        """Returns the waiter's next item when the updates in front of it are written; None: the State or the process ends.

        Raises  the session's error where the time of the step's waits has passed.
        """
        while not self._waits.try_write(min(POLL_S, self._wait_left())):
            self.raise_error()
            if self._ends():
                if not self._steps:
                    return None
                raise self._end_error()
            if not self._wait_left():
                self._end_wait(self._waits.write)
                break  # written in the last moment
        return self._items.popleft()

    def _serve_pusher(self):
        """Pushes the buckets of devices until one is None or the process ends. Errors end the exchange."""
        while True:
            try:
                item = self._unpushed.get(timeout=POLL_S)
            except queue.Empty:
                if self._ends():
                    return
                continue
            if item is None:
                return
            try:
                self._push_bucket(item)
            except Exception as error:
                self.fail(error)

    def _await_update(self, wait):
        self.raise_error()
        session, began = self._session, time.monotonic()
        limit = Deadline(self._timeout, self._wait_seconds)
        transfers = self._transfers_of(wait.bucket) if wait.bucket is not None else None
        if transfers is not None and wait.host is None:
            update = self._in_time(limit, session.try_wait, session.wait, wait.tensor, wait.number)
            with transfers.updates():
                transfers.write(wait.out, update.pieces)
        else:
            into = wait.out if transfers is None else wait.host
            self._in_time(limit, session.try_wait_into, session.wait_into, wait.tensor, wait.number, into)
            if transfers is not None:
                with transfers.updates():
                    transfers.copy(wait.out, into)
        self._wait_seconds += time.monotonic() - began
        if wait.bucket is not None:
            if not wait.late:
                wait.bucket.there = self._clock()
            self._arrived(wait.bucket, 1)

    def _bucket_is_written(self, item):
        self.raise_error()
        self._wait_seconds += self._seconds_of_wait(item)
        item.bucket.there = self._clock()
        self._arrived(item.bucket, item.updates)
        if item.step is not None:
            self._finish(item.step)

    def _seconds_of_wait(self, item):
        """Returns the seconds that the waiter has waited for a bucket: since it is pushed, and the item before is done."""
        return time.monotonic() - max(self._waits_since, item.pushed)

    def _wait_left(self):
        """Returns the seconds that the waits of the step have left: no limit until a bucket is pushed."""
        if not self._items:
            return math.inf
        item = self._items[0]
        waited = self._seconds_of_wait(item) if isinstance(item, _Written) else 0.0
        return max(0.0, self._timeout - self._wait_seconds - waited)

    def _arrived(self, bucket, updates):
        bucket.missing -= updates
        if bucket.missing == 0 and self._loss_scale is None:
            self._complete(bucket)

    def _in_time(self, limit, tries, waits, *arguments):
        """Returns the result of a call of the session that waits, in pieces of time. tries, waits: its two forms."""
        while (done := tries(*arguments, timeout=min(POLL_S, limit.left()))) is None:
            self._raise_if_ends()
            if not limit.left():
                return self._end_wait(waits, *arguments)
        return done

    def _end_wait(self, waits, *arguments):
        """Raises the session's error of a time-out: it names the process that the job is blocked on, not the State's limit."""
        return Deadline(self._timeout, used=self._timeout).call(waits, *arguments)

    def _finish(self, step):
        self.raise_error()
        self._wait_seconds = 0.0
        if self._loss_scale is not None:
            with contextlib.ExitStack() as streams:  # each device has a current stream
                for bucket in {bucket.buffer.device: bucket for bucket in step.buckets}.values():
                    streams.enter_context(self._updates_of(bucket))
                skipped = self._loss_scale.end_step(step.flag, [part for bucket in step.buckets for part in bucket.slices])
            if skipped and self._flag_has_rest:
                self._forget_flag()
            for bucket in step.buckets:
                self._complete(bucket)
        self._count(step)
        with self._lock:
            self._steps.remove(step)
            step.finished.set()
        self._report.tell()

    def _count(self, step):
        """Counts a step whose updates are there. The loop is held in the hook and at the end; a device's hook returns at once."""
        end = self._clock()
        flights = [(bucket.pushed, bucket.there) for bucket in step.buckets if bucket.there is not None]
        held = [(bucket.began, bucket.pushed) for bucket in step.buckets if bucket.ready is None]
        self._report.count(end - step.last_push, seconds_beside(flights, [*held, (step.buckets[-1].pushed, end)]))

    def _forget_flag(self):
        """Drops the rest of a raised flag, for which later steps would be skipped: the part that a grid has no room for, and
        the velocity of option momentum."""
        tensor = self._places[FLAG].tensor
        self._session.take_residual(tensor)
        self._session.take_velocity(tensor)

    def _complete(self, bucket):
        with self._lock, self._updates_of(bucket):
            if self._error is None:  # fail() has completed it otherwise
                bucket.future.set_result(bucket.buffer)

    def _updates_of(self, bucket):
        """Runs the block's work on the stream of the bucket's updates, which a future's value is ready behind."""
        transfers = self._transfers_of(bucket)
        return contextlib.nullcontext() if transfers is None else transfers.updates()

    def _transfers_of(self, bucket):
        """Returns the Transfers of a bucket's device, or None in the host's memory."""
        return self._transfers.get(bucket.buffer.device) if bucket.ready is not None else None

    def fail(self, error):
        """Ends the exchange. The first error counts."""
        with self._lock:
            if self._error is None:
                self._error = error
            for step in self._steps:
                step.error = self._error
                for bucket in step.buckets:
                    if bucket.future is not None and not bucket.future.done():
                        bucket.future.set_exception(self._error)
                step.finished.set()

    def _ends(self):
        return self._closed or not threading.main_thread().is_alive()

    def _raise_if_ends(self):
        if self._ends():
            raise self._end_error()

    def _end_error(self):
        return RuntimeError("the State has left its job: make another one" if self._closed else
                            "the main thread has ended, and the State's threads with it: let it join() the thread that trains")
