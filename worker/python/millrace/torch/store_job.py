"""One job with a store, as StoreOptimizer and StoreEmbedding use it: pushes, updates and pulls by tensor name."""

import torch

from .deadline import Deadline
from .leaving import give_up, leave_with

NO_ENTRIES = (torch.empty(0, dtype=torch.int32), torch.empty(0))


def entries_of_rows(rows, row_entries):
    """Returns the indices of the entries of whole rows, [rows * row_entries] i64, in their order."""
    return (rows.long().unsqueeze(1) * row_entries + torch.arange(row_entries)).flatten()


def indices_of(array):
    """Returns an array of u32 as i64, which torch can compute with."""
    data = bytearray(memoryview(array))
    if not data:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(data, dtype=torch.int32).to(torch.int64) & 0xFFFFFFFF


def values_of(array):
    """Returns a copy of an array of f32."""
    data = bytearray(memoryview(array))
    return torch.frombuffer(data, dtype=torch.float32) if data else torch.empty(0)


class StoreJob:
    """Is a session of a job with a store.

    Threads  pull_into() and pull_entries() any; the other calls one thread.
    """

    def __init__(self, library, of_job, of_worker, sizes, timeout):
        """sizes: {name: entries}. timeout: seconds that a step may take, and a pull of rows between steps."""
        self.steps = 0  # of the tensor that was pushed most often
        self._timeout = timeout
        self._limit = Deadline(timeout)  # of the present step
        self.pushes = 0  # of the present step
        self._numbers = {}  # of each tensor's last push
        self._returning = {}  # name: entries of a residual that the next push adds
        self._returns = 0
        self.session = library.Session(library.JobConfig(**of_job), library.WorkerConfig(**of_worker),
                                       [library.Tensor(name, entries) for name, entries in sizes.items()])
        self.entries = dict(sizes)  # of each tensor
        self._end = leave_with(self, self.session)

    def begin_step(self, limit):
        """Begins a step, whose waits share a Deadline."""
        self._limit, self.pushes = limit, 0

    def place(self, values):
        """Gives the store its first weights, by tensor."""
        self._limit.call(self.session.place_weights, values)

    def push(self, name, gradient):
        """Pushes a dense gradient."""
        if name in self._returning:
            indices, values = self._returning[name]
            kind = torch.promote_types(gradient.dtype, torch.float32)
            gradient = gradient.flatten().to(kind, copy=True).index_add_(0, indices, values.to(kind))
        self._pushed(name, self._limit.call(self.session.push, name, gradient))

    def push_entries(self, name, indices, values):
        """Pushes entries of a gradient; values of equal indices are added up."""
        if name in self._returning:
            more, those = self._returning[name]
            indices, values = torch.cat([more, indices.long()]), torch.cat([those, values.float()])
        self._pushed(name, self._limit.call(self.session.push_sparse, name, indices, values))

    def push_rows(self, name, rows, values):
        """Pushes rows of a gradient, [rows, entries of a row]; values of equal rows are added up."""
        width = values.shape[1]
        if name in self._returning:
            return self.push_entries(name, entries_of_rows(rows, width), values.flatten())
        number = self._limit.call(self.session.push_rows, name, width, rows.long().contiguous(), values.contiguous())
        self._pushed(name, number)

    def _pushed(self, name, number):
        self._returning.pop(name, None)
        self._numbers[name] = number
        self.pushes += 1
        self.steps = max(self.steps, number + 1)

    def wait(self, name):
        """Blocks until the update of the tensor's last push arrives, and returns it."""
        return self._limit.call(self.session.wait, name, self._numbers[name])

    def has_returned(self):
        """Returns whether this worker has rejoined since the last call: it lacks the updates between."""
        returns = self.session.status().returns
        returned, self._returns = returns != self._returns, returns
        return returned

    def pull_into(self, name, parameter, update):
        """Pulls the entries that the update has into a parameter; all of them where the update is None.

        A rule changes no other entries. The pulled values have that update, and perhaps later ones.
        """
        flat = parameter.view(-1)
        if update is None:
            self._limit.call(self.session.pull, name, flat)
            return
        for piece in update.pieces:
            if piece.dense:
                self._limit.call(self.session.pull_range, name, piece.begin, flat[piece.begin:piece.begin + piece.dimension])
            elif len(piece.indices):
                indices = indices_of(piece.indices).add_(piece.begin)
                flat[indices] = self.pull_entries(name, indices).to(flat.dtype)

    def pull_entries(self, name, indices):
        """Returns the values of entries, f32. indices: strictly increasing."""
        values = torch.empty(len(indices))
        if len(indices):
            self._limit.call(self.session.pull_indices, name, indices, values)
        return values

    def pull_rows(self, name, rows, width):
        """Returns the values of rows, [rows, width] f32. rows: strictly increasing."""
        values = torch.empty(len(rows), width)
        if len(rows):
            self.session.pull_rows(name, width, rows.long().contiguous(), values, timeout=self._timeout)
        return values

    def take_residual(self):
        """Returns the residual of each tensor that has one, {name: (i64 indices, f32 values)}. The next push returns it."""
        for name in self.entries:
            taken = self.session.take_residual(name)
            indices, values = indices_of(taken.indices), values_of(taken.values)
            if len(indices) and name in self._returning:
                more, those = self._returning[name]
                self._returning[name] = torch.cat([more, indices]), torch.cat([those, values])
            elif len(indices):
                self._returning[name] = indices, values
        return {name: (indices.clone(), values.clone()) for name, (indices, values) in self._returning.items()}

    def begin_with_residual(self, residual):
        """Replaces the residual of this job's tensors; other names are ignored."""
        for name in self.entries:
            self.session.take_residual(name)
        self._returning = {name: (indices.clone(), values.clone()) for name, (indices, values) in residual.items()
                           if name in self.entries}

    def finish(self, timeout):
        """Leaves the job as finished. Does nothing twice, but may be repeated after an error."""
        if self._end.alive:
            self.session.finish(timeout=timeout)
            self.close()

    def close(self):
        """Leaves the job at once. Does nothing twice."""
        give_up(self._end)
        self.session.close()
