#!/usr/bin/env python3
"""Cost of the timeline: the processor time of a step while it is recorded, over that of a step while it is not.

    tests/bench/trace_cost.py [--programs FOLDER] [--pairs N] [--seconds N] [--json]

Two shards and two workers exchange steps of 20 rows, so spans are frequent. Intervals with and without a recording
alternate. `millrace trace` collects on the same machine and takes processor time from the job: on_wall_ratio has it,
on_ratio does not. The time in which it writes its file counts for neither. Off: the spans of a step, counted in the
timelines, times the times of a timer that is off and of a phase's sum, which is always on, over a step's time. Fewer
spans have such a sum: those of select, encode and apply.
Exit code: 0 within the goals, or with --json; 1 beyond them without it, or where spans were lost; 77 where the machine
cannot run it.
"""

import argparse
import json
import os
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
MARGIN_S = 1  # before and after the interval: the recording begins, and ends
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


def processor_seconds(pids):
    """Returns the processor time that the processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rate_during(address, seconds):
    """Returns the steps a second from now on."""
    begin, first = time.monotonic(), rounds_at(address)
    time.sleep(seconds)
    return (rounds_at(address) - first) / (time.monotonic() - begin)


def quartile(values, number):
    return statistics.quantiles(values, n=4)[number - 1] if len(values) > 1 else values[0]


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()


class Job:
    def __init__(self, programs, folder):
        self._programs, self._folder = programs, Path(folder)
        self._processes = []
        serve = self._start("serve", "--shards", SHARDS, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json")
        cluster = json.loads(serve.stdout.readline())
        self._shards = [shard["http"] for shard in cluster["shards"]]
        data = self._folder / "rows.svm"
        data.write_text(rows(2_000), encoding="utf-8")
        workers = [self._start("train", "--servers", cluster["servers"], "--job", "cost", "--worker", worker, "--workers", WORKERS, "--train",
                               data, "--batch", 20, "--epochs", 1_000_000, "--reselect", "topk:0.3", "--http", "127.0.0.1:0")
                   for worker in range(WORKERS)]
        self.addresses = [self._port_of(worker) for worker in workers]
        while rounds_at(self.addresses[0]) < 100:
            time.sleep(0.05)
        self.pids = [process.pid for process in self._processes]
        shards = children(serve.pid)
        if len(shards) != SHARDS:
            raise RuntimeError(f"millrace serve has {len(shards)} processes, and not {SHARDS}")
        self.pids += [int(pid) for pid in shards]

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

    def start_trace(self, seconds):
        """Starts millrace trace for that time."""
        output = self._folder / "trace.json"
        return subprocess.Popen([self._programs / "millrace", "trace", "cost", *self._shards, *self.addresses, "--seconds", str(seconds), "-o", output,
                                 "--json"], stdout=subprocess.PIPE, text=True)

    def measure(self, seconds):
        """Returns the steps a second, and the processor seconds of all the job's processes a step."""
        used, first = processor_seconds(self.pids), rounds_at(self.addresses[0])
        rate = rate_during(self.addresses[0], seconds)
        return rate, (processor_seconds(self.pids) - used) / (rounds_at(self.addresses[0]) - first)

    def end(self):
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()


def measure(job, programs, pairs, seconds):
    """Intervals off, on, off, ...: each interval on is compared with the mean of its neighbours."""
    on, off, spans, lost = [], [], [], 0
    for _ in range(pairs):
        off.append(job.measure(seconds))
        recorder = job.start_trace(seconds + 2 * MARGIN_S)
        time.sleep(MARGIN_S)
        on.append(job.measure(seconds))
        report = json.loads(recorder.communicate()[0])
        if recorder.returncode != 0:
            raise RuntimeError(f"millrace trace has ended with {recorder.returncode}")
        most = max(one["spans"] for one in report["processes"])  # of the process that records most
        spans.append(most / (seconds + 2 * MARGIN_S) / on[-1][0])
        lost += sum(one["lost"] for one in report["processes"])
        time.sleep(2.5)  # recording ends two seconds after the last request
    off.append(job.measure(seconds))
    wall = [(off[at][0] + off[at + 1][0]) / 2 / rate for at, (rate, _) in enumerate(on)]
    processor = [used / ((off[at][1] + off[at + 1][1]) / 2) for at, (_, used) in enumerate(on)]
    step_ns = 1e9 / statistics.median(rate for rate, _ in off)
    timer = json.loads(subprocess.run([programs / "millrace_span_timer"], capture_output=True, text=True, check=True).stdout)
    off_share = statistics.median(spans) * (timer["off_ns"] + timer["phase_ns"]) / step_ns
    return {"on_ratio": statistics.median(processor), "on_ratios": processor, "on_wall_ratio": statistics.median(wall), "on_wall_ratios": wall,
            "on_quartile_1": quartile(processor, 1), "on_quartile_3": quartile(processor, 3),
            "on_by_spans": 1 + statistics.median(spans) * timer["on_ns"] / step_ns, "off_ratio": 1 + off_share,
            "spans_a_step": statistics.median(spans), "timer_off_ns": timer["off_ns"], "timer_on_ns": timer["on_ns"], "phase_sum_ns": timer["phase_ns"],
            "step_us": step_ns / 1e3, "spans_lost": lost}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=3)
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
    if result["spans_lost"] > 0:
        print(f"{result['spans_lost']} spans were lost: the counts of spans are too low", file=sys.stderr)
        return 1
    return 0 if flags.json or result["on_ratio"] <= ON_MAX and result["off_ratio"] <= OFF_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
