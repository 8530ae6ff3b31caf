"""The planner of `millrace advise`: which exchange of a gradient is the fastest, and whether dense would be faster."""

import math
from typing import NamedTuple, Tuple, Union

from . import _millrace
from .errors import JobError


class PlannedTime(NamedTuple):
    """Time of one exchange by the papers' cost models.

    algorithm         "oktopk", or "servers" and "servers_topk": through shards, each on a host of its own.
    result            "exact_sum", or "global_topk": about the largest entries of the sum.
    dense             every value travels.
    seconds           of the exchange, from a dense gradient on.
    transfer_seconds  of these, the bytes on the link.
    """

    algorithm: str
    result: str
    dense: bool
    seconds: float
    transfer_seconds: float


class Advice(NamedTuple):
    """The planner's answer.

    entries        that a worker sends.
    reason         whether dense or sparse wins among peers and servers, and why.
    ranking        the fastest first.
    servers        through shards, with the selected entries.
    servers_dense  through shards, with every entry.
    """

    entries: int
    reason: str
    ranking: Tuple[PlannedTime, ...]
    servers: PlannedTime
    servers_dense: PlannedTime

    @property
    def dense_is_faster(self) -> bool:
        """Whether the shards would exchange dense gradients in less time."""
        return self.servers_dense.seconds < self.servers.seconds


def advise(dimension: int, density: float, *, workers: int, link_rate: Union[str, float], latency: Union[str, float] = 0.0,
           shards: int = 1, select: str = "topk", codec: str = "raw", exact: bool = False) -> Advice:
    """Returns the times of one exchange by cost models, with this machine's speeds of selecting, coding and adding.

    dimension  entries of the gradient.
    density    share of them that a worker sends, over 0 to 1.
    link_rate  of a worker's link, in bits a second, or "1gbit".
    latency    of a message, in seconds, or "50us".
    select     what selects the entries; "none": the gradient is sparse already.
    codec      of contributions, "gap+raw"; "raw": pairs of index and value.
    exact      ranks exact sums alone.

    Entries lie uniformly in the model: where those of the workers overlap more, sparse sums are smaller.
    Cost      about a tenth of a second, without the interpreter's lock.
    Errors    JobError invalid_argument.
    """
    rate = _millrace.rate_of_text(link_rate) if isinstance(link_rate, str) else float(link_rate)
    seconds = _millrace.seconds_of_text(latency) if isinstance(latency, str) else float(latency)
    if not (1 <= dimension <= 1 << 32 and 0 < density <= 1 and workers >= 1 and shards >= 1):
        raise JobError("advise() takes a dimension from 1 to 2^32, a density over 0 to 1, and at least one worker and shard",
                       "invalid_argument", "worker")
    if not (0 < rate < math.inf and 0 <= seconds < math.inf):
        raise JobError("advise() takes a rate over 0 and a latency of at least 0", "invalid_argument", "worker")
    entries, reason, ranking, servers, dense = _millrace.advise(dimension, density, workers, shards, rate, seconds, select,
                                                                codec, exact)
    return Advice(entries, reason, tuple(PlannedTime(*row) for row in ranking), PlannedTime(*servers), PlannedTime(*dense))
