"""Millrace's log as lines of logging.getLogger("millrace").

Millrace's threads write into a queue without a look at Python. A thread of Python takes the lines out and logs them.
"""

import atexit
import logging
import os
import threading
from typing import Optional

from . import _millrace

LOGGER = logging.getLogger("millrace")
LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_WAIT_S = 0.5


class _Drain:
    """The queue of this process and the thread that empties it."""

    def __init__(self) -> None:
        self.queue = _millrace.LogQueue()
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="millrace-log", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.stopped:
            self.log_lines(_WAIT_S)

    def log_lines(self, wait_s: float) -> None:
        for level, text in self.queue.take(wait_s):
            LOGGER.log(LEVELS[level], "%s", text)

    def stop(self) -> None:
        """Ends the thread before the interpreter ends: after that it could not get the interpreter's lock."""
        self.stopped = True
        self.queue.close()
        self.thread.join()
        self.log_lines(0)


_lock = threading.Lock()
_drain: Optional[_Drain] = None


def queue() -> _millrace.LogQueue:
    """Returns the queue of this process and starts its thread."""
    global _drain
    with _lock:
        if _drain is None:
            _drain = _Drain()
        return _drain.queue


def _forget_parent() -> None:
    """Drops the parent's queue in a forked child, which has no thread of it."""
    global _drain, _lock
    _lock = threading.Lock()
    _drain = None


def _stop() -> None:
    if _drain is not None:
        _drain.stop()


# Before the sessions' own, which therefore runs earlier: the lines of their end are logged.
atexit.register(_stop)
os.register_at_fork(after_in_child=_forget_parent)
