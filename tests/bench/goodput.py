#!/usr/bin/env python3
"""Measures the goodput of a training job under random failures: processes are killed, or links are cut.

    tests/bench/goodput.py [--programs FOLDER] [--kill workers,shards,switch,etcd,partition] [--mtbf 60s,10s] [--kills 20] [--at-once] [--json]

Four workers train over two shards; a step computes for 50 ms. Heartbeats are a second apart, as by default. A row has
one kind of failure and one mean time between failures (MTBF) of all processes of this kind together, and lasts MTBF x
kills seconds. The failures are at random times. The bench starts a killed process again at once, as systemd or
torchrun does.

    workers       one of the four workers is killed
    shards        one of the two shards is killed
    switch        the job is of path switch, and its millrace-switch is killed; shard 0 may decide in its place
    etcd          the shards' table is in three members of etcd, and one of them is killed
    partition     every shard and worker is a host of its own (deploy/netlab.sh). The link of one carries nothing, in
                  both directions, for a uniformly drawn time of 0.2 s to 2 s. Needs root and nft.

    goodput       pushes of the disturbed time that are in the final weights, over the pushes of an equally long
                  undisturbed time (before and after, in the same job)
    recovery      from a kill until the killed worker takes part in a step again; of other processes, until every
                  worker has an update that was decided after the restart. Of a partition, from its end until every
                  worker has an update that was decided after its end: no synchronous step is possible before. Goodput
                  counts the partition itself, too. A job that changes no membership does not need the table, so an
                  etcd member's kill should cost no more than two steps.
    partitioned_s, fallbacks, switch_turns
                  sums of the row (--json): partitions, changes from the switch to shard 0, turns that the killed
                  switches had decided

Every push is one index of its own, so the final weights say which pushes arrived. A push of any process that is missing
there has a reason that the protocol names, or the row fails (tests/integration/punisher_test.py has the reasons). Path
switch gives the same guarantee: a push is a whole number of its grid, so the switch rounds nothing.

Limits: all processes share one machine, so a start of a process takes time from the others. With --at-once the jobs of
all kinds share it, too: for long times between failures, where half an hour a kind would be too long. The job is small: a real
job also loads its data. The switch is started before its workers suspect it (about a second), so a row of kind switch
rarely has a fallback. Until TCP sends again after a partition, up to the partition's length passes.

Exit codes: 0 all rows measured, 1 a run failed or lost a push without a reason, 2 usage.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import faults  # pylint: disable=wrong-import-position
import punisher_test as punisher  # pylint: disable=wrong-import-position
from rows import measured, print_json  # pylint: disable=wrong-import-position

# Errors that fail one row: also of a process that ends, or of its answer.
FAILURES = (punisher.Failure, OSError, LookupError, ValueError, subprocess.SubprocessError)
COMPUTE_MS = 50
RECOVERED_WITHIN_S = 300
START_AND_END_S = 60
POLL_S = 0.005
TIMES = ("dead_after_ms=10000", "heartbeat_ms=1000")  # the punisher's are shorter


def seconds(text):
    """Returns the seconds of a time such as 10s or 2m."""
    factors = {"s": 1, "m": 60}
    if text[-1:] not in factors:
        raise ValueError(text)
    return float(text[:-1]) * factors[text[-1]]


def percentile(values, percent):
    """Returns the smallest value that at least this percentage of the values do not exceed."""
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]


class Job(punisher.Cluster):
    """A job of small steps: its workers and its shards. A fault has prepared it."""

    def __init__(self, options, folder, fault, steps, restarts):
        super().__init__(options, folder)
        self.fault = fault
        self.chunk = -(-steps // punisher.CHUNK) * punisher.CHUNK  # whole windows of a switch
        self.dimension = max(self.dimension, (punisher.WORKERS + restarts) * self.chunk)
        self.settings = [*self.settings, f"compute_ms={COMPUTE_MS}", *TIMES]
        fault.prepare(self)

    def start(self):
        for shard in range(punisher.SHARDS):
            self.start_shard(shard)
        for worker in range(punisher.WORKERS):
            self.start_worker(worker)
        punisher.wait_for(self, "the job did not start", lambda: all(life.updates for life in self.workers()))

    def start_shard(self, shard):
        self.shard_flags = self.fault.shard_flags(shard)
        super().start_shard(shard)

    def read(self):
        super().read()
        self.fault.check()

    def workers(self):
        return [self.now(worker) for worker in range(punisher.WORKERS)]

    def pushed(self):
        """Returns the indices of all pushes so far.

        Raises  Failure: a process has made more pushes than it has indices.
        """
        self.read()
        if most := max((life.pushes for lives in self.lives for life in lives if life.pushes > self.chunk), default=0):
            raise punisher.Failure(f"a worker has made {most} pushes, and has {self.chunk} indices: no later one would count")
        return {index for lives in self.lives for life in lives for index in life.own()}

    def wait(self, condition):
        """Reads the workers' lines until the condition holds."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() > begin + RECOVERED_WITHIN_S:
                raise punisher.Failure(f"no recovery within {RECOVERED_WITHIN_S} s")
            time.sleep(POLL_S)
            self.read()

    def undisturbed(self, seconds):
        """Returns the pushes per second of some quiet seconds."""
        before, begin = len(self.pushed()), time.monotonic()
        self.read_until(begin + seconds)
        return (len(self.pushed()) - before) / (time.monotonic() - begin)

    def read_until(self, end):
        while time.monotonic() < end:
            self.read()
            time.sleep(POLL_S)

    def wait_for_new_updates(self, restart):
        """Calls `restart`, and waits until each worker has an update that was decided after it."""
        self.read()
        marks = {life.worker: life.updates + 1 for life in self.workers()}  # one may have been on its way
        restart()
        self.wait(lambda: all(life.updates > marks[life.worker] for life in self.workers()))


def disturbed(job, seconds, count, draw):
    """Strikes at random times. Returns the recoveries in seconds, the sums of the faults' other numbers, and the seconds of the whole.

    Of a process with exponential times between failures, `count` failures within fixed seconds are at uniform times.
    """
    recoveries, sums, begin = [], {}, time.monotonic()
    for at in sorted(draw.uniform(0, seconds) for _ in range(count)):
        job.read_until(begin + at)
        recovery, more = job.fault.strike(job, draw)
        recoveries.append(recovery)
        sums = {name: round(sums.get(name, 0) + value, 3) for name, value in more.items()}
    job.read_until(begin + seconds)
    return recoveries, sums, time.monotonic() - begin


def steps_in(time_s):
    """Returns more steps than a job takes in some seconds, its start and its end."""
    return int((time_s + START_AND_END_S) * 1000 / COMPUTE_MS)


def measure(options, kind, mtbf, kills):
    """Returns the row of one kind and one MTBF."""
    draw = random.Random(f"{options.seed} {kind} {mtbf}")
    with tempfile.TemporaryDirectory(prefix="millrace-goodput-") as folder:
        fault = faults.KINDS[kind](options, folder)
        job = None
        try:
            job = Job(options, folder, fault, steps_in(mtbf * kills + 2 * options.quiet), kills)
            job.start()
            rates = [job.undisturbed(options.quiet)]
            before = job.pushed()
            recoveries, sums, lasted = disturbed(job, mtbf * kills, kills, draw)
            during = job.pushed() - before
            rates.append(job.undisturbed(options.quiet))
            punisher.let_finish(job)
            judge = punisher.Judge(job, options)
            judge.check()
        finally:
            if job:
                job.end()
            fault.end()
    useful = len(during & judge.final.keys())
    undisturbed = sum(rates) / len(rates)
    return {"kind": kind, "mtbf_s": mtbf, "kills": kills, "seconds": round(lasted, 1),
            "undisturbed_pushes_per_s": round(undisturbed, 1), "useful_pushes_per_s": round(useful / lasted, 1),
            "goodput": round(useful / lasted / undisturbed, 4), "recovery_p50_s": round(percentile(recoveries, 50), 3),
            "recovery_p99_s": round(percentile(recoveries, 99), 3), "recovery_max_s": round(max(recoveries), 3), **sums}


def parsed(arguments):
    every = ",".join(faults.KINDS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "build/dev", metavar="FOLDER",
                        help="build folder with millrace-server, millrace-switch and punished_worker (default: build/dev)")
    parser.add_argument("--kill", default=every, metavar="KINDS", help=f"rows: of {every} (default: all)")
    parser.add_argument("--mtbf", default="60s,10s", metavar="TIMES", help="mean times between failures (default: 60s,10s)")
    parser.add_argument("--kills", default="20", metavar="NUMBERS", help="failures of a row; of several numbers one for each MTBF (default: 20)")
    parser.add_argument("--quiet", type=seconds, default=20, metavar="TIME", help="length of an undisturbed time (default: 20s)")
    parser.add_argument("--mode", choices=punisher.MODES, default="synchronous", help="mode of the job; kind switch: synchronous alone (default: synchronous)")
    parser.add_argument("--seed", type=int, default=1, help="of the times and victims (default: 1)")
    parser.add_argument("--at-once", action="store_true", help="measure the kinds at the same time, each with a job of its own")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    options.kill = options.kill.split(",")
    if unknown := set(options.kill) - set(faults.KINDS):
        parser.error(f"--kill {','.join(sorted(unknown))}: the kinds are {every}")
    try:
        options.mtbf = [seconds(text) for text in options.mtbf.split(",")]
        options.kills = [int(text) for text in options.kills.split(",")]
    except ValueError:
        parser.error("--mtbf needs times such as 10s or 2m, --kills numbers, separated by commas")
    if len(options.kills) == 1:
        options.kills *= len(options.mtbf)
    if len(options.kills) != len(options.mtbf):
        parser.error("--kills needs one number, or one for each time of --mtbf")
    if min(*options.kills, *options.mtbf, options.quiet) <= 0:
        parser.error("--kills, --mtbf and --quiet must be over 0")
    if "switch" in options.kill and options.mode != "synchronous":
        parser.error(f"path switch has no mode {options.mode}: leave switch out of --kill")
    options.server = options.programs / "bin/millrace-server"
    options.switch = options.programs / "bin/millrace-switch"
    options.worker = options.programs / "tests/integration/punisher/punished_worker"
    for program in (options.server, options.worker):
        if not program.exists():
            parser.error(f"no {program}: build millrace-server and punished_worker, or name their folder with --programs")
    for kind in options.kill:
        if lacking := faults.KINDS[kind].lacks(options):
            parser.error(f"{lacking}; or leave {kind} out of --kill")
    return options


def measured_at_once(options, arguments):
    """Measures each kind in a process of its own, all at the same time. Returns the rows, and the exit code."""
    alone = [word for word in arguments if word != "--at-once"]
    with contextlib.ExitStack() as stack:
        # Each process ends those of its job on SIGTERM.
        started = [stack.enter_context(subprocess.Popen([sys.executable, __file__, *alone, "--kill", kind, "--json"], stdout=subprocess.PIPE, text=True))
                   for kind in options.kill]
        try:
            said = [process.communicate()[0] for process in started]
        finally:
            for process in started:
                process.terminate()
    rows = [row for text in said if text for row in json.loads(text)["rows"]]
    return rows, int(any(process.returncode for process in started))


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes end with it
    if options.at_once:
        rows, code = measured_at_once(options, arguments)
    else:
        rows, code = measured("goodput", [(f"{kind}, MTBF {mtbf:g} s, {kills} failures", mtbf * kills + 2 * options.quiet, partial(measure, options, kind, mtbf, kills))
                                          for kind in options.kill for mtbf, kills in zip(options.mtbf, options.kills)], FAILURES)
    print_json(rows) if options.json else show(rows)
    return code


def show(rows):
    print("killed   MTBF s  kills  goodput  recovery p50 s  p99 s  max s")
    for row in rows:
        print(f"{row['kind']:8} {row['mtbf_s']:6g} {row['kills']:6} {row['goodput']:8.3f} {row['recovery_p50_s']:15.2f} "
              f"{row['recovery_p99_s']:6.2f} {row['recovery_max_s']:6.2f}")


if __name__ == "__main__":
    sys.exit(main())
