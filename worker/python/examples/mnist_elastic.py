"""The network of mnist_cnn.py. A worker may be killed, and is started again while the other workers continue.

    millrace serve --shards 2 --listen 127.0.0.1:7600
    torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --nproc_per_node 1 --max_restarts 9 \\
        mnist_elastic.py --worker 0 --workers 2 --data FOLDER --servers tcp://127.0.0.1:7600,tcp://127.0.0.1:7601
    torchrun …  --worker 1 …                               # the same, elsewhere

Each worker has a torchrun of its own. It starts a process that died again, and knows no other worker. So no process
group breaks, and no other process restarts. The new process takes parameters and step over from another worker.
FOLDER is that of mnist_cnn.py.
"""

import argparse
import logging
import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import millrace.torch
from mnist_cnn import digits, network


def batch_of(step, worker, workers, size, images):
    """Returns the rows of a worker's batch. They depend on the step alone, so that a new process needs no state."""
    draw = torch.Generator().manual_seed(step * workers + worker)
    return worker + workers * torch.randint(0, images // workers, (size,), generator=draw)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--servers", default="tcp://127.0.0.1:7600,tcp://127.0.0.1:7601")
    parser.add_argument("--worker", type=int, required=True, help="this worker, from 0")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--job", default="mnist_elastic")
    parser.add_argument("--mode", default="synchronous",
                        help="partial: the others do not wait for a worker that is gone (%(default)s)")
    parser.add_argument("--dead-after", type=float, default=10, metavar="SECONDS",
                        help="mode synchronous: the others continue without a dead worker after this time (%(default)s)")
    parser.add_argument("--select", default="topk:0.01", help="entries that a worker sends (%(default)s)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="images a worker and step (%(default)s)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="writes the parameters at the end")
    return parser.parse_args()


# README: begin
def train(args, images, labels, **mode):
    """Trains from the job's present step on. Returns the model, which is equal at all workers."""
    model = network()
    with millrace.torch.Replica(model, args.servers, job=args.job, worker=args.worker, workers=args.workers, rate=0.05,
                                select=args.select, dead_after=args.dead_after, **mode) as replica:
        print(f"process {os.getpid()} begins at step {replica.steps}", flush=True)
        while replica.steps < args.steps:
            batch = batch_of(replica.steps, args.worker, args.workers, args.batch, len(labels))
            model.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            replica.step()  # sends the gradients; then the parameters have the mean of all workers
            if replica.steps % 50 == 0:
                print(f"step {replica.steps}: loss {loss.item():.3f}", flush=True)
    return model
# README: end


def main():
    args = options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    images, labels = digits(args.data)
    count = len(labels) * 4 // 5
    mode = {"mode": "partial", "quorum": 1, "deadline": 0.05} if args.mode == "partial" else {"mode": args.mode}
    model = train(args, images[:count], labels[:count], **mode)

    with torch.no_grad():
        accuracy = (model(images[count:]).argmax(1) == labels[count:]).float().mean().item()
    print(f"accuracy {accuracy:.4f} after step {args.steps}")
    if args.model:
        torch.save(model.state_dict(), args.model)


if __name__ == "__main__":
    main()
