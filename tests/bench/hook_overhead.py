#!/usr/bin/env python3
"""The time of millrace.hook beyond the C++ session's own: a bucket through the hook, beside the same bucket from C++ threads.

    tests/bench/hook_overhead.py [--programs FOLDER] [--package FOLDER] [--megabytes N] [--parameters N] [--rounds N] [--profile] [--json]

Needs Debian's PyTorch (run with /usr/bin/python3), a built millrace-server, millrace_session_bucket and the package. Exit code: 0; 1
where the hook takes over 0.3 ms more a bucket, without --json; 77 where something is missing.

Both ways push as many bytes in as many tensors to a job of one worker, and await the updates. Each has a job of its own at one shard. In
both, one thread pushes and another one awaits each update and writes it over the gradient. They run in turn. The hook is called in a
backward pass, as DDP calls it, and its time ends when the bucket's future is complete. Figures are medians; the difference is that of
neighbouring rounds. `push` is the part that the backward pass is blocked for.
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


class CppSession:
    """The program that does the same from C++ threads."""

    def __init__(self, program, server, tensors, entries, density):
        command = [program, server, "cpp", tensors, entries, density]
        self._process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("millrace_session_bucket has not begun")

    def bucket(self):
        """Returns the seconds of the pushes, and until the last update is written."""
        self._process.stdin.write("\n")
        return tuple(map(float, self._process.stdout.readline().split()))

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class HookInBackward:
    """Calls the hook in a backward pass, and waits for its future at the end of the pass, as DDP does."""

    def __init__(self, torch, hook, state, bucket):
        self._hook, self._state, self._bucket = hook, state, bucket
        self._engine = torch.autograd.Variable._execution_engine
        self._leaf = torch.zeros(1, requires_grad=True)
        self._leaf.register_hook(self._call)
        self._times = None

    def bucket(self):
        """Returns the seconds of the hook, and until its future is complete."""
        (self._leaf * 1).backward()
        return self._times

    def _call(self, _):
        began = time.perf_counter()
        future = self._hook(self._state, self._bucket)
        pushed = time.perf_counter()

        def end():
            future.wait()
            self._times = pushed - began, time.perf_counter() - began

        self._engine.queue_callback(end)


def measure(arguments, server):
    import millrace
    import torch
    torch.set_num_threads(1)
    entries = int(arguments.megabytes * 1e6 / 4) // arguments.parameters
    parameters = {f"layer{at}.weight": torch.nn.Parameter(torch.zeros(entries)) for at in range(arguments.parameters)}
    select = f"topk:{arguments.density}" if arguments.density < 1 else "none"
    state = millrace.State(server, job="hook", rank=0, world_size=1, select=select, named_parameters=parameters.items(), summary_every=0)
    draw = torch.Generator().manual_seed(1)
    gradient = torch.randn(entries * arguments.parameters, generator=draw)
    buffer = torch.empty_like(gradient)
    bucket = Bucket(list(parameters.values()), buffer)
    in_backward = HookInBackward(torch, millrace.hook, state, bucket)
    cpp = CppSession(arguments.programs / "millrace_session_bucket", server, arguments.parameters, entries, arguments.density)
    profile, times = cProfile.Profile(), {"hook": [], "session": []}
    for turn in range(arguments.warmup + arguments.rounds):
        for way in ("hook", "session") if turn % 2 else ("session", "hook"):
            if way == "session":
                times[way].append(cpp.bucket())
                continue
            buffer.copy_(gradient)
            copied = millrace.copies()
            if arguments.profile:
                profile.enable()
            times[way].append(in_backward.bucket())
            profile.disable()
            if millrace.copies() != copied:
                raise RuntimeError(f"the hook has copied a bucket: {copied}, {millrace.copies()}")
    cpp.close()
    state.finish()
    if arguments.profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(15)
    counted = {way: pairs[arguments.warmup:] for way, pairs in times.items()}
    report = {"bench": "hook_overhead", "megabytes": arguments.megabytes, "parameters": arguments.parameters, "density": arguments.density,
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
    parser.add_argument("--density", type=float, default=0.01, help="of the entries that are sent (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="prints the Python functions of the hook by their own time; slows it")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.package))
    missing = [name for name in ("torch", "millrace") if importlib.util.find_spec(name) is None]
    missing += [name for name in ("millrace-server", "millrace_session_bucket") if not (arguments.programs / name).exists()]
    if missing:
        print(f"skipped: no {', '.join(missing)} (Debian: python3-torch; --package, --programs)")
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
        return 0
    for part in ("push", "whole"):
        print(f"{part}: hook {report[f'hook_{part}_ms']:.3f} ms, session {report[f'session_{part}_ms']:.3f} ms: "
              f"{report[f'{part}_overhead_ms']:+.3f} ms, {report[f'{part}_ratio']:.3f} x")
    return 0 if report["whole_overhead_ms"] <= OVERHEAD_MS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
