"""Tensors of a job."""

from dataclasses import dataclass
from typing import Any, Callable, Optional, Tuple


@dataclass
class Tensor:
    """One flat array of f32 parameters. All but the weights must be equal at all workers.

    name          any word; other calls take it, or the tensor's place in the list.
    dimension     number of entries, 1 to 2^32.
    select        this tensor's selection as text, "topk:0.01"; None: the job's. The same for the next three.
    priority      larger is sent first where several tensors wait.
    output_layer  its values are not quantized.
    weights       [dimension] writable f32 array: weights[i] += scale * sum[i] / denominator for every update. With
                  weights for every tensor a worker can join a running job, and rejoin after an eviction.
    scale         finite and not 0: minus the learning rate.
    schedule      function of the step's number that returns the scale of that step, instead of `scale`. Equal at all
                  workers. The session's thread calls it: it must not call the session.
    apply         "on_await": in the call that waits for the step. "on_arrival": at once, on the session's thread.
    """

    name: str
    dimension: int
    select: Optional[str] = None
    reselect: Optional[str] = None
    codec_up: Optional[str] = None
    codec_down: Optional[str] = None
    priority: int = 0
    output_layer: bool = False
    weights: Optional[Any] = None
    scale: Optional[float] = None
    schedule: Optional[Callable[[int], float]] = None
    apply: str = "on_await"

    def row(self) -> Tuple[Any, ...]:
        """Returns the fields in the order of the module."""
        if self.weights is None and (self.scale is not None or self.schedule is not None):
            raise ValueError(f"tensor '{self.name}' has a scale and no weights: give both, or neither")
        if self.weights is not None and (self.scale is None) == (self.schedule is None):
            raise ValueError(f"tensor '{self.name}' has weights: give it either a scale or a schedule")
        return (self.name, self.dimension, self.priority, self.select, self.reselect, self.codec_up, self.codec_down,
                self.output_layer, self.weights, self.scale, self.schedule, self.apply)
