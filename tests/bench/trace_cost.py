#!/usr/bin/env python3
"""Cost of the timeline: steps a second of a job while it is recorded, over the steps while it is not, in one run.

    tests/bench/trace_cost.py [--programs FOLDER] [--pairs N] [--seconds N] [--json]

Two shards and two workers exchange small steps, in which a span weighs most. Intervals with and without `millrace trace`
alternate. Off: the spans of a step, counted in the timelines, times the time of a timer that is off, over a step's time.
Exit code: 0 within the goals, 1 beyond, 77 where the machine cannot run it.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ON_MAX, OFF_MAX = 1.05, 1.01
WORKERS, SHARDS = 2, 2
ROOT = Path(__file__).resolve().parents[2]


def rows(count):
    draw = random.Random(3)
    lines = []
    for _ in range(count):
        features = sorted(draw.sample(range(2_000), 20))
        lines.append(f"{draw.choice((-1, 1)):+d} " + " ".join(f"{index + 1}:1" for index in features))
    return "\n".join(lines) + "\n"


def rounds_at(address):
    with urllib.request.urlopen(f"http://{address}/status", timeout=60) as answer:
        return json.loads(answer.read())["rounds"]


def rate_during(address, seconds, wait):
    """Returns the steps a second from now until `wait` returns."""
    begin, first = time.monotonic(), rounds_at(address)
    wait(seconds)
    return (rounds_at(address) - first) / (time.monotonic() - begin)


class Job:
    def __init__(self, programs, folder):
        self._programs, self._folder = programs, Path(folder)
        self._processes = []
        serve = self._start("serve", "--shards", SHARDS, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json")
        cluster = json.loads(serve.stdout.readline())
        self._shard = cluster["shards"][0]["http"]
        data = self._folder / "rows.svm"
        data.write_text(rows(2_000), encoding="utf-8")
        workers = [self._start("train", "--servers", cluster["servers"], "--job", "cost", "--worker", worker, "--workers", WORKERS, "--train",
                               data, "--batch", 20, "--epochs", 1_000_000, "--reselect", "topk:0.3", "--http", "127.0.0.1:0")
                   for worker in range(WORKERS)]
        self.addresses = [self._port_of(worker) for worker in workers]
        while rounds_at(self.addresses[0]) < 100:
            time.sleep(0.05)

    def _start(self, *arguments):
        process = subprocess.Popen([str(self._programs / "millrace"), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self._processes.append(process)
        return process

    @staticmethod
    def _port_of(worker):
        for line in worker.stdout:
            if "status: port " in line:
                # A full pipe would stop the worker.
                threading.Thread(target=worker.stdout.read, daemon=True).start()
                return "127.0.0.1:" + line.split("status: port ")[1].strip()
        raise RuntimeError("a worker has ended")

    def trace(self, seconds):
        """Returns the report of millrace trace."""
        output = self._folder / "trace.json"
        ended = subprocess.run([self._programs / "millrace", "trace", "cost", self._shard, *self.addresses, "--seconds", str(seconds), "-o", output,
                                "--json"], capture_output=True, text=True, check=True)
        return json.loads(ended.stdout)

    def end(self):
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()


def measure(job, programs, pairs, seconds):
    """Intervals off, on, off, ...: each interval on is compared with the mean of its neighbours."""
    on, off, spans, lost = [], [], [], 0
    reports = []
    for _ in range(pairs):
        off.append(rate_during(job.addresses[0], seconds, time.sleep))
        first = rounds_at(job.addresses[0])
        on.append(rate_during(job.addresses[0], seconds, lambda time_s: reports.append(job.trace(time_s))))
        steps = rounds_at(job.addresses[0]) - first
        most = max(one["spans"] for one in reports[-1]["processes"])  # of the process that records most
        spans.append(most / max(steps, 1))
        lost += sum(one["lost"] for one in reports[-1]["processes"])
        time.sleep(2.5)  # recording ends two seconds after the last request
    off.append(rate_during(job.addresses[0], seconds, time.sleep))
    ratios = [(off[at] + off[at + 1]) / 2 / rate for at, rate in enumerate(on)]
    step_ns = 1e9 / statistics.median(off)
    timer = json.loads(subprocess.run([programs / "millrace_span_timer"], capture_output=True, text=True, check=True).stdout)
    off_share = statistics.median(spans) * timer["off_ns"] / step_ns
    return {"on_ratio": statistics.median(ratios), "on_ratios": ratios, "off_ratio": 1 + off_share, "spans_a_step": statistics.median(spans),
            "timer_off_ns": timer["off_ns"], "timer_on_ns": timer["on_ns"], "step_us": step_ns / 1e3, "spans_lost": lost}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    if not (flags.programs / "millrace_span_timer").exists():
        print("millrace_span_timer is not built", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory() as folder:
        job = Job(flags.programs, folder)
        try:
            result = measure(job, flags.programs, flags.pairs, flags.seconds)
        finally:
            job.end()
    print(json.dumps(result) if flags.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 0 if result["on_ratio"] <= ON_MAX and result["off_ratio"] <= OFF_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
