"""A hook of DistributedDataParallel that sums gradients in bf16 over gloo, to compare with.

gloo of torch 1.13 adds no bf16, and that of Debian testing no 16 bits at all. So the ranks exchange bytes and add by
themselves, with the traffic of a ring: each rank sends 2 (ranks - 1) / ranks of the bucket's bytes.
"""

import queue
import threading

import torch
import torch.distributed as dist


def bf16_hook(state, bucket):
    """Returns a future of the mean of all ranks' gradients: rounded to bf16, added in f32, and rounded once more.

    state  a Bf16State, made at all ranks.
    """
    future = torch.futures.Future()
    state.put(bucket.buffer(), future)
    return future


class Bf16State:
    """Has a thread that exchanges buckets in their order, while the backward pass continues. It ends with the process."""

    def __init__(self):
        self._group, self._ranks = dist.new_group(), dist.get_world_size()
        self._buckets = queue.SimpleQueue()
        threading.Thread(target=self._run, name="bf16", daemon=True).start()

    def put(self, gradients, future):
        self._buckets.put((gradients, future))

    def _run(self):
        while True:
            gradients, future = self._buckets.get()
            try:
                self._to_mean(gradients)
                future.set_result(gradients)
            except Exception as error:
                future.set_exception(error)

    def _to_mean(self, gradients):
        """Replaces the gradients by the mean. Every rank adds one part of them, and hands it to all."""
        part = -(-gradients.numel() // self._ranks)
        of_all = torch.zeros(self._ranks * part, dtype=torch.bfloat16)
        of_all[:gradients.numel()].copy_(gradients)
        to_add = torch.empty_like(of_all)
        dist.all_to_all_single(to_add.view(torch.uint8), of_all.view(torch.uint8), group=self._group)
        mean = to_add.view(self._ranks, part).sum(0, dtype=torch.float32).div_(self._ranks).to(torch.bfloat16)
        dist.all_gather([rows.view(torch.uint8) for rows in of_all.view(self._ranks, part)], mean.view(torch.uint8), group=self._group)
        gradients.copy_(of_all[:gradients.numel()])
