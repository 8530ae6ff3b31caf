"""Saved states: the residual of every parameter by its name, for the same or another number of workers.

A saved state, of one worker:

    {"format": 2, "step": steps, "workers": W, "combine": "mean",
     "residual": {"RANK": {name: f32 tensor [entries]}}, "deferred": {name: f32 tensor [entries]},
     "velocity": as "residual", of a job with option momentum,
     "retained": {"RANK": {name: [numbers]}}, of selections, sums and grids: thresholds, boundaries, exponents, steps}

Format 1 has no "retained".
"""

import torch

from ..updates import NO_ENTRIES

FORMAT = 2
FORMATS_READ = (1, FORMAT)


def dense_of(indices, values, entries):
    """Returns entries of a sparse residual as an f32 tensor [entries].

    indices, values  buffers of u32 and f32.
    """
    dense = torch.zeros(entries)
    index_bytes, value_bytes = bytearray(memoryview(indices)), bytearray(memoryview(values))
    if index_bytes:
        # torch has no arithmetic on u32: the bits of an i32, as a number.
        at = torch.frombuffer(index_bytes, dtype=torch.int32).to(torch.int64) & 0xFFFFFFFF
        dense[at] = torch.frombuffer(value_bytes, dtype=torch.float32)
    return dense


def entries_of(values):
    """Returns the entries of an f32 tensor that are not 0, as Session.restore() takes them: (i64 indices, f32 values)."""
    at = values.nonzero().flatten()
    return at, values[at]


class Residuals:
    """Holds values that the next push of each parameter returns to its residual.

    To read a residual the session hands it out. The next push adds it to the gradient, as the residual would have been
    added: the sum is the same to the bit.
    """

    def __init__(self):
        self._returning = {}

    def take(self, session, places):
        """Takes the residuals out of the session, and returns a copy of them.

        places   {name: (tensor, entries)}.
        Returns  {name: f32 tensor [entries]}.
        """
        taken = {}
        for name, (tensor, entries) in places.items():
            dense = dense_of(*session.take_residual(tensor), entries)
            if name in self._returning:
                dense.add_(self._returning[name])
            self.returned(name)
            if bool(dense.any()):
                self._returning[name] = dense
            taken[name] = dense.clone()
        return taken

    def give_back(self, session, tensors):
        """Returns all values to the session. REQUIRES: no step is under way.

        tensors  {name: tensor}.
        """
        for name in self.names():
            session.restore(tensors[name], entries_of(self._returning[name]), NO_ENTRIES)
            self.returned(name)

    def returning(self, name):
        """Returns the values that the next push of the parameter adds, or None."""
        return self._returning.get(name)

    def returned(self, name):
        """Forgets the values: a push has them."""
        self._returning.pop(name, None)

    def replace(self, residual):
        """Begins with other residuals."""
        self._returning = {name: values.to(torch.float32, copy=True) for name, values in residual.items() if bool(values.any())}

    def names(self):
        return list(self._returning)


def share_of(states, rank, workers):
    """Returns one worker's first residual and velocity, from the states of all workers of an earlier job.

    states   one state, of this rank in a job of as many workers; or one of each worker of the earlier job.
    Returns  (step, residual, deferred, velocity, retained); velocity is empty without momentum. retained is
             empty in format 1, and for another number of workers.
    Law      the sum of all workers' residuals, over the divisor of the job's mean, stays the same. With another number
             of workers each begins with the mean of the residuals (combine mean), or an equal share of their sum. So do
             velocities, which enter the residual in every step.
    Raises   ValueError: a state is missing, or states of several jobs are mixed.
    """
    states = [states] if isinstance(states, dict) else list(states)
    if not states or any(state.get("format") not in FORMATS_READ for state in states):
        raise ValueError(f"these are not states of format {' or '.join(map(str, FORMATS_READ))}, "
                         "as State.state_dict() makes them")
    first = states[0]
    for state in states:
        if (state["workers"], state["step"], state["combine"]) != (first["workers"], first["step"], first["combine"]):
            raise ValueError("the states are of several jobs or of several steps: step "
                             f"{first['step']} of {first['workers']} workers, {state['step']} of {state['workers']}")
    by_rank = _by_rank(states, "residual")
    velocities = _by_rank(states, "velocity")
    if first["workers"] == workers and rank in by_rank:
        retained = _by_rank(states, "retained").get(rank, {})
        return first["step"], by_rank[rank], first["deferred"], velocities.get(rank, {}), retained
    missing = [number for number in range(first["workers"]) if number not in by_rank]
    if missing:
        raise ValueError(f"the residuals of workers {missing} of {first['workers']} are missing. Load a list with the "
                         "state of every worker: each of the new workers begins with a share of all residuals")
    divisor = workers if first["combine"] == "sum" else first["workers"]
    return first["step"], _shares(by_rank, divisor), first["deferred"], _shares(velocities, divisor), {}


def _by_rank(states, key):
    return {int(number): values for state in states for number, values in state.get(key, {}).items()}


def _shares(by_rank, divisor):
    return {name: (sum(by_rank[number][name].double() for number in sorted(by_rank)) / divisor).float()
            for name in by_rank.get(0, {})}
