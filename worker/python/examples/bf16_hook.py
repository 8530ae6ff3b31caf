"""A hook of DistributedDataParallel that sums gradients in bf16 over gloo, to compare with.

gloo of torch 1.13 adds no bf16, and that of Debian testing no 16 bits at all. So the ranks exchange bytes and add by
themselves, with the traffic of a ring: each rank sends 2 (ranks - 1) / ranks times the bucket's bytes.

Limit: four ranks on two cores take 1.3 to 1.4 times as long as the bytes at the link's rate (100 Mbit/s, 1 Gbit/s).
gloo's f32 takes 1.0 to 1.1 times as long as its bytes.
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
    return future.then(lambda done: done.wait())  # an error reaches DDP as an error, not as a value


class Bf16State:
    """Has two threads that exchange buckets in their order, while the backward pass continues. They end with the process.

    Every rank adds one part of a bucket, and hands its mean to all. The first thread moves gradients to the ranks that
    add them, the second one adds and moves the means: the link has work while a rank adds.
    """

    def __init__(self):
        self._ranks = dist.get_world_size()
        self._scatters, self._gathers = dist.new_group(), dist.new_group()
        self._buckets, self._scattered = queue.SimpleQueue(), queue.SimpleQueue()
        for name, work in (("bf16 scatter", self._scatter_all), ("bf16 gather", self._gather_all)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def put(self, gradients, future):
        self._buckets.put((gradients, future))

    def _scatter_all(self):
        while True:
            gradients, future = self._buckets.get()
            try:
                part = -(-gradients.numel() // self._ranks)
                of_rank = torch.zeros(self._ranks * part, dtype=torch.bfloat16)
                of_rank[:gradients.numel()].copy_(gradients)
                to_add = torch.empty_like(of_rank)
                dist.all_to_all_single(to_add.view(torch.uint8), of_rank.view(torch.uint8), group=self._scatters)
                self._scattered.put((gradients, future, to_add.view(self._ranks, part)))
            except Exception as error:
                future.set_exception(error)

    def _gather_all(self):
        while True:
            gradients, future, to_add = self._scattered.get()
            try:
                mean = to_add.sum(0, dtype=torch.float32).div_(self._ranks).to(torch.bfloat16)
                means = torch.empty_like(to_add)
                dist.all_gather([part.view(torch.uint8) for part in means], mean.view(torch.uint8), group=self._gathers)
                gradients.copy_(means.view(-1)[:gradients.numel()])
                future.set_result(gradients)
            except Exception as error:
                future.set_exception(error)
