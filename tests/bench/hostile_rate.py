#!/usr/bin/env python3
"""Steps a second of a healthy job while hostile peers attack one of its shards, over the steps before and after.

    tests/bench/hostile_rate.py [--programs FOLDER] [--kinds silent,unfinished,…] [--seconds N] [--pairs N] [--json]

Four workers train over two shards; a step computes for 20 ms. Each kind of attack has a job of its own, in which quiet
windows and windows under attack alternate. All attacks aim at shard 0, from 64 addresses.

    silent        10,000 connections that never speak, or as many as the descriptors allow
    unfinished    multipart messages that never end, in frames of 100 bytes
    slow_reader   Hellos of a peer that takes the number of worker 0, and reads none of the refusals
    hello_flood   the same Hellos as fast as one process can send them; it reads the refusals
    wrong_key     handshakes with a key that the shard does not allow
    replay        handshakes of a worker with an allowed key, recorded and sent again

The cluster has keys. Attackers of kinds unfinished, slow_reader and hello_flood have an allowed one, which no worker has.
The Hello is a real worker's, recorded.

    ratio         steps a second under attack, over the mean of the quiet windows before and after; median of the pairs
    growth_bytes  by which the shard's peak of resident memory (VmHWM) exceeds that after the first quiet window
    growth_over_limit  the same, over --shard-memory-bytes-max
    connections, held_max, messages    of the attackers: made in all, open at one time, sent in all

After an attack the next window begins once the shard has worked off the remains: once it needs less than a quarter of
a core. `remains_s` is the longest such time.

Limits: the attackers share the machine with the job. At SCHED_IDLE and nice 19 they still take time of the processors, caches
and loopback. One process attacks at a time, so a faster attacker may have a lower ratio. The limits of memory are
smaller than a shard's defaults, so that a short window reaches them.

Exit codes: 0 all kinds measured, 1 a step was lost, a worker was removed or ended, or an attack had no connection, 2 usage.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

import attackers  # pylint: disable=wrong-import-position
import punisher_test as punisher  # pylint: disable=wrong-import-position
import trace_cost  # pylint: disable=wrong-import-position
from rows import measured, print_json  # pylint: disable=wrong-import-position

WITHOUT_MESSAGES = ("silent", "wrong_key")
KINDS = ("silent", "unfinished", "slow_reader", "hello_flood", "wrong_key", "replay")
COMPUTE_MS = 20
IDLE_SHARE = 0.25  # of a core
LOOK_S = 0.5
REMAINS_MAX_S = 120
STEPS_BEFORE = 50
JOB = "healthy"
SHARD_MEMORY_BYTES_MAX = 256 << 20
MEMORY = ("--message-bytes-max", "1MiB", "--job-memory-bytes-max", "64MiB", "--shard-memory-bytes-max", str(SHARD_MEMORY_BYTES_MAX))


class Job(punisher.Cluster):
    """Two shards, and the workers of `millrace train`."""

    def __init__(self, options, folder):
        super().__init__(SimpleNamespace(mode="synchronous", server=options.programs / "millrace-server"), folder)
        self.millrace = options.programs / "millrace"
        self.keys = self.folder / "keys"
        self.shard_flags = ["--http", "127.0.0.1:0", *MEMORY, "--key", self.keys / "cluster.key", "--allowed-keys", self.keys]
        subprocess.run([self.millrace, "keys", "new", "cluster", "worker", "attacker", "--folder", self.keys], check=True, stdout=subprocess.DEVNULL)
        self.data = self.folder / "rows.svm"
        self.data.write_text(trace_cost.rows(8_000), encoding="utf-8")
        self.http = []

    def train(self, worker, servers, *flags):
        """Returns the command line of one worker, without a key."""
        return [self.millrace, "train", "--servers", ",".join(servers), "--job", JOB, "--worker", str(worker), "--workers", str(punisher.WORKERS),
                "--train", self.data, "--batch", "20", "--epochs", "1000000", "--compute-time", f"{COMPUTE_MS}ms", "--audit", *flags]

    def worker_keys(self):
        return ["--key", self.keys / "worker.key", "--server-key", self.keys / "cluster.pub"]

    def start_worker(self, worker):
        name = self.folder / f"worker-{worker}"
        with open(f"{name}.out", "w", encoding="utf-8") as out, open(f"{name}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(self.train(worker, self.addresses, "--http", "127.0.0.1:0", *self.worker_keys()), stdout=out, stderr=log)
        self.lives[worker].append(punisher.Life(worker, worker, process, punisher.Log(f"{name}.out")))

    def start(self):
        for shard in range(punisher.SHARDS):
            self.start_shard(shard)
        for worker in range(punisher.WORKERS):
            self.start_worker(worker)
        punisher.wait_for(self, "the workers have no status", lambda: len(self.ports()) == punisher.WORKERS)
        self.http = self.ports()
        punisher.wait_for(self, "the job did not start", lambda: trace_cost.rounds_at(self.http[0]) >= STEPS_BEFORE)

    def ports(self):
        texts = [(self.folder / f"worker-{worker}.out").read_text(encoding="utf-8") for worker in range(punisher.WORKERS)]
        return ["127.0.0.1:" + text.split("status: port ")[1].split("\n")[0] for text in texts if "status: port " in text and "\n" in text]

    def attacked(self):
        host, port = self.addresses[0].removeprefix("tcp://").rsplit(":", 1)
        return host, int(port)

    def material(self, kind):
        """Returns the keys, and the Hello or the bytes of a second process for the number of worker 0: the shard refuses it."""
        def second(*flags):
            return lambda *ports: subprocess.Popen(self.train(0, [f"127.0.0.1:{port}" for port in ports], *flags), stdout=subprocess.DEVNULL,
                                                   stderr=subprocess.DEVNULL)

        server, allowed = (bytes.fromhex((self.keys / name).read_text(encoding="utf-8").split()[1]) for name in ("cluster.pub", "attacker.key"))
        return attackers.Material(server, allowed, attackers.record_hello(second()) if kind in ("slow_reader", "hello_flood") else (),
                                  attackers.record(self.attacked(), second(*self.worker_keys())) if kind == "replay" else None)

    def peak_bytes(self):
        """Returns the peak of shard 0's resident memory."""
        status = Path(f"/proc/{self.shards[0].pid}/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))

    def processor_s(self):
        """Returns the processor time that shard 0 has used."""
        fields = Path(f"/proc/{self.shards[0].pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait_until_idle(self):
        """Returns after the shard has worked off the remains of an attack: how long that took."""
        begin = time.monotonic()
        while True:
            before, at = self.processor_s(), time.monotonic()
            time.sleep(LOOK_S)
            self.read()
            if self.processor_s() - before < IDLE_SHARE * (time.monotonic() - at):
                return at - begin
            if at > begin + REMAINS_MAX_S:
                raise punisher.Failure(f"the shard was not idle {REMAINS_MAX_S} s after the attack")

    def epochs(self):
        """Returns the epoch of the job at each shard: it changes with every member."""
        found = []
        for http in self.shard_http:
            with urllib.request.urlopen(f"http://{http}/status", timeout=60) as answer:
                found += [job["epoch"] for job in json.loads(answer.read())["jobs"] if job["name"] == JOB]
        return found

    def check(self):
        """Raises Failure where the job does not move, or an audit or a digest finds a lost step."""
        self.read()
        said = subprocess.run([self.millrace, "status", "--timeout", "60s", *self.shard_http, *self.http], capture_output=True, text=True, check=False)
        if said.returncode != 0:
            raise punisher.Failure(f"millrace status ends with {said.returncode}: {said.stdout}{said.stderr}")


def rate(job, seconds):
    """Returns the steps a second from now on, for some seconds."""
    steps = trace_cost.rate_during(job.http[0], seconds)
    job.read()
    return steps


def attacked_rate(job, seconds, kind, material, totals):
    """Returns the steps a second under an attack. Adds the attacker's counts to the totals."""
    attacker = attackers.attacker(kind, job.attacked(), material)
    try:
        attacker.wait_until_begun(kind not in WITHOUT_MESSAGES)
        steps = rate(job, seconds)
    finally:
        counts = attacker.end()
    if counts["connections"] == 0:
        raise punisher.Failure("the attacker had no connection")
    counts["remains_s"] = job.wait_until_idle()
    for name, count in counts.items():
        totals[name] = max(totals.get(name, 0), count) if name in ("held_max", "remains_s") else totals.get(name, 0) + count
    return steps


def measure(options, kind):
    """Returns the row of one kind of attack."""
    with tempfile.TemporaryDirectory(prefix="millrace-hostile-") as folder:
        job = Job(options, folder)
        try:
            job.start()
            material = job.material(kind)
            quiet, attacked, totals, epochs = [rate(job, options.seconds)], [], {}, job.epochs()
            before = job.peak_bytes()
            for _ in range(options.pairs):
                attacked.append(attacked_rate(job, options.seconds, kind, material, totals))
                quiet.append(rate(job, options.seconds))
            growth = job.peak_bytes() - before
            job.check()
            if job.epochs() != epochs:
                raise punisher.Failure("a worker was removed")
        finally:
            job.end()
    ratios = [one * 2 / (quiet[at] + quiet[at + 1]) for at, one in enumerate(attacked)]
    return {"kind": kind, "ratio": statistics.median(ratios), "ratios": ratios, "quiet_steps_s": statistics.median(quiet),
            "attacked_steps_s": statistics.median(attacked), "growth_bytes": growth, "growth_over_limit": growth / SHARD_MEMORY_BYTES_MAX, **totals}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "build/release/bin", metavar="FOLDER",
                        help="folder of millrace and millrace-server (default: build/release/bin)")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KINDS", help="attacks: %(default)s (default: all)")
    parser.add_argument("--seconds", type=float, default=5, metavar="N", help="length of a window (default: 5)")
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="windows under attack of each kind (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    options.kinds = options.kinds.split(",")
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"--kinds {','.join(sorted(unknown))}: the kinds are {', '.join(KINDS)}")
    if options.pairs < 1 or options.seconds <= 0:
        parser.error("--pairs and --seconds must be over 0")
    for program in ("millrace", "millrace-server"):
        if not (options.programs / program).exists():
            parser.error(f"no {options.programs / program}: build millrace_command and millrace-server, or name their folder with --programs")
    return options


def main():
    options = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that its processes end with it
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # of the shards, too
    seconds = (2 * options.pairs + 1) * options.seconds  # without the remains
    rows, code = measured("hostile_rate", [(kind, seconds, partial(measure, options, kind)) for kind in options.kinds],
                          (punisher.Failure, attackers.Ended, OSError))
    print_json(rows) if options.json else show(rows)
    return code


def show(rows):
    print("attack       ratio  quiet steps/s  growth MB  connections  at a time   messages  remains s")
    for row in rows:
        print(f"{row['kind']:11} {row['ratio']:6.3f} {row['quiet_steps_s']:14.1f} {row['growth_bytes'] / 1e6:10.1f} {row['connections']:12} "
              f"{row['held_max']:10} {row['messages']:10} {row['remains_s']:10.1f}")


if __name__ == "__main__":
    sys.exit(main())
