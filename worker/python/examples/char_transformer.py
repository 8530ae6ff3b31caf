"""A small transformer that learns Tiny Shakespeare character by character, data parallel over Millrace.

    millrace serve --shards 2 --listen 127.0.0.1:7600
    torchrun --nproc_per_node 2 char_transformer.py --data FOLDER --servers tcp://127.0.0.1:7600,tcp://127.0.0.1:7601

FOLDER has tinyshakespeare.txt.gz; any other gzipped text of at least some 100 kB is given as a file. The last tenth of
the text is for the loss that counts.
--dense trains with DDP over gloo alone, to compare: f32, or bf16 (bf16_hook.py). Times leave out the reports.
Adam takes gradients that are clipped after the sum. With --sgd the momentum is in the State: each worker adds it to its
residual, so that entries that are sent late have theirs.
"""

import argparse
import gzip
import logging
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import millrace
from bf16_hook import Bf16State, bf16_hook

MOMENTUM = 0.9  # of --sgd


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


def read_text(path):
    """Returns the characters as numbers, and how many different ones there are."""
    with gzip.open(path / "tinyshakespeare.txt.gz" if path.is_dir() else path, "rt", encoding="utf-8") as file:
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


def report(ddp, text, args, step, seconds):
    """Prints the loss of rank 0's model on windows of the held-out text, always the same ones. All ranks call it: none
    computes meanwhile."""
    dist.barrier()
    if dist.get_rank() == 0:
        with torch.no_grad():
            draw = torch.Generator().manual_seed(7)
            loss = loss_of(ddp.module, *windows(text, args.report_windows, args.context, draw)).item()
        print(f"step {step}: held-out loss {loss:.4f} a character, {seconds:.2f} s", flush=True)
    dist.barrier()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER|FILE")
    parser.add_argument("--servers", default="tcp://127.0.0.1:7600,tcp://127.0.0.1:7601")
    parser.add_argument("--job", default="char_transformer")
    parser.add_argument("--select", default="topk:0.01", help="entries that a rank sends (%(default)s)")
    parser.add_argument("--codec", default=None, help="of the entries, as gap+qsgd4")
    parser.add_argument("--codec-down", default=None, help="of their sums")
    parser.add_argument("--sgd", type=float, default=None, metavar="RATE", help="SGD with Nesterov's momentum of 0.9, not Adam")
    parser.add_argument("--bucket-mb", type=float, default=25, help="of DDP's buckets (%(default)s)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="windows a rank and step (%(default)s)")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--report-every", type=int, default=50, metavar="STEPS", help="between two reports (%(default)s)")
    parser.add_argument("--report-windows", type=int, default=64, help="of the held-out text (%(default)s)")
    parser.add_argument("--dense", nargs="?", const="f32", choices=("f32", "bf16"),
                        help="DDP over gloo, without Millrace (default type: f32)")
    return parser.parse_args()


def exchange_by(args, ddp):
    """Gives DDP the hook that the options ask for. Returns the State of Millrace's, or None."""
    if args.dense == "bf16":
        ddp.register_comm_hook(Bf16State(), bf16_hook)
    if args.dense:
        return None
    # The embedding is the output layer as well: RedSync does not quantize it.
    momentum = None if args.sgd is None else f"nesterov:{MOMENTUM}"
    mill = millrace.State(args.servers, job=args.job, select=args.select, codec=args.codec, codec_down=args.codec_down, momentum=momentum,
                          rules={"embedding.weight": {"output_layer": True}})
    ddp.register_comm_hook(mill, millrace.hook)
    return mill


def optimizer_of(args, parameters):
    """Returns Adam, or with --sgd SGD, which has the momentum where no State has it."""
    if args.sgd is None:
        return torch.optim.Adam(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, args.sgd, **({"momentum": MOMENTUM, "nesterov": True} if args.dense else {}))


def main():
    args = options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    text, symbols = read_text(args.data)
    train, held_out = text[:len(text) * 9 // 10], text[len(text) * 9 // 10:]

    torch.manual_seed(1)
    ddp = DistributedDataParallel(CharTransformer(symbols, args.context, args.width, args.layers), bucket_cap_mb=args.bucket_mb)
    mill = exchange_by(args, ddp)
    optimizer = optimizer_of(args, ddp.parameters())

    seconds = 0.0
    draw = torch.Generator().manual_seed(rank)
    for step in range(args.steps):
        if step % args.report_every == 0:
            report(ddp, held_out, args, step, seconds)
        began = time.monotonic()
        optimizer.zero_grad()
        loss_of(ddp, *windows(train, args.batch, args.context, draw)).backward()
        if args.sgd is None:
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        seconds += time.monotonic() - began
    report(ddp, held_out, args, args.steps, seconds)

    if rank == 0 and mill is not None:
        stats = mill.stats()
        print(f"sent {stats.bytes_up} bytes and received {stats.bytes_down}: {stats.ratio:.4f} of dense")


if __name__ == "__main__":
    main()
