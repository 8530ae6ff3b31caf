"""millrace.torch.StoreEmbedding: a table of embeddings that lives at the shards; a worker has the rows of its batch."""

from typing import Any, List

import torch

from .store_job import entries_of_rows

_ENTRIES_MAX = 1 << 32


class StoreEmbedding(torch.nn.Module):
    """Looks rows up in a table that the shards hold. A StoreOptimizer attaches it.

    num_embeddings  rows of the table; with embedding_dim at most 2^32 entries.
    embedding_dim   entries of a row.
    initial_scale   adds a fixed value to each entry, uniform in [-initial_scale, initial_scale]. Each worker computes it
                    of seed and index, so the shards' zeros need no memory of a worker. 0: the table begins with zeros.
    seed            of these values, of which the lowest 32 bits count; equal at all ranks.

    Pulls   forward() pulls each row of the batch once. backward() keeps the rows' gradients, and the optimizer's step()
            pushes them; gradients of several passes are added.
    Memory  of a worker: the rows of the batch. The module has no parameters, so DistributedDataParallel skips it.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, initial_scale: float = 0.0, seed: int = 1) -> None:
        super().__init__()
        if num_embeddings < 1 or embedding_dim < 1 or num_embeddings * embedding_dim > _ENTRIES_MAX:
            raise ValueError(f"a table of {num_embeddings} rows of {embedding_dim}: a tensor of a job has 1 to 2^32 "
                             "entries; divide the rows among several tables")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.initial_scale, self.seed = initial_scale, seed
        self._job = self._name = None
        self._gradient: List[Any] = []  # (rows, values [rows, embedding_dim]) of each backward pass since the last step

    @property
    def entries(self) -> int:
        """Entries of the table."""
        return self.num_embeddings * self.embedding_dim

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Returns the rows of these indices, [*indices.shape, embedding_dim].

        Raises  IndexError: a row that the table lacks. RuntimeError: no StoreOptimizer has the table.
        """
        rows, places = torch.unique(indices, return_inverse=True)
        values = self.pull(rows)
        if torch.is_grad_enabled():
            values.requires_grad_()
            values.register_hook(lambda gradient: self._gradient.append((rows, gradient.detach())))
        return torch.nn.functional.embedding(places, values)

    def pull(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows of the table, [rows, embedding_dim] f32. rows: strictly increasing."""
        if self._job is None:
            raise RuntimeError("no StoreOptimizer has this table: make one of the model, or give it tables=")
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self.num_embeddings:
            raise IndexError(f"rows {int(rows[0])} to {int(rows[-1])} of a table of {self.num_embeddings}")
        values = self._job.pull_rows(self._name, rows, self.embedding_dim)
        if self.initial_scale:
            indices = entries_of_rows(rows, self.embedding_dim)
            values.add_(initial_values(indices, self.seed, self.initial_scale).view_as(values))
        return values

    def attach(self, job, name):
        """Gives the table its job: the optimizer's call."""
        self._job, self._name = job, name

    def gradient(self):
        """Returns the gradient since it was dropped, as (rows, values [rows, embedding_dim]). Equal rows may repeat."""
        if not self._gradient:
            return torch.empty(0, dtype=torch.int32), torch.empty(0, self.embedding_dim)
        return self._gradient[0] if len(self._gradient) == 1 else tuple(map(torch.cat, zip(*self._gradient)))

    def drop_gradient(self):
        """Forgets the gradient."""
        self._gradient = []

    def __getstate__(self):
        return {**self.__dict__, "_job": None, "_gradient": []}  # a session belongs to its process

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


def initial_values(indices, seed, scale):
    """Returns a value for each entry, uniform in [-scale, scale]: a function of seed and index alone, f32.

    Source  the finalizer of SplitMix64; 64-bit products wrap around.
    """
    high = (seed & 0xFFFFFFFF) - ((seed & 0x80000000) << 1)  # signed, as an i64 of torch
    bits = (indices.long() & 0xFFFFFFFF) + (high << 32)
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        bits = (bits ^ (bits >> shift & ((1 << 64 - shift) - 1))) * factor
    bits = bits ^ (bits >> 31 & ((1 << 33) - 1))
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32).mul_(2 * scale / (1 << 24)).sub_(scale)
