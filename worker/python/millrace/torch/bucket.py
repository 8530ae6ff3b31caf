"""A bucket of gradients, and the places of its parameters in the job."""

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


class Parts:
    """Says which part of a flat buffer is which parameter.

    parts  (name, begin, end) of the parameters; the attribute `names` has those with entries.
    """

    def __init__(self, parts):
        self._parts = [(name, begin, end) for name, begin, end in parts if end > begin]
        self.names = [name for name, _, _ in self._parts]
        self._address = None  # and type of the last buffer
        self._pushes = None  # of it

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


class Layout(Parts):
    """Has the parts of a bucket of DDP. Planned once for each bucket.

    parameters   of the bucket, in its order. Held, so that another object never has the identity of one of them.
    names        of the parameters.
    """

    def __init__(self, parameters, names):
        self.parameters = list(parameters)
        parts, end = [], 0
        for name, parameter in zip(names, self.parameters):
            begin, end = end, end + parameter.numel()
            parts.append((name, begin, end))
        super().__init__(parts)
        self._entries = end

    def is_of(self, parameters):
        """Says whether a bucket has these parameters, in this order."""
        return len(parameters) == len(self.parameters) and all(map(operator.is_, parameters, self.parameters))

    def check(self, buffer):
        """Raises  ValueError: the buffer has another number of entries."""
        if buffer.numel() != self._entries:
            raise ValueError(f"the bucket has {buffer.numel()} entries, and its parameters {self._entries}")


class Coverage:
    """Follows which parameters the buckets of a step have. It reads names only where DDP has made other buckets."""

    def __init__(self):
        self._now, self._before = [], []  # Layouts of the present step, and of the one before
        self._follows = True  # the buckets so far are those of the step before

    def add(self, layout):
        """Adds a bucket. Returns False, and adds nothing, where the step has one of its parameters already."""
        at = len(self._now)
        self._follows = self._follows and at < len(self._before) and self._before[at] is layout
        if not self._follows and not self.names().isdisjoint(layout.names):
            return False
        self._now.append(layout)
        return True

    def is_at_first(self):
        """Says whether the last bucket is the first one of its step."""
        return len(self._now) == 1

    def is_that_before(self):
        """Says whether the step has all buckets of the step before."""
        return self._follows and len(self._now) == len(self._before)

    def names(self):
        """Returns the names of the parameters in the step so far."""
        return {name for layout in self._now for name in layout.names}

    def end(self):
        """Ends the step."""
        self._before, self._now, self._follows = self._now, [], True

    def restart(self):
        """Forgets the buckets of the step so far."""
        self._now, self._follows = [], True


class Pushes(NamedTuple):
    """Lists the pushes of a bucket in the host's memory, and where the updates go.

    early, late  (place in the bucket, name, memory or tensor) of the parameters that are not late, and of those that are.
    gradients    (tensor, memory or tensor) of the early ones, as WaitList.push() takes them.
    """

    early: list
    late: list
    gradients: list


class Bucket:
    """Holds a bucket of DDP, or the flat gradient of a group of FSDP2, in one step.

    buffer   [entries] the gradients of the bucket; the updates are written into it.
    layout   Parts of the buffer.
    future   None: the exchange makes it.
    missing  parameters whose update is still awaited.
    ready    of a device: the event behind which the buffer has the gradients; else None.
    began, pushed, there  when its pushes began and ended, and when its last update was there, of those that are not late;
             None before.
    """

    def __init__(self, buffer, layout, last, future=None, ready=None):
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
