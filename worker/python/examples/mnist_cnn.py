"""A convolutional network on MNIST's digits, data parallel over Millrace.

    millrace serve --shards 2 --listen 127.0.0.1:7600
    torchrun --nproc_per_node 2 mnist_cnn.py --data FOLDER --servers tcp://127.0.0.1:7600,tcp://127.0.0.1:7601

    torchrun --nproc_per_node 2 mnist_cnn.py --data FOLDER --path peers        the ranks sum among themselves, without shards

FOLDER has mnist-t10k-images-idx3-ubyte.gz and mnist-t10k-labels-idx1-ubyte.gz: of MNIST, or other files of that format.
80 % of the images are for training, the others for the accuracy. --dense trains with DDP over gloo alone, to compare.
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


def read_idx(path, header):
    """Returns the bytes of an IDX file behind its header, as a tensor."""
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def digits(folder):
    """Returns images [n, 1, 28, 28] of mean 0, and labels [n]."""
    images = read_idx(folder / "mnist-t10k-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float()
    labels = read_idx(folder / "mnist-t10k-labels-idx1-ubyte.gz", 8).long()
    return (images - images.mean()) / images.std(), labels


def network():
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 25, 128), nn.ReLU(), nn.Linear(128, 10))


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--path", choices=("server", "peers"), default="server", help="what sums: shards, or the ranks themselves (%(default)s)")
    parser.add_argument("--servers", default="tcp://127.0.0.1:7600,tcp://127.0.0.1:7601", help="the shards (%(default)s)")
    parser.add_argument("--job", default="mnist_cnn")
    parser.add_argument("--select", default="topk:0.01", help="entries that a rank sends (%(default)s)")
    parser.add_argument("--codec", default=None, help="of the entries, as gap+qsgd4")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="images a rank and step (%(default)s)")
    parser.add_argument("--dense", action="store_true", help="DDP over gloo, without Millrace")
    return parser.parse_args()


def main():
    args = options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = digits(args.data)
    train = len(labels) * 4 // 5

    torch.manual_seed(1)
    ddp = DistributedDataParallel(network())
    if not args.dense:
        servers = args.servers if args.path == "server" else None
        mill = millrace.State(servers, path=args.path, job=args.job, select=args.select, codec=args.codec)
        ddp.register_comm_hook(mill, millrace.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)

    began = time.monotonic()
    rows = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        batch = rank + ranks * torch.randint(0, train // ranks, (args.batch,), generator=rows)
        optimizer.zero_grad()
        loss = cross_entropy(ddp(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.monotonic() - began:.1f} s", flush=True)

    if rank == 0:
        with torch.no_grad():
            accuracy = (ddp.module(images[train:]).argmax(1) == labels[train:]).float().mean().item()
        print(f"accuracy {accuracy:.4f}")
        if not args.dense:
            stats = mill.stats()
            print(f"sent {stats.bytes_up} bytes and received {stats.bytes_down}: {stats.ratio:.4f} of dense")


if __name__ == "__main__":
    main()
