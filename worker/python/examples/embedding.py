"""Click rates from an embedding that is larger than a worker's memory: the table is at the shards alone.

    millrace serve --shards 2 --listen 127.0.0.1:7600
    torchrun --nproc_per_node 2 embedding.py --servers tcp://127.0.0.1:7600,tcp://127.0.0.1:7601

The table has 2^26 rows of 16: 4 GiB at the shards. A rule that has a state, as adagrad, needs shards with more memory:

    for s in 0 1; do
      millrace-server --shard $s --shards 2 --listen 127.0.0.1:760$s --table /tmp/t.db --job-memory-bytes-max 9GiB &
    done

Words come from a Zipf-like draw, and each has a hidden weight that the table learns.
"""

import argparse
import logging
import resource
import time

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import millrace

WORDS = 8  # of one sample


# README: begin
class ClickRate(nn.Module):
    """Adds up the rows of a sample's words; a linear layer makes the logit of the sum."""

    def __init__(self, rows, width):
        super().__init__()
        self.table = millrace.torch.StoreEmbedding(rows, width)
        self.logit = nn.Linear(width, 1)

    def forward(self, words):
        return self.logit(self.table(words).sum(1)).squeeze(1)
# README: end


def samples(rows, count, draw):
    """Returns words [count, WORDS] and clicks [count]."""
    words = (rows ** torch.rand(count, WORDS, generator=draw, dtype=torch.float64)).long() - 1
    hidden = torch.sin(words.double() * 12.9898).sum(1)
    return words, (hidden > 0).float()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="tcp://127.0.0.1:7600,tcp://127.0.0.1:7601")
    parser.add_argument("--job", default="embedding")
    parser.add_argument("--rows", type=int, default=1 << 26, help="of the table (%(default)s)")
    parser.add_argument("--width", type=int, default=16, help="entries of a row (%(default)s)")
    parser.add_argument("--store", default="sgd:2", help="the rule at the shards (%(default)s)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1024, help="samples a rank and step (%(default)s)")
    return parser.parse_args()


def main():
    args = options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(1)
    model = ClickRate(args.rows, args.width)
    began = time.monotonic()
    with millrace.torch.StoreOptimizer(model, args.servers, job=args.job, store=args.store) as optimizer:
        draw = torch.Generator().manual_seed(100 + optimizer.rank)
        for step in range(1, args.steps + 1):
            words, clicks = samples(args.rows, args.batch, draw)
            optimizer.zero_grad()
            logits = model(words)
            loss = binary_cross_entropy_with_logits(logits, clicks)
            loss.backward()
            optimizer.step()
            if optimizer.rank == 0 and step % 50 == 0:
                right = ((logits > 0) == (clicks > 0)).float().mean().item()
                print(f"step {step}: loss {loss.item():.3f}, right {right:.3f}, {time.monotonic() - began:.1f} s", flush=True)
        if optimizer.rank == 0:
            stats = optimizer.table_session.stats()
            table = 4 * args.rows * args.width
            memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(f"table of {table / 2**30:.3f} GiB at the shards; this worker's memory at most {memory / 2**30:.3f} GiB; "
                  f"{stats.bytes_up // args.steps} bytes up and {stats.bytes_down // args.steps} down a step")


if __name__ == "__main__":
    main()
