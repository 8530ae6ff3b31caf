"""One rank of torch_cuda_test.py: trains on a card, with buckets of the card and with copies of them in the host's memory.

    torch_cuda_ranks.py PROGRAMS PACKAGE RANK WORLD_SIZE FOLDER SERVERS

Writes {case: "" or the error} to a file of FOLDER.
"""

import json
import logging
import os
import sys
import traceback
from pathlib import Path

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before torch: equal gradients in every run

import torch_required  # first: finds the package

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import millrace
from millrace.torch import State, hook

STEPS = 6


class Network(torch.nn.Module):
    """A small CNN: 426,084 parameters in ten tensors, seven of them below 4,096 entries."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.ReLU(),
            torch.nn.Flatten(), torch.nn.Linear(32 * 12 * 12, 90), torch.nn.ReLU(), torch.nn.Linear(90, 64), torch.nn.ReLU(),
            torch.nn.Linear(64, 10))

    def forward(self, images):
        return self.layers(images)


class HostBucket:
    """A bucket of DDP whose gradients were copied to the host."""

    def __init__(self, bucket):
        self._bucket, self._buffer = bucket, bucket.buffer().cpu()

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._bucket.parameters()

    def is_last(self):
        return self._bucket.is_last()


def hook_of_the_host(state, bucket):
    """Exchanges a copy in the host's memory."""
    there = bucket.buffer().device
    future = torch.futures.Future(devices=[there])

    def copy_back(done):
        try:
            future.set_result(done.value().to(there))
        except Exception as error:
            future.set_exception(error)

    hook(state, HostBucket(bucket)).add_done_callback(copy_back)
    return future


class Rank:
    def __init__(self, number, world_size, servers):
        self.number, self.world_size, self.servers = number, world_size, servers
        self._jobs = 0

    def train(self, exchange, scaler=None, dtype=None, **options):
        """Trains a job. Returns the parameters after the last step, on the host, and the figures."""
        self._jobs += 1
        torch.manual_seed(5)
        ddp = DistributedDataParallel(Network().cuda(), device_ids=[0], bucket_cap_mb=0.5)
        options = {"rank": self.number, "world_size": self.world_size, "timeout": 60.0, "grad_scaler": scaler, **options}
        if options.get("path") != "peers":
            options = {"servers": self.servers, "job": f"cuda{self._jobs}", **options}
        with State(**options) as state:
            ddp.register_comm_hook(state, exchange)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
            for step in range(STEPS):
                draw = torch.Generator().manual_seed(100 * step + self.number)
                images, labels = torch.randn(16, 1, 28, 28, generator=draw).cuda(), torch.randint(0, 10, (16,), generator=draw).cuda()
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
                    loss = torch.nn.functional.cross_entropy(ddp(images), labels)
                (loss if scaler is None else scaler.scale(loss)).backward()
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
            stats = state.stats()
        return [parameter.detach().cpu() for parameter in ddp.parameters()], stats

    def all_equal(self, parameters):
        """Says whether all ranks have the bits of rank 0."""
        flat = torch.cat([parameter.flatten() for parameter in parameters])
        first = flat.clone()
        dist.broadcast(first, 0)
        equal = torch.tensor([float(torch.equal(flat, first))])
        dist.all_reduce(equal, dist.ReduceOp.MIN)
        return bool(equal[0])


def assert_same_bits(found, expected):
    for one, other in zip(found, expected):
        assert torch.equal(one, other), f"a parameter of shape {list(one.shape)} differs by {float((one - other).abs().max())}"


def compare(rank, **options):
    """Trains with buckets of the card and of the host. Returns the figures of both runs."""
    found, there = rank.train(hook, **options)
    expected, here = rank.train(hook_of_the_host, **options)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in found)
    assert rank.all_equal(found), "the ranks differ"
    assert_same_bits(found, expected)
    assert (here.bytes_to_devices, here.bytes_from_devices) == (0, 0)
    return there, here


def top_k_has_the_bits_of_the_host(rank):
    there, here = compare(rank, select="topk:0.01", codec="gap+qsgd4")
    assert there.entries == here.entries
    small = sum(parameter.numel() for parameter in Network().parameters() if parameter.numel() < 4096)
    entries = sum(tensor.entries_sent for tensor in there.session.tensors) - STEPS * small
    copied = STEPS * 4 * small
    print(f"topk:0.01: {there.bytes_dense} bytes of dense gradients; {there.bytes_from_devices} from the card "
          f"({entries} entries of 8 bytes selected there, {copied} bytes of small parameters), {there.bytes_to_devices} to it")
    # A few counters of each kernel cross the bus too.
    assert 8 * entries + copied <= there.bytes_from_devices <= 8 * entries + copied + STEPS * 4 * 1_000
    assert there.bytes_from_devices < there.bytes_dense / 5
    assert there.session.device_memory_bytes > 0


def thresholds_have_the_bits_of_the_host(rank):
    for select in ("threshold:0.001", "sampled:0.01", "threshold_reuse:0.01:3", "gaussian:0.01", "by_size:0.01",
                   "bucket_topk:0.01"):
        compare(rank, select=select, dense_below=0, fuse_below=0)


def selection_that_a_card_lacks_is_copied(rank):
    there, here = compare(rank, select="random:0.01", dense_below=0)
    assert there.bytes_from_devices == there.bytes_dense, (there.bytes_from_devices, there.bytes_dense)
    assert there.session.bytes_from_devices == 0


def dense_gradients_have_the_bits_of_the_host(rank):
    compare(rank, select="none")


def dense_codes_have_the_bits_of_the_host(rank):
    """The codes cross the bus: no gradient is copied."""
    for codec, bits in (("raw+qsgd4", 4), ("raw+f16", 16), ("raw+onebit", 1), ("raw+terngrad", 1.6)):
        there, _ = compare(rank, select="none", codec=codec, fuse_below=0)
        code = there.bytes_dense * bits / 32
        # Beside the code: scales or means of buckets of 512 values, and a few counters of each kernel.
        assert code <= there.bytes_from_devices <= code + there.bytes_dense / 100 + STEPS * 10 * 500, codec


def peers_have_the_bits_of_the_host(rank):
    found, _ = rank.train(hook, path="peers", job="there", select="topk:0.05")
    expected, _ = rank.train(hook_of_the_host, path="peers", job="here", select="topk:0.05")
    assert rank.all_equal(found)
    assert_same_bits(found, expected)


def scaled_steps_are_skipped_alike(rank):
    """The first scales are too large: all ranks skip those steps."""
    make = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    scaler = make(init_scale=2.0**34, backoff_factor=2.0**-12)
    found, stats = rank.train(hook, scaler=scaler, dtype=torch.float16, select="topk:0.05")
    assert rank.all_equal(found)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in found)
    assert 0 < stats.steps_skipped < STEPS, stats.steps_skipped


def tensors_of_torch_are_pushed_on_the_current_stream(rank):
    """DLPack: push() reads behind the work of the current stream, and tensors of the host travel in the same session."""
    job = millrace.JobConfig(name="streams", workers=rank.world_size, select="topk:0.01", combine="mean", fuse_below=0)
    me = millrace.WorkerConfig(worker=rank.number, servers=rank.servers)
    entries = 50_000
    with millrace.Session(job, me, [millrace.Tensor("there", entries), millrace.Tensor("here", entries)]) as session:
        gradient, out = torch.zeros(entries, device="cuda"), torch.empty(entries)
        much = torch.empty(1 << 28, device="cuda")
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        for step in range(3):
            with torch.cuda.stream(stream):
                for _ in range(20):
                    much.fill_(step)
                gradient.fill_(step + 1.0)
                number = session.push("there", gradient)
            session.push("here", torch.full((entries,), step + 1.0))
            sums = []
            for tensor in ("there", "here"):
                session.wait_into(tensor, number, out)
                sums.append(out.clone())
            assert torch.equal(*sums) and float(sums[0].max()) >= step + 1.0, f"step {step}: {sums[0].max()}"


CASES = (top_k_has_the_bits_of_the_host, thresholds_have_the_bits_of_the_host, selection_that_a_card_lacks_is_copied,
         dense_gradients_have_the_bits_of_the_host, dense_codes_have_the_bits_of_the_host,
         peers_have_the_bits_of_the_host, scaled_steps_are_skipped_alike,
         tensors_of_torch_are_pushed_on_the_current_stream)


def main():
    number, world_size, folder, servers = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=world_size)
    rank, results = Rank(number, world_size, servers), {}
    for case in CASES:
        try:
            case(rank)
            results[case.__name__] = ""
        except Exception:
            results[case.__name__] = traceback.format_exc()
        (folder / f"rank{number}.json").write_text(json.dumps(results), encoding="utf-8")
        # A case that fails at one rank alone may leave the other one in a collective.
        failed = torch.tensor([float(bool(results[case.__name__]))])
        dist.all_reduce(failed)
        if failed[0]:
            break


if __name__ == "__main__":
    main()
