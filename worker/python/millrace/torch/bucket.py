"""A bucket of DDP, and the places of its parameters in the job."""

import operator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Place:
    """Says where a parameter is in the job.

    late  its update arrives after the step's last push: the waiter awaits it behind the others.
    """

    tensor: int
    entries: int
    late: bool


class Layout:
    """Says which part of a bucket's flat buffer is which parameter. Planned once for each bucket of DDP.

    parameters   of the bucket, in its order. Held, so that another object never has the identity of one of them.
    names        of the parameters with entries.
    """

    def __init__(self, parameters, names):
        self._parameters = list(parameters)
        self._parts, begin = [], 0  # (name, begin, end)
        for name, parameter in zip(names, parameters):
            end = begin + parameter.numel()
            if end > begin:
                self._parts.append((name, begin, end))
            begin = end
        self._entries = begin
        self.names = [name for name, _, _ in self._parts]
        self._address = None  # and type of the last buffer
        self._pushes = None  # of it

    def is_of(self, parameters):
        """Says whether a bucket has these parameters, in this order."""
        return len(parameters) == len(self._parameters) and all(map(operator.is_, parameters, self._parameters))

    def check(self, buffer):
        """Raises  ValueError: the buffer has another number of entries."""
        if buffer.numel() != self._entries:
            raise ValueError(f"the bucket has {buffer.numel()} entries, and its parameters {self._entries}")

    def slices(self, buffer):
        """Returns (name, view) of each parameter with entries."""
        flat = buffer.detach()
        return [(name, flat.narrow(0, begin, end - begin)) for name, begin, end in self._parts]

    def pushes(self, buffer, places):
        """Returns the Pushes of a bucket. REQUIRES: the buffer is the host's.

        places  {name: Place}, the same in every call.

        They are kept once two buckets in turn have the same buffer, so they hold no memory of a bucket that DDP replaces
        after the first step.
        """
        address = buffer.data_ptr(), buffer.dtype
        if self._pushes is not None and self._address == address:
            return self._pushes
        values = memory = self._memory(buffer)
        if not memory:
            values = [view for _, view in self.slices(buffer)]
        parts = list(zip(range(len(self.names)), self.names, values))
        early = [part for part in parts if not places[part[1]].late]
        late = [part for part in parts if places[part[1]].late]
        made = Pushes(early, late, [(places[name].tensor, part) for _, name, part in early])
        self._pushes = made if memory and self._address == address else None
        self._address = address
        return made

    def _memory(self, buffer):
        """Returns the memory of each parameter with entries, by the buffer protocol; empty where torch has no such memory.

        That is of bfloat16, or without NumPy. A session takes memory faster than a tensor, whose DLPack is Python. Memory
        makes the storage fixed: as long as it is held, no other buffer has its address.
        """
        try:
            flat = memoryview(buffer.detach().numpy())
        except (TypeError, RuntimeError):
            return []
        return [flat[begin:end] for _, begin, end in self._parts]


class Pushes(NamedTuple):
    """Lists the pushes of a bucket in the host's memory, and where the updates go.

    early, late  (place in the bucket, name, memory or tensor) of the parameters that are not late, and of those that are.
    gradients    (tensor, memory or tensor) of the early ones, as WaitList.push() takes them.
    """

    early: list
    late: list
    gradients: list


class Bucket:
    """Holds a bucket of DDP in one step.

    buffer   [entries] the gradients of the bucket; the updates are written into it.
    missing  parameters whose update is still awaited.
    ready    of a device: the event behind which the buffer has the gradients; else None.
    began, pushed, there  when its pushes began and ended, and when its last update was there, of those that are not late;
             None before.
    """

    def __init__(self, buffer, layout, last, future, ready=None):
        self.buffer, self.layout, self.last, self.future, self.ready = buffer, layout, last, future, ready
        self.missing = len(layout.names)
        self.began = self.pushed = self.there = None
        self._slices = None

    @property
    def slices(self):
        """(name, view of the buffer) of each parameter with entries."""
        if self._slices is None:
            self._slices = self.layout.slices(self.buffer)
        return self._slices
