#!/usr/bin/env python3
"""Measures the goodput of a training job while its processes are killed at random times.

    tests/bench/goodput.py [--programs FOLDER] [--kill workers,shards,etcd] [--mtbf 60s,10s] [--kills 20] [--json]

Four workers train over two shards; a step computes for 50 ms. A row has one kind of process and one mean time between
failures (MTBF) of all processes of this kind together: the times between kills are exponential. The bench starts a killed
process again at once, as systemd or torchrun does. Every push is one index of its own, so the final weights say which
pushes arrived.

    goodput       pushes of the disturbed time that are in the final weights, over the pushes of an equally long
                  undisturbed time (before and after, in the same job)
    recovery      from a kill until the killed worker takes part in a step again; of a shard or an etcd member, until
                  every worker has an update that was decided after the kill. A job that changes no membership does not
                  need the table, so an etcd member's kill should cost no more than two steps.

Limits: all processes share one machine, so a start of a process takes time from the others. The job is small: a real
job also loads its data. A row lasts MTBF x kills seconds.

Exit codes: 0 all rows measured, 1 a run failed or lost a push without a reason, 2 usage.
"""

import argparse
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import etcd_members  # pylint: disable=wrong-import-position
import punisher_test as punisher  # pylint: disable=wrong-import-position
from rows import measured, print_json  # pylint: disable=wrong-import-position

COMPUTE_MS = 50
UNDISTURBED_S = 20
RECOVERED_WITHIN_S = 60
POLL_S = 0.005
MEMBERS = 3
DEFAULTS = ("dead_after_ms=10000", "heartbeat_ms=1000")  # of a job; the punisher's are shorter


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
    """A job of small steps: its workers, its shards, and the members of its table where etcd is under test."""

    def __init__(self, options, folder, members):
        super().__init__(options, folder)
        self.members = members
        if members:
            self.table = members.table()
        self.settings = [*self.settings, f"compute_ms={COMPUTE_MS}", *DEFAULTS]

    def start(self):
        for shard in range(punisher.SHARDS):
            self.start_shard(shard)
        for worker in range(punisher.WORKERS):
            self.start_worker(worker)
        punisher.wait_for(self, "the job did not start", lambda: all(life.updates for life in self.workers()))

    def workers(self):
        return [self.now(worker) for worker in range(punisher.WORKERS)]

    def pushed(self):
        """Returns the indices of all pushes so far."""
        self.read()
        return {index for lives in self.lives for life in lives for index in life.own()}

    def wait(self, condition):
        """Reads the workers' lines until the condition holds. Returns the seconds."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() > begin + RECOVERED_WITHIN_S:
                raise punisher.Failure(f"no recovery within {RECOVERED_WITHIN_S} s")
            time.sleep(POLL_S)
            self.read()
        return time.monotonic() - begin

    def undisturbed(self):
        """Returns the pushes per second of some quiet seconds."""
        before, begin = len(self.pushed()), time.monotonic()
        self.read_until(begin + UNDISTURBED_S)
        return (len(self.pushed()) - before) / (time.monotonic() - begin)

    def read_until(self, end):
        while time.monotonic() < end:
            self.read()
            time.sleep(POLL_S)

    def strike(self, kind, draw):
        """Kills one process of this kind and starts it again. Returns the seconds until the job has recovered."""
        begin = time.monotonic()
        if kind == "workers":
            worker = draw.randrange(punisher.WORKERS)
            self.kill_worker(worker)
            self.start_worker(worker)
            self.wait(lambda: self.now(worker).updates > 0)
        elif kind == "shards":
            shard = draw.randrange(punisher.SHARDS)
            self.kill_shard(shard)
            self.wait_for_new_updates(lambda: self.start_shard(shard))
        else:
            member = draw.randrange(MEMBERS)
            self.members.kill(member)
            self.wait_for_new_updates(lambda: self.members.start(member))
        return time.monotonic() - begin

    def wait_for_new_updates(self, restart):
        """Calls `restart`, and waits until each worker has an update that was decided after it."""
        self.read()
        marks = {life.worker: life.updates + 1 for life in self.workers()}  # one may have been on its way
        restart()
        self.wait(lambda: all(life.updates > marks[life.worker] for life in self.workers()))


def disturbed(job, kind, mtbf, kills, draw):
    """Kills processes at random times. Returns the recoveries in seconds and the seconds of the whole."""
    recoveries, begin = [], time.monotonic()
    at = begin
    for _ in range(kills):
        at += draw.expovariate(1 / mtbf)
        job.read_until(at)
        recoveries.append(job.strike(kind, draw))
    job.read_until(begin + mtbf * kills)
    return recoveries, time.monotonic() - begin


def measure(options, kind, mtbf):
    """Returns the row of one kind and one MTBF."""
    draw = random.Random(f"{options.seed} {kind} {mtbf}")
    with tempfile.TemporaryDirectory(prefix="millrace-goodput-") as folder:
        members = etcd_members.Members(Path(folder), MEMBERS) if kind == "etcd" else None
        job = Job(options, folder, members)
        try:
            if members:
                members.leader()
            job.start()
            rates = [job.undisturbed()]
            before = job.pushed()
            recoveries, lasted = disturbed(job, kind, mtbf, options.kills, draw)
            during = job.pushed() - before
            rates.append(job.undisturbed())
            punisher.let_finish(job)
            judge = punisher.Judge(job, options)
            judge.check()
        finally:
            job.end()
            if members:
                members.end()
    useful = len(during & judge.final.keys())
    undisturbed = sum(rates) / len(rates)
    return {"kind": kind, "mtbf_s": mtbf, "kills": options.kills, "seconds": round(lasted, 1),
            "undisturbed_pushes_per_s": round(undisturbed, 1), "useful_pushes_per_s": round(useful / lasted, 1),
            "goodput": round(useful / lasted / undisturbed, 4), "recovery_p50_s": round(percentile(recoveries, 50), 3),
            "recovery_p99_s": round(percentile(recoveries, 99), 3), "recovery_max_s": round(max(recoveries), 3)}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "build/dev", metavar="FOLDER",
                        help="build folder with millrace-server and punished_worker (default: build/dev)")
    parser.add_argument("--kill", default="workers,shards,etcd", metavar="KINDS", help="rows: of workers, shards, etcd (default: all)")
    parser.add_argument("--mtbf", default="60s,10s", metavar="TIMES", help="mean times between failures (default: 60s,10s)")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="kills of a row (default: 20)")
    parser.add_argument("--mode", choices=punisher.MODES, default="synchronous", help="mode of the job (default: synchronous)")
    parser.add_argument("--seed", type=int, default=1, help="of the times and victims (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    options.kill = options.kill.split(",")
    if unknown := set(options.kill) - {"workers", "shards", "etcd"}:
        parser.error(f"--kill {','.join(sorted(unknown))}: the kinds are workers, shards, etcd")
    try:
        options.mtbf = [seconds(text) for text in options.mtbf.split(",")]
    except ValueError:
        parser.error("--mtbf needs times such as 10s or 2m, separated by commas")
    if options.kills < 1 or min(options.mtbf) <= 0:
        parser.error("--kills and --mtbf must be over 0")
    options.server = options.programs / "bin/millrace-server"
    options.worker = options.programs / "tests/integration/punisher/punished_worker"
    for program in (options.server, options.worker):
        if not program.exists():
            parser.error(f"no {program}: build millrace-server and punished_worker, or name their folder with --programs")
    if "etcd" in options.kill and not etcd_members.is_here():
        parser.error("no etcd on this machine: install etcd-server, or leave etcd out of --kill")
    return options


def main():
    options = parsed()
    rows, code = measured("goodput", [(f"{kind}, MTBF {mtbf:g} s, {options.kills} kills", mtbf * options.kills + 2 * UNDISTURBED_S,
                                       partial(measure, options, kind, mtbf)) for kind in options.kill for mtbf in options.mtbf], punisher.Failure)
    print_json(rows) if options.json else show(rows)
    return code


def show(rows):
    print("killed   MTBF s  kills  goodput  recovery p50 s  p99 s  max s")
    for row in rows:
        print(f"{row['kind']:8} {row['mtbf_s']:6g} {row['kills']:6} {row['goodput']:8.3f} {row['recovery_p50_s']:15.2f} "
              f"{row['recovery_p99_s']:6.2f} {row['recovery_max_s']:6.2f}")


if __name__ == "__main__":
    sys.exit(main())
