"""The calls of millrace.WaitList for a session that waits for each update by itself."""

import queue
import threading

from .deadline import Deadline


class WaitList:
    """Is a millrace.WaitList over push(), try_wait_into() and wait_into() of a session.

    The waits of a part begin at its end: between two pushes they would ask for the interpreter's lock.
    """

    def __init__(self, session):
        self._session, self._lock, self._added = session, threading.RLock(), []  # the garbage collector may call end()
        self._parts = queue.SimpleQueue()
        self._part = None  # that is written now, the next wait at its end

    def push(self, gradients, timeout):
        limit = Deadline(timeout)
        for tensor, gradient in gradients:
            self.add(tensor, self._session.push(tensor, gradient, timeout=limit.left()), gradient)

    def add(self, tensor, step, out):
        with self._lock:
            self._added.append((tensor, step, out))

    def end(self):
        with self._lock:
            added, self._added = self._added, []
            self._parts.put(added[::-1])

    def try_write(self, timeout):
        limit = Deadline(timeout)
        if self._part is None:
            try:
                self._part = self._parts.get(timeout=limit.left())
            except queue.Empty:
                return False
        while self._part and self._session.try_wait_into(*self._part[-1], timeout=limit.left()) is not None:
            self._part.pop()
        if self._part:
            return False
        self._part = None
        return True

    def write(self, timeout):
        """Does the same, and raises the session's error where the time has passed. TimeoutError: the part has not ended."""
        while not self.try_write(timeout):
            if self._part is None:
                raise TimeoutError("a part of the list has not ended in time")
            self._session.wait_into(*self._part[-1], timeout=0)  # its error names the process that the job is blocked on
            self._part.pop()
