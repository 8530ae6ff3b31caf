"""Results of a session's calls."""

import array
from typing import NamedTuple, Optional, Tuple

from . import _millrace


class Piece(NamedTuple):
    """A run of one tensor's update: the entries that one part of the tensor received.

    begin, dimension  the run covers [begin, begin + dimension) of the tensor.
    dense             entry j belongs to index begin + j; else to begin + indices[j].
    indices           [entries] u32, strictly increasing; None where dense.
    values            [entries] f32: the sum over the contributors. Read-only, without a copy.
    denominator       1, the number of contributors, or the sum of their weights: as option `combine` says.
    contributors      contributions in the sum.
    """

    begin: int
    dimension: int
    dense: bool
    indices: Optional[_millrace.Array]
    values: _millrace.Array
    denominator: float
    contributors: int


class Update(NamedTuple):
    """One step's update of one tensor. Its arrays live as long as any of them is used, also after the session.

    applied   attached weights have it already.
    replaced  another worker's weights replaced this worker's since the last wait.
    pieces    by begin; empty where weights are attached with apply="on_arrival".
    """

    tensor: int
    step: int
    applied: bool
    replaced: bool
    pieces: Tuple[Piece, ...]


class Filled(NamedTuple):
    """Counts the entries that Session.wait_into() wrote, and the least number of contributors to one of them."""

    step: int
    applied: bool
    replaced: bool
    entries: int
    contributors: int


class Entries(NamedTuple):
    """Entries of a tensor: indices [n] u32, strictly increasing, and values [n] f32."""

    indices: _millrace.Array
    values: _millrace.Array


NO_ENTRIES = (array.array("I"), array.array("f"))


class PulledSteps(NamedTuple):
    """Steps in pulled weights: of the part with the fewest and of the part with the most."""

    least: int
    most: int


class Copies(NamedTuple):
    """Bytes that the package wrote to memory of its own: 0 for contiguous f32 gradients, with the exceptions below.

    bytes_in   of arrays on their way in: converted to f32, clipped or sent as they are over peers, restored, and what
               millrace.torch copies of a gradient before its push, as under a GradScaler.
    bytes_out  of results that were converted on their way out.
    Copies over the bus of a CUDA device are not among them: State.stats() has those.
    """

    bytes_in: int
    bytes_out: int


def copies() -> Copies:
    """Returns the counters of this process."""
    return Copies(*_millrace.copies())
