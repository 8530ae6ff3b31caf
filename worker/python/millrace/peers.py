"""Sums among ranks, without servers: groups over TCP, the allreduces of worker/peer, and sums with error feedback.

    group = millrace.peers.Group(rank, ["10.0.0.1:7600", "10.0.0.2:7600"], key_file="job7.key")
    sums = millrace.peers.GradientSum(group, gradient.size, "oktopk", select="topk:0.01")
    step = sums.push(gradient)
    sums.wait_into(step, gradient)  # the mean over the ranks; entries that were not sent stay in the residual

An allreduce is a text: NAME[:K][:PARAMETER=VALUE]...

    NAME       one of algorithms().
    K          entries that it keeps, a density or a count, where algorithms() says takes_k: "gtopk:0.01".
    PARAMETER  of oktopk: thresholds_period, boundaries_period (steps), boundaries (averaged, pooled, equal). Of
               ssar_split_allgather and dsar_split_allgather: quantizer (a codec).

Arrays are as those of millrace.Session. All ranks make the same sums in the same order, and start them in the same order.
"""

import atexit
import weakref
from types import TracebackType
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

from . import _millrace
from .configs import JobConfig, WorkerConfig
from .errors import JobError
from .updates import NO_ENTRIES, Entries

DEFAULT_TIMEOUT_S = 600.0
_FOREVER = float("inf")

# Options of a job that a sum among peers has as well.
OPTIONS = ("select", "codec_up", "codec_down", "codec_error", "non_finite", "momentum", "clip", "unbiased", "reproducible",
           "grid", "reselect", "seed", "combine")


class AlgorithmInfo(NamedTuple):
    """Describes an allreduce.

    source   the paper and its section, as kernels/REFERENCES.md names it.
    takes_k  keeps about the k largest entries of the sum; else an exact sum.
    selects  takes a dense contribution, and selects the entries that it sends.
    """

    name: str
    source: str
    takes_k: bool
    selects: bool


class Failure(NamedTuple):
    """Says why a group has ended: a code and a sentence as those of JobError, and the rank at fault if it is known."""

    code: str
    sentence: str
    rank: Optional[int]


class Traffic(NamedTuple):
    """Counts a group's messages through this rank. Headers are bytes too."""

    messages_sent: int
    bytes_sent: int
    bytes_received: int
    messages_unexpected: int


class SumEntries(NamedTuple):
    """Entries of a sum: [n] u32 indices, strictly increasing, or None where dense, and [n] f32 values."""

    indices: Optional[_millrace.Array]
    values: _millrace.Array


class Reduced(NamedTuple):
    """The result of a sum at one rank. Over all ranks: own + added = total + own entries not handed over + returned.

    total        the same bits on all ranks.
    returned     a codec's changes, and sums that this rank quantized or dropped.
    contributed  [n] u32: with a k, the indices of the own entries that were handed over.
    added        entries that an index code with false positives sent.
    """

    total: SumEntries
    returned: SumEntries
    contributed: _millrace.Array
    added: SumEntries


class Counts(NamedTuple):
    """Counts the entries that this rank sent, and those of the sums, in steps that have ended; norm of the residual."""

    entries: int
    sum_entries: int
    residual_norm: float
    non_finite_dropped: int


def algorithms() -> List[AlgorithmInfo]:
    """Returns every allreduce."""
    return [AlgorithmInfo(*row) for row in _millrace.algorithms()]


class Group:
    """This rank's part in a group, over TCP. Making one blocks until all ranks are connected.

    rank       from 0.
    addresses  where each rank listens, "HOST:PORT" by rank: the same list at all ranks. Or None, with the next two.
    listen     where this rank listens, and nowhere else; default: its own entry of addresses. Port 0: any free port.
    exchange   function that takes this rank's address and returns the list of all, for ranks that find each other by a
               store. Called once, when this rank listens.
    name       of the group: ranks of another group are refused. It is no password.
    key_file   a secret key (`millrace keys new NAME`), a copy of the same file at every rank: the ranks prove to each other
               that they have it, and encrypt all messages. None: neither; then all addresses must be of loopback.
    insecure   allows other addresses without a key: every process that reaches them may take a rank's place.
    connect_timeout
               seconds until all ranks are connected; those of exchange are part of them.
    silence    seconds: a rank that does not answer a query within it counts as dead.
    Errors     JobError: timeout, unavailable, job_mismatch, unauthenticated, each naming the rank. The first error ends
               the group on all ranks; a new group is needed then.
    Threads    any. A thread of the group's own sends and receives, also while the caller computes.
    fork()     a group belongs to its process: in a child every call raises JobError.
    The block's end calls barrier(), unless the block has called close() or raised.
    """

    _closed = False

    def __init__(self, rank: int, addresses: Optional[Sequence[str]] = None, *, listen: Optional[str] = None,
                 exchange: Optional[Callable[[str], List[str]]] = None, name: str = "peers",
                 key_file: Optional[str] = None, insecure: bool = False, connect_timeout: float = 60.0,
                 silence: float = 10.0, start_timeout: float = DEFAULT_TIMEOUT_S) -> None:
        seconds = [connect_timeout, silence, start_timeout]
        self._group = _millrace.PeerGroup.over_tcp(rank, list(addresses or ()), listen or "", exchange, name, key_file or "",
                                                   insecure, seconds)
        _live.add(self)

    @classmethod
    def in_process(cls, size: int) -> "List[Group]":
        """Returns the groups of `size` ranks of this process, each for a thread of its own."""
        groups = []
        for inner in _millrace.PeerGroup.in_process(size):
            group = cls.__new__(cls)
            group._group = inner
            _live.add(group)
            groups.append(group)
        return groups

    @property
    def rank(self) -> int:
        """The number of this rank, from 0 on."""
        return self._group.rank()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._group.size()

    def barrier(self, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> None:
        """Blocks until every rank has called it. Errors: timeout; this rank stays in the barrier (see try_barrier)."""
        if not self.try_barrier(timeout):
            raise JobError(f"not every rank has reached the barrier within {timeout} s", "timeout", "job")

    def try_barrier(self, timeout: Optional[float] = 0) -> bool:
        """Does the same, and returns False where the time has passed. The next call of either is of the same barrier."""
        return self._group.barrier(_seconds(timeout))

    def start_gather(self, own: bytes) -> "PendingGather":
        """Starts to gather the bytes of all ranks on every rank; never waits for another rank.

        own  of any length up to 2^31 - 1, another on each rank.
        """
        return PendingGather(self._group.start_gather(own))

    def gather(self, own: bytes, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> List[bytes]:
        """Gathers the bytes of all ranks on every rank, and blocks until they are there. Returns them by rank."""
        return self.start_gather(own).wait(timeout)

    def failure(self) -> Optional[Failure]:
        """Returns why the group has ended, or None while it runs."""
        failure = self._group.failure()
        return None if failure is None else Failure(*failure)

    def traffic(self) -> Traffic:
        """Returns the counters since the group began."""
        return Traffic(*self._group.traffic())

    def close(self) -> None:
        """Leaves the group, once its sums are closed too. Call barrier() before.

        Bytes that are not sent yet get 2 s without progress, 10 s in all.
        """
        self._closed = True
        self._group.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        try:
            if kind is None and not self._closed:
                self.barrier()
        finally:
            self.close()


class Pending:
    """A sum under way. It runs to its end whether its result is taken or not."""

    def __init__(self, inner: _millrace.PeerPending) -> None:
        self._pending = inner

    def ready(self) -> bool:
        """Returns whether wait() would not wait. Takes nothing."""
        return self._pending.ready()

    def wait(self, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> Reduced:
        """Blocks until the result is there and hands it out, once."""
        record = _in_time(self._pending.wait(_seconds(timeout)), timeout)
        total, returned, contributed, added = record
        return Reduced(SumEntries(*total), SumEntries(*returned), contributed, SumEntries(*added))

    def wait_into(self, out: Any, timeout: Optional[float] = DEFAULT_TIMEOUT_S, scale: float = 1.0) -> int:
        """Does the same, and writes it densely: out[i] = sum[i] * scale. Returns the number of entries of the sum.

        out  [dimension] writable; entries that the sum lacks become 0.
        """
        return int(_in_time(self._pending.wait_into(out, _seconds(timeout), scale), timeout))


class PendingGather:
    """A gather under way. It runs to its end whether its result is taken or not."""

    def __init__(self, inner: _millrace.PeerPendingGather) -> None:
        self._pending = inner

    def ready(self) -> bool:
        """Returns whether wait() would not wait. Takes nothing."""
        return self._pending.ready()

    def try_wait(self, timeout: Optional[float] = 0) -> Optional[List[bytes]]:
        """Hands out the bytes by rank, once, or returns None where the time has passed."""
        return self._pending.wait(_seconds(timeout))

    def wait(self, timeout: Optional[float] = DEFAULT_TIMEOUT_S) -> List[bytes]:
        """Blocks until the bytes of all ranks are there and hands them out, once."""
        gathered: List[bytes] = _in_time(self.try_wait(timeout), timeout, "gather")
        return gathered


class Allreduce:
    """Sums one tensor over the ranks, step after step, without a residual. Each tensor has one.

    dimension  number of entries, 1 to 2^32.
    algorithm  the allreduce as a text (see the module).
    codec      of contributions, "gap+qsgd4"; None: pairs of index and value.
    seed       of stochastic rounding.
    """

    def __init__(self, group: Group, dimension: int, algorithm: str = "auto", codec: Optional[str] = None,
                 seed: int = 1) -> None:
        self._allreduce = _millrace.PeerAllreduce(group._group, dimension, algorithm, codec, seed)

    def start(self, dense: Any) -> Pending:
        """Starts the sum of the ranks' vectors; never waits for another rank. dense: [dimension]; copied."""
        return Pending(self._allreduce.start(dense))

    def start_sparse(self, indices: Any, values: Any) -> Pending:
        """Starts the sum of the ranks' entries. indices: [n] strictly increasing; values: [n]; both are copied."""
        return Pending(self._allreduce.start_sparse(indices, values))

    def chosen(self) -> str:
        """Returns the algorithm that "auto" has chosen, with the time of each candidate; empty before."""
        return self._allreduce.chosen()


def local_clip_norm(job: JobConfig) -> float:
    """Returns the L2 norm that one rank's gradients are clipped to, so that those of all workers reach clip; 0: they are not.

    job  clip, combine and workers count. A GradientSum takes the size of its group in the place of workers: set it
         here. The norm is over all tensors of a step: see GradientSum.squared_norm().
    """
    return _millrace.local_clip_norm(job._set)


class GradientSum:
    """Sums one tensor's gradients over the ranks, and keeps the residual: the peers' trainer in C++ does the same.

    algorithm  the allreduce as a text (see the module). A K in it replaces the option select. An algorithm with a k
               needs one of both, as select="topk:0.01".
    options    of OPTIONS, as a JobConfig has them. By default all entries are sent, and the result is the mean. clip is
               of this tensor alone. A codec_down with loss is the quantizer of the split allgathers. The error of codecs
               stays in the residual where every codec contracts; else it is dropped.
    job        instead of options: a JobConfig, of which OPTIONS count.
    Threads    any.
    """

    def __init__(self, group: Group, dimension: int, algorithm: str = "ssar_split_allgather", *,
                 job: Optional[JobConfig] = None, **options: Any) -> None:
        for name in options:
            if name not in OPTIONS:
                raise TypeError(f"a sum among peers has no option '{name}': it has {', '.join(OPTIONS)}")
        config = job or JobConfig(**{"select": "none", "codec_up": "raw+raw", "combine": "mean", **options})
        self._sum = _millrace.PeerGradientSum(group._group, dimension, config._set, algorithm)
        _live.add(self)

    def push(self, gradient: Any) -> int:
        """Adds a gradient to the residual and starts the sum of the entries that are sent. Returns the step's number.

        gradient  [dimension]; the call has read it when it returns. No other thread writes it meanwhile.
        Errors    non_finite: NaN or infinity; nothing is taken then. invalid_argument: a wrong size; the step before is
                  under way. The group's.
        """
        return self._sum.push(gradient)

    def fill(self, gradient: Any) -> None:
        """Copies the gradient of a step whose factor is not known yet. A second call replaces it. Errors as push()."""
        self._sum.fill(gradient)

    def squared_norm(self) -> float:
        """Returns the squared L2 norm of the filled gradient, for a factor by the norm over several sums."""
        return self._sum.squared_norm()

    def start(self, factor: float = 1.0) -> int:
        """Adds factor * gradient, as fill() took it, to the residual, and starts the sum. Returns the step's number.

        Errors  invalid_argument: fill() was not called. The group's.
        """
        return self._sum.start(factor)

    def wait_into(self, step: int, out: Any, timeout: Optional[float] = DEFAULT_TIMEOUT_S, scale: float = 1.0) -> int:
        """Blocks until the step's sum is there and writes it densely. Returns the number of entries of the sum.

        out  [dimension] writable; entries that the sum lacks become 0. It may be the array that was pushed.
        """
        return int(_in_time(self.try_wait_into(step, out, timeout, scale), timeout))

    def try_wait_into(self, step: int, out: Any, timeout: Optional[float] = 0, scale: float = 1.0) -> Optional[int]:
        """Does the same, and returns None where the time has passed."""
        return self._sum.wait_into(step, out, _seconds(timeout), scale)

    def take_residual(self) -> Entries:
        """Hands out the residual and sets it to zero. Errors: invalid_argument: a step is under way."""
        return Entries(*self._sum.take_residual())

    def take_velocity(self) -> Entries:
        """Does the same with the velocity; no entries without option momentum."""
        return Entries(*self._sum.take_velocity())

    def restore(self, residual: Tuple[Any, Any] = NO_ENTRIES, velocity: Tuple[Any, Any] = NO_ENTRIES) -> None:
        """Adds entries to residual and velocity, as the take_ calls handed them out. They gain no momentum.

        residual, velocity  pairs (indices [n], values [n]), in any order; values of equal indices are added up.
        Errors  those of take_residual(). non_finite. invalid_argument: a velocity without option momentum.
        """
        self._sum.restore((residual[0], residual[1]), (velocity[0], velocity[1]))

    def retained(self) -> List[int]:
        """Returns the numbers that the sum retains between steps beside residual and velocity: thresholds, boundaries, steps.

        Errors  invalid_argument: a step is under way.
        """
        return self._sum.retained()

    def restore_retained(self, numbers: Sequence[int]) -> bool:
        """Continues with the numbers of an earlier sum, so that with its residual and velocity the same bits follow.

        All ranks restore theirs of one step. Returns False, and changes nothing, where that sum had other settings or
        another number of ranks.
        Errors  invalid_argument: a step is under way; other numbers: close the sum then.
        """
        return self._sum.restore_retained(list(numbers))

    def counts(self) -> Counts:
        """Returns the counters of this rank. Cost: a pass over the residual."""
        return Counts(*self._sum.counts())

    def close(self) -> None:
        """Frees the sum. Ends the group where a step is under way."""
        self._sum.close()


class Port:
    """Serves /metrics, /healthz, /status and /trace of this rank over HTTP (monitoring/METRICS.md, "Peers").

    sums   of the group; the figures are those of all of them together.
    name   label `job` of the metrics.
    me     options http, http_tls, http_token_file and http_insecure.
    Cost   of an answer: a pass over the residuals. A sum that a call waits for has those of the answer before.
    Errors JobError: invalid_argument, io.
    Ends   close(), before the sums are closed.
    """

    def __init__(self, group: Group, sums: Sequence[GradientSum], name: str, me: WorkerConfig) -> None:
        self._port = _millrace.PeerPort(group._group, [one._sum for one in sums], name, me._set)
        _live.add(self)

    @property
    def port(self) -> int:
        """The port that /metrics is at."""
        return self._port.port()

    def count_step(self, compute: float, wait: float) -> None:
        """Counts a step of all sums. compute, wait: its seconds outside of waits for sums, and in them."""
        self._port.count_step(compute, wait)

    def close(self) -> None:
        """Ends the port and its threads."""
        self._port.close()


def _seconds(timeout: Optional[float]) -> float:
    return _FOREVER if timeout is None else timeout


def _in_time(result: Any, timeout: Optional[float], what: str = "sum") -> Any:
    if result is None:
        raise JobError(f"the {what} has not ended within {timeout} s", "timeout", "job")
    return result


_live: "weakref.WeakSet[Union[Group, GradientSum, Port]]" = weakref.WeakSet()


def _close_all() -> None:
    """Ends ports, then sums, then groups, while the interpreter still runs."""
    for kind in (Port, GradientSum, Group):
        for one in [one for one in _live if isinstance(one, kind)]:
            one.close()


atexit.register(_close_all)
