"""A small transformer that learns Tiny Shakespeare character by character, data parallel over Millrace.

    millrace serve --shards 2 --listen 127.0.0.1:7600
    torchrun --nproc-per-node 2 char_transformer.py --data FOLDER --servers tcp://127.0.0.1:7600,tcp://127.0.0.1:7601

FOLDER has tinyshakespeare.txt.gz, any text of at least some 100 kB: the last tenth of it is for the loss that counts.
--dense trains with DDP over gloo alone, to compare.
"""

import argparse
import gzip
import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import millrace


class CharTransformer(nn.Module):
    """Predicts each next character from those before it; the output layer has the weights of the embedding."""

    def __init__(self, symbols, context, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(width, max(1, width // 32), 4 * width, dropout=0.0, batch_first=True,
                                           norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.output = nn.Linear(width, symbols, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("future", torch.triu(torch.full((context, context), float("-inf")), diagonal=1))
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, text):
        return self.output(self.blocks(self.embedding(text) + self.position, mask=self.future))


def read_text(folder):
    """Returns the characters as numbers, and how many different ones there are."""
    with gzip.open(folder / "tinyshakespeare.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    numbers = {symbol: at for at, symbol in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[symbol] for symbol in text]), len(numbers)


def windows(text, count, context, draw):
    """Returns `count` random windows of the text, and the same one character later."""
    begins = torch.randint(0, len(text) - context - 1, (count,), generator=draw)
    rows = torch.stack([text[begin:begin + context + 1] for begin in begins])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, inputs, targets):
    return cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--servers", default="tcp://127.0.0.1:7600,tcp://127.0.0.1:7601")
    parser.add_argument("--job", default="char_transformer")
    parser.add_argument("--select", default="topk:0.01", help="entries that a rank sends (%(default)s)")
    parser.add_argument("--codec", default=None, help="of the entries, as gap+qsgd4")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="windows a rank and step (%(default)s)")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dense", action="store_true", help="DDP over gloo, without Millrace")
    return parser.parse_args()


def main():
    args = options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    text, symbols = read_text(args.data)
    train, held_out = text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]

    torch.manual_seed(1)
    ddp = DistributedDataParallel(CharTransformer(symbols, args.context, args.width, args.layers))
    if not args.dense:
        # The embedding is the output layer as well: RedSync does not quantize it.
        mill = millrace.State(args.servers, job=args.job, select=args.select, codec=args.codec,
                              rules={"embedding.weight": {"output_layer": True}})
        ddp.register_comm_hook(mill, millrace.hook)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)

    began = time.monotonic()
    draw = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        loss = loss_of(ddp, *windows(train, args.batch, args.context, draw))
        loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - began:.1f} s", flush=True)

    if rank == 0:
        with torch.no_grad():
            loss = loss_of(ddp.module, *windows(held_out, 64, args.context, torch.Generator().manual_seed(7)))
        print(f"held-out loss {loss.item():.3f} a character")
        if not args.dense:
            stats = mill.stats()
            print(f"sent {stats.bytes_up} bytes and received {stats.bytes_down}: {stats.ratio:.4f} of dense")


if __name__ == "__main__":
    main()
