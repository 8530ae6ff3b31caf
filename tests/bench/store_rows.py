#!/usr/bin/env python3
"""Pull and push of a batch's rows of a table at the shards, beside bare ZeroMQ with the same messages and bytes.

    tests/bench/store_rows.py [--programs FOLDER] [--package FOLDER] [--rows N] [--width N] [--table-rows N] [--rounds N] [--json]

Needs Debian's PyTorch and python3-zmq (run with /usr/bin/python3), a built millrace-server and the package. Exit code: 0 where rows travel
at half the speed of bare ZeroMQ or faster, 1 where they do not, 77 where there is nothing to compare with.

A pull is StoreEmbedding.pull() of other rows each time. A push is the rows' gradient, until its update is back. Bare ZeroMQ has one
message a shard in each direction, with the bytes that the session counted. The four run in turn; figures are medians.
"""

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SPEED_MIN = 0.5
SKIPPED = 77
SHARDS = 2
ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def running_shards(programs, memory):
    """Starts the shards, and ends them with the block. Yields the processes and their addresses."""
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for shard in range(SHARDS):
                command = [programs / "millrace-server", "--shard", shard, "--shards", SHARDS, "--listen", "127.0.0.1:0", "--table",
                           Path(folder) / "table.db", "--job-memory-bytes-max", memory, "--drain", "0s", "--json"]
                processes.append(subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
            yield processes, [json.loads(process.stdout.readline())["address"] for process in processes]
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def bare_shard(pipe):
    """Answers each message with as many bytes as it asks for, until it is asked for none."""
    import zmq
    socket = zmq.Context().socket(zmq.ROUTER)
    pipe.send(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
    buffers = {}
    while True:
        peer, wanted, _ = socket.recv_multipart(copy=False)
        count = int.from_bytes(wanted.bytes, "little")
        if count == 0:
            return
        socket.send_multipart([peer, buffers.setdefault(count, bytearray(count))], copy=False)


class BareTransfers:
    """One socket to each of as many processes as there are shards."""

    def __init__(self):
        import zmq
        context = zmq.Context()
        self._processes, self._sockets, self._buffers = [], [], {}
        for _ in range(SHARDS):
            here, there = multiprocessing.Pipe()
            self._processes.append(multiprocessing.Process(target=bare_shard, args=(there,), daemon=True))
            self._processes[-1].start()
            self._sockets.append(context.socket(zmq.DEALER))
            self._sockets[-1].connect(here.recv())

    def exchange(self, bytes_up, bytes_down):
        """Sends bytes_up in all, and receives bytes_down."""
        body = self._buffers.setdefault(bytes_up, bytearray(bytes_up // SHARDS))
        for socket in self._sockets:
            socket.send_multipart([(bytes_down // SHARDS).to_bytes(8, "little"), body], copy=False)
        for socket in self._sockets:
            socket.recv_multipart(copy=False)

    def stop(self):
        for socket in self._sockets:
            socket.send_multipart([bytes(8), b""])
        for process in self._processes:
            process.join()


def measure(arguments, servers):
    import millrace
    import torch
    torch.set_num_threads(1)
    bare = BareTransfers()  # it forks: before the session
    table = millrace.torch.StoreEmbedding(arguments.table_rows, arguments.width)
    optimizer = millrace.torch.StoreOptimizer([], servers, job="store_rows", store="sgd:0.1", tables={"table": table}, rank=0,
                                              world_size=1, codec=arguments.codec, codec_down=arguments.codec,
                                              keep_freed_memory=True)
    draw = torch.Generator().manual_seed(1)
    times, moved = {name: [] for name in ("pull", "push", "bare_pull", "bare_push")}, {}

    def timed(name, call, *values):
        began = time.perf_counter()
        result = call(*values)
        times[name].append((time.perf_counter() - began) * 1e3)
        return result

    def moved_by(name, call, *values):
        before = optimizer.table_session.stats()
        result = timed(name, call, *values)
        after = optimizer.table_session.stats()
        moved[name] = (after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down)
        timed(f"bare_{name}", bare.exchange, *moved[name])
        return result

    for turn in range(arguments.rounds + arguments.warmup):
        rows = torch.randperm(arguments.table_rows, generator=draw)[:arguments.rows].sort().values
        values = torch.rand(arguments.rows, arguments.width, generator=draw)
        if turn == 0:
            first, wanted = rows, -0.1 * values
        table.pull(rows[:1])  # a pull waits for the shards' work on the step before
        moved_by("pull", table.pull, rows)
        table._gradient = [(rows, values)]
        moved_by("push", optimizer.step)
        if turn == 0 and not torch.allclose(table.pull(first), wanted):
            raise SystemExit("store_rows: the pulled rows are not those that the pushes made")
    bare.stop()
    optimizer.finish()
    medians = {f"{name}_ms": statistics.median(each[arguments.warmup:]) for name, each in times.items()}
    ours, others = (medians[f"{of}pull_ms"] + medians[f"{of}push_ms"] for of in ("", "bare_"))
    return {"bench": "store_rows", "rows": arguments.rows, "width": arguments.width, "table_rows": arguments.table_rows,
            "rounds": arguments.rounds, "codec": arguments.codec, **medians,
            **{f"{name}_bytes_{way}": count for name, pair in moved.items() for way, count in zip(("up", "down"), pair)},
            "pull_speed": medians["bare_pull_ms"] / medians["pull_ms"], "push_speed": medians["bare_push_ms"] / medians["push_ms"],
            "speed": others / ours}


def build(folder):
    """The folder of a build, the release one if there is one."""
    found = [ROOT / "build" / preset / folder for preset in ("release", "dev")]
    return next((path for path in found if path.exists()), found[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, default=build("bin"))
    parser.add_argument("--package", type=Path, default=build("python"))
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--table-rows", type=int, default=1 << 22)
    parser.add_argument("--codec", default="raw+raw", help="of contributions and updates (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.package))
    missing = [name for name in ("torch", "zmq", "millrace") if importlib.util.find_spec(name) is None]
    if missing or not (arguments.programs / "millrace-server").exists():
        print(f"skipped: no {', '.join(missing) or 'millrace-server'} (Debian: python3-torch, python3-zmq; --package, --programs)")
        return SKIPPED
    with running_shards(arguments.programs, 4 << 30) as (_, servers):
        report = measure(arguments, servers)
    if arguments.json:
        print(json.dumps(report))
    else:
        for name in ("pull", "push"):
            print(f"{name} of {report['rows']} rows of {report['width']}: {report[f'{name}_ms']:.2f} ms, bare ZeroMQ "
                  f"{report[f'bare_{name}_ms']:.2f} ms with {report[f'{name}_bytes_up']} bytes up and {report[f'{name}_bytes_down']} "
                  f"down: {report[f'{name}_speed']:.2f} of its speed")
        print(f"both: {report['speed']:.2f}")
    return 0 if report["speed"] >= SPEED_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
