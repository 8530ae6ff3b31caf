"""The end of a session that the program neither finished nor closed: its owner dies, or the process ends."""

import atexit
import logging
import os
import sys
import weakref
from typing import Any, Dict

_log = logging.getLogger("millrace.torch")
_FINISH_AT_EXIT_S = 60.0
# The finalizer of each session that is in a job. In the order of creation, since peers end by a barrier: every rank
# has that order.
_live: Dict[Any, None] = {}


def leave_with(owner, session, exchange=None):
    """Has a session leave its job when `owner` dies or the process ends: as finished, or as failed after an error.

    exchange  an Exchange of the session, or None. It is closed first, and its error counts.
    Returns   the finalizer. Its `alive` says that nothing has ended the session yet. give_up() ends it.
    """
    end = weakref.finalize(owner, _leave, os.getpid(), session, exchange)
    end.atexit = False  # _leave_all(), which runs before the package closes its sessions
    _live[end] = None
    return end


def give_up(end):
    """Leaves the end of a session to the caller. end: of leave_with()."""
    _live.pop(end, None)
    end.detach()


def _leave(pid, session, exchange):
    for ended in [end for end in list(_live) if not end.alive]:
        _live.pop(ended, None)
    if os.getpid() != pid:
        return  # a fork of the process: the job is not its own
    failed = any(getattr(sys, name, None) is not None for name in ("last_exc", "last_value"))
    if exchange is not None:
        failed = exchange.failed() or failed
        exchange.close()
    try:
        if not failed:
            session.finish(timeout=_FINISH_AT_EXIT_S)
        session.close()
    except Exception as error:
        _log.warning("the job was not left as finished: %s", error)


def _leave_all():
    for end in list(_live):
        # A finalizer's own call does nothing at the end of the process.
        if (alive := end.detach()) is not None:
            _leave(*alive[2])


atexit.register(_leave_all)
