"""The calls of millrace.WaitList for a session that waits for each update by itself."""

import threading

from .deadline import Deadline


class WaitList:
    """Is a millrace.WaitList over push(), try_wait_into() and wait_into() of a session.

    The waits begin at the list's end: between two pushes they would ask for the interpreter's lock.
    """

    def __init__(self, session):
        self._session, self._waits, self._whole = session, [], threading.Event()

    def push(self, gradients, timeout):
        limit = Deadline(timeout)
        for tensor, gradient in gradients:
            self.add(tensor, self._session.push(tensor, gradient, timeout=limit.left()), gradient)

    def add(self, tensor, step, out):
        self._waits.append((tensor, step, out))

    def end(self):
        self._waits.reverse()  # the next one is the last one
        self._whole.set()

    def try_write(self, timeout):
        limit = Deadline(timeout)
        if not self._whole.wait(timeout):
            return False
        while self._waits and self._session.try_wait_into(*self._waits[-1], timeout=limit.left()) is not None:
            self._waits.pop()
        return not self._waits

    def write(self, timeout):
        """Does the same, and raises the session's error where the time has passed. Returns at once before the list's end."""
        while not self.try_write(timeout) and self._whole.is_set():
            self._session.wait_into(*self._waits[-1], timeout=0)  # its error names the process that the job is blocked on
            self._waits.pop()
