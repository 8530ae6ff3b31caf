"""Figures of a State for people: stats(), a line every N steps, TensorBoard scalars."""

import logging
import math
from dataclasses import dataclass, fields

_log = logging.getLogger("millrace.torch")


@dataclass(frozen=True)
class Stats:
    """Holds figures since the start, of this rank.

    seconds_waited  from the return of a step's last push to its last update, summed over the steps.
    seconds_hidden  in which an update was in flight while the training loop computed: it was neither in the hook nor
                    waiting. An update is in flight from the return of its bucket's pushes until it is there; small
                    parameters that travel together are from the step's last push on. Times of several updates in
                    flight, idle times of the link, and selection in the hook do not count.
    """

    steps: int  # completed
    steps_skipped: int  # of them, under a GradScaler, those that all ranks skipped
    bytes_up: int  # sent, with envelopes and retransmissions
    bytes_down: int
    bytes_dense: int  # of dense f32 gradients, one way
    bytes_to_devices: int  # over the bus, of models on CUDA
    bytes_from_devices: int
    ratio: float  # (bytes_up + bytes_down) / (2 bytes_dense)
    entries: int  # the k that was achieved: entries that the last step sent
    density: float  # entries / entries of all parameters
    residual_norm: float  # L2 norm of the present residual
    seconds_waited: float
    seconds_hidden: float
    advice: str  # empty, or a sentence: dense gradients would move fewer bytes, or would be faster (verdict.py)
    dense_from_rate: float  # bits a second of a link on which dense would be faster; infinity: none; 0: not known yet
    session: object  # the session's own figures, as Session.stats() returns them

    def as_dict(self):
        """Returns the figures without the session's."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "session"}


def advice_of(ratio):
    """Returns a sentence where dense gradients move fewer bytes than the selected entries, or an empty text."""
    if ratio <= 1:
        return ""
    return (f"the selected entries and their indices take {ratio:.2f} x the bytes of dense gradients: "
            'a lower density, or select="none", is faster')


def _ratio(both_ways, dense_one_way):
    return both_ways / (2 * dense_one_way) if dense_one_way else 0.0


def seconds_beside(flights, held):
    """Returns the seconds in which something was in flight and nothing was held.

    flights, held  pairs (begin, end) of seconds of one clock, in any order. One with end <= begin counts as none.
    """
    return _covered([*flights, *held]) - _covered(held)


def _covered(spans):
    covered, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


class Report:
    """Counts steps and times, and reports them every `every` steps.

    Threads  count() and tell() are the waiter's; stats() is any thread's.
    """

    def __init__(self, session, entries, every=100, tensorboard=None, loss_scale=None, verdict=None):
        self._verdict = verdict
        self._session, self._entries, self._every = session, entries, every
        self._tensorboard, self._loss_scale = tensorboard, loss_scale
        self.steps, self._waited, self._hidden = 0, 0.0, 0.0
        self.copied = lambda: (0, 0)  # the Exchange's
        self._before = None  # the figures of the line before
        self._advised = False

    def count(self, waited, hidden):
        """Counts a step: its seconds_waited and seconds_hidden, as Stats has them."""
        self.steps += 1
        self._waited += waited
        self._hidden += hidden
        if hasattr(self._session, "count_step"):  # of peers: other sessions count by themselves
            self._session.count_step(waited)

    def tell(self):
        """Reports every `every` steps to the log and to TensorBoard, and the planner's verdict once.

        An error goes to the log: figures that cannot be reported do not end training.
        """
        try:
            if self._verdict is not None and self._verdict.look(self.steps, self._waited) and self._every:
                _log.log(logging.WARNING if self._verdict.text else logging.INFO, "%s", self._verdict.line())
            if self._every and self.steps % self._every == 0:
                self._tell(self.stats())
        except Exception:
            _log.exception("the figures of a step could not be reported; training continues")

    def stats(self):
        """Returns the figures up to now. Cost: a message to the session's thread."""
        of_session = self._session.stats()
        both = of_session.bytes_up + of_session.bytes_down
        ratio = _ratio(both, of_session.dense_bytes)
        up, down = self.copied()
        entries = sum(tensor.entries_sent_last for tensor in of_session.tensors)
        return Stats(
            steps=self.steps, steps_skipped=self._loss_scale.skipped if self._loss_scale else 0,
            bytes_up=of_session.bytes_up, bytes_down=of_session.bytes_down, bytes_dense=of_session.dense_bytes,
            bytes_to_devices=getattr(of_session, "bytes_to_devices", 0) + up,
            bytes_from_devices=getattr(of_session, "bytes_from_devices", 0) + down,
            ratio=ratio, entries=entries, density=entries / self._entries if self._entries else 0.0,
            residual_norm=math.sqrt(sum(tensor.residual_norm**2 for tensor in of_session.tensors)),
            seconds_waited=self._waited, seconds_hidden=self._hidden,
            advice=advice_of(ratio) or (self._verdict.text if self._verdict else ""),
            dense_from_rate=self._verdict.dense_from_rate if self._verdict else 0.0, session=of_session)

    def _tell(self, stats):
        before = self._before
        self._before = stats
        steps = stats.steps - (before.steps if before else 0)
        a_step = {name: (getattr(stats, name) - (getattr(before, name) if before else 0)) / steps
                  for name in ("bytes_up", "bytes_down", "bytes_dense", "seconds_waited", "seconds_hidden")}
        ratio = _ratio(a_step["bytes_up"] + a_step["bytes_down"], a_step["bytes_dense"])
        _log.info("step %d: %.1f kB up and %.1f kB down a step, %.4f of dense; %d entries (%.3g %%), "
                  "residual norm %.4g; waited %.1f ms a step, hidden %.1f ms", stats.steps,
                  a_step["bytes_up"] / 1e3, a_step["bytes_down"] / 1e3, ratio, stats.entries, 100 * stats.density,
                  stats.residual_norm,
                  1e3 * a_step["seconds_waited"], 1e3 * a_step["seconds_hidden"])
        if stats.advice and not self._advised:
            self._advised = True
            _log.warning("%s", stats.advice)
        if self._tensorboard is not None:
            for name, value in (*a_step.items(), ("ratio", ratio), ("density", stats.density),
                                ("residual_norm", stats.residual_norm)):
                self._tensorboard.add_scalar(f"millrace/{name}", value, stats.steps)
