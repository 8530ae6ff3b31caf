#!/usr/bin/env python3
"""The time of millrace.hook beyond the session's own: one bucket through the hook, beside the same calls of the session.

    tests/bench/hook_overhead.py [--programs FOLDER] [--package FOLDER] [--megabytes N] [--parameters N] [--rounds N] [--profile] [--json]

Needs Debian's PyTorch (run with /usr/bin/python3), a built millrace-server and the package. Exit code: 0 where the hook takes at most
0.3 ms more a bucket, 1 where it takes more, 77 where something is missing.

Both ways push the same gradients to the same session of one worker, and await the updates. They run in turn. The session's own calls are
those of the module in C++, without the package's Python. The hook's time ends when the bucket's future is complete. Figures are medians;
the difference is that of neighbouring rounds. `push` is the part that the backward pass is blocked for.
"""

import argparse
import cProfile
import importlib.util
import json
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from store_rows import SKIPPED, build

OVERHEAD_MS_MAX = 0.3


class Bucket:
    """A bucket of gradients, as DDP hands it to a hook."""

    def __init__(self, parameters, buffer):
        self._parameters, self._buffer = parameters, buffer

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters

    def is_last(self):
        return True


def through_session(inner, parts):
    """Pushes and awaits parts [(tensor, values)]. Returns the seconds of the pushes, and of both."""
    began = time.perf_counter()
    steps = [inner.push(tensor, values, 1.0, 600.0) for tensor, values in parts]
    pushed = time.perf_counter()
    for (tensor, values), step in zip(parts, steps):
        inner.wait_into(tensor, step, values, 600.0, 1.0)
    return pushed - began, time.perf_counter() - began


def through_hook(hook, state, bucket):
    """Does the same through the hook."""
    began = time.perf_counter()
    future = hook(state, bucket)
    pushed = time.perf_counter()
    future.wait()
    return pushed - began, time.perf_counter() - began


def measure(arguments, server):
    import millrace
    import torch
    torch.set_num_threads(1)
    entries = int(arguments.megabytes * 1e6 / 4) // arguments.parameters
    parameters = {f"layer{at}.weight": torch.nn.Parameter(torch.zeros(entries)) for at in range(arguments.parameters)}
    state = millrace.State(server, job="hook_overhead", rank=0, world_size=1, select=arguments.select, named_parameters=parameters.items(),
                           summary_every=0)
    draw = torch.Generator().manual_seed(1)
    gradient = torch.randn(entries * arguments.parameters, generator=draw)
    buffer = torch.empty_like(gradient)
    bucket = Bucket(list(parameters.values()), buffer)
    parts = [(state.session.tensor(name), buffer.narrow(0, at * entries, entries)) for at, name in enumerate(parameters)]
    profile, times = cProfile.Profile(), {"hook": [], "session": []}
    for turn in range(arguments.warmup + arguments.rounds):
        for way in ("hook", "session") if turn % 2 else ("session", "hook"):
            buffer.copy_(gradient)
            if way == "session":
                times[way].append(through_session(state.session._session, parts))
                continue
            if arguments.profile:
                profile.enable()
            times[way].append(through_hook(millrace.hook, state, bucket))
            profile.disable()
    state.finish()
    if arguments.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(15)
    counted = {way: pairs[arguments.warmup:] for way, pairs in times.items()}
    report = {"bench": "hook_overhead", "megabytes": arguments.megabytes, "parameters": arguments.parameters, "select": arguments.select,
              "rounds": arguments.rounds}
    for at, part in enumerate(("push", "whole")):
        hook, session = ([1e3 * pair[at] for pair in counted[way]] for way in ("hook", "session"))
        report |= {f"hook_{part}_ms": statistics.median(hook), f"session_{part}_ms": statistics.median(session),
                   f"{part}_overhead_ms": statistics.median(one - other for one, other in zip(hook, session)),
                   f"{part}_ratio": statistics.median(hook) / statistics.median(session)}
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, default=build("bin"))
    parser.add_argument("--package", type=Path, default=build("python"))
    parser.add_argument("--megabytes", type=float, default=25, help="of the bucket (%(default)s)")
    parser.add_argument("--parameters", type=int, default=4, help="that share the bucket (%(default)s)")
    parser.add_argument("--select", default="topk:0.01", help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="prints the Python functions of the hook by their own time; slows it")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.package))
    missing = [name for name in ("torch", "millrace") if importlib.util.find_spec(name) is None]
    if missing or not (arguments.programs / "millrace-server").exists():
        print(f"skipped: no {', '.join(missing) or 'millrace-server'} (Debian: python3-torch; --package, --programs)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.programs / "millrace-server", "--shard", 0, "--shards", 1, "--listen", "127.0.0.1:0", "--table",
                   Path(folder) / "table.db", "--drain", "0s", "--json"]
        shard = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            report = measure(arguments, json.loads(shard.stdout.readline())["address"])
        finally:
            shard.terminate()
            shard.wait()
    if arguments.json:
        print(json.dumps(report))
    else:
        for part in ("push", "whole"):
            print(f"{part}: hook {report[f'hook_{part}_ms']:.3f} ms, session {report[f'session_{part}_ms']:.3f} ms: "
                  f"{report[f'{part}_overhead_ms']:+.3f} ms, {report[f'{part}_ratio']:.3f} x")
    return 0 if report["whole_overhead_ms"] <= OVERHEAD_MS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
