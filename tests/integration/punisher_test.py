#!/usr/bin/env python3
"""Kills and restarts the workers and shards of a job at random, and checks afterwards how often each push was counted.

    punisher_test.py MILLRACE_SERVER PUNISHED_WORKER [--seconds N] [--seed N] [--mode M] [--spare shards|workers]
    [--json]

Every push of every process puts 1.0 into an index of its own (punisher/punished_worker.cc). A push that is twice in the
final weights is a failure, always. A push that is missing must be retained by a process that lives to the end, or be
lost for one of these reasons, which the protocol names:
- Its process was killed after the save with which the next process began, or the next one began without a save.
- A process reports the loss, including steps whose update no other worker had (entries_void). A process excuses as many
  pushes as it reports.
- No process is left that had the update: a shard was killed as well, or all workers. Where each step takes all of a push,
  the digests of the weights show which processes had it.

Workers that live to the end must agree, in mode synchronous, on the weights, and at every step since they joined. Where
steps omit workers, one may be ahead of another in some parts and behind in others.

Exit codes: 0 success, 1 a failed check, 2 usage.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS = 4
SHARDS = 2
CHUNK = 16_384  # indices of one process: its later pushes have none
DIMENSION = 1 << 22
HEARTBEAT_MS = 200
DEAD_AFTER_MS = 1_500
SETTLE_S = 120  # for all workers to rejoin, and for all to finish
STEPS_AFTER = 40  # between the end of the punishment and that of the training
DELETE_STATE = 0.15

MODES = {
    "synchronous": ["mode=synchronous"],
    "staleness": ["mode=synchronous", "staleness=2"],
    "selected": ["mode=synchronous", "select=topk:3", "reselect=topk:8"],
    "partial": ["mode=partial", "quorum=3", "deadline_ms=20"],
    "bounded_staleness": ["mode=bounded_staleness", "staleness=3", "quorum=3"],
    "asynchronous": ["mode=asynchronous", "staleness=1"],
}


class Failure(Exception):
    """What makes the run one that failed, in one sentence."""


class Log:
    """A process's output, which it writes into a file: lines that it wrote before it was killed are there."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        self.rest = ""

    def lines(self):
        with open(self.path, encoding="utf-8") as file:
            file.seek(self.offset)
            text = self.rest + file.read()
            self.offset = file.tell()
        *whole, self.rest = text.split("\n")
        return whole


class Life:
    """One process of one worker."""

    def __init__(self, worker, serial, process, log, chunk=CHUNK):
        self.worker, self.serial, self.process, self.log, self.chunk = worker, serial, process, log, chunk
        self.killed = False
        self.joined = False
        self.holds = None  # indices that the loaded state keeps back; None: there was no state
        self.base = 0  # pushes of this worker before this process
        self.pushes = 0
        self.steps = 0
        self.updates = 0
        self.digests = {}  # step -> digest, since the weights were last replaced
        self.had = []  # (pushes so far, step, digest), ever
        self.lost = 0.0
        self.kept = None
        self.finished = False
        self.said = []

    def read(self):
        for line in self.log.lines():
            word, *rest = line.split()
            if word == "holds":
                self.base, self.holds = int(rest[1]), indices(rest[2:], line)
            elif word == "joined":
                self.joined, self.steps = True, int(rest[0])
            elif word == "push":
                self.pushes = int(rest[0]) + 1
            elif word == "at":
                self.steps = int(rest[0])
                self.updates += 1
                self.digests[self.steps] = rest[1]
                self.had.append((self.pushes, self.steps, rest[1]))
            elif word == "replaced":
                self.digests = {}
            elif word == "lost":
                self.lost = sum(map(float, rest))
            elif word == "kept":
                self.kept = indices(rest, line)
            elif word == "finished":
                self.finished = True
            elif word in ("error", "broken"):
                raise Failure(f"worker {self.worker} (process {self.serial}): {line}")

    def index(self, push):
        return self.serial * self.chunk + push

    def own(self):
        return range(self.index(0), self.index(min(self.pushes, self.chunk)))


def indices(words, line):
    if any("=" in word for word in words):
        raise Failure(f"an entry that is not the 1 of one push: {line[:200]}")
    return set(map(int, words))


class Cluster:
    def __init__(self, options, folder):
        self.options, self.folder = options, Path(folder)
        self.table = self.folder / "table.db"
        self.shards = [None] * SHARDS
        self.shard_flags = ()  # more, for every shard
        self.enter_shard, self.enter_worker = [[]] * SHARDS, [[]] * WORKERS  # commands that run a program elsewhere, as in a network namespace
        self.addresses = ["tcp://127.0.0.1:0"] * SHARDS
        self.shard_http = [None] * SHARDS
        self.lives = [[] for _ in range(WORKERS)]
        self.serials = 0
        self.shard_starts = 0
        self.stopped = set()
        self.killed_all = False
        self.settings = MODES[options.mode]
        self.chunk, self.dimension = CHUNK, DIMENSION
        self.counts = {"kills_of_workers": 0, "kills_of_shards": 0, "stops": 0, "states_deleted": 0, "restarts": 0}

    def start_shard(self, shard):
        self.shard_starts += 1
        log = open(self.folder / f"shard-{shard}-{self.shard_starts}.log", "w", encoding="utf-8")
        process = subprocess.Popen(
            [*self.enter_shard[shard], self.options.server, "--json", "--table", self.table, "--shard", str(shard), "--shards", str(SHARDS),
             "--listen", self.addresses[shard], "--drain", "1s", "--abandon-after", "600s", *self.shard_flags],
            stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        self.shards[shard] = process
        line = process.stdout.readline()
        told = json.loads(line) if line else {}
        if "address" not in told:
            raise Failure(f"shard {shard} did not start: {line.strip() or 'it said nothing'}")
        self.addresses[shard], self.shard_http[shard] = told["address"], told["http"]

    def state(self, worker):
        return self.folder / f"state-{worker}"

    def start_worker(self, worker):
        serial, self.serials = self.serials, self.serials + 1
        if (serial + 1) * self.chunk > self.dimension:
            raise Failure(f"more than {self.dimension // self.chunk} processes: --seconds is too long for the tensor")
        name = self.folder / f"worker-{worker}-{serial}"
        with open(f"{name}.out", "w", encoding="utf-8") as out, open(f"{name}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*self.enter_worker[worker], self.options.worker, ",".join(self.addresses), str(worker), str(WORKERS), str(serial),
                 f"dimension={self.dimension}", f"chunk={self.chunk}", f"heartbeat_ms={HEARTBEAT_MS}", f"dead_after_ms={DEAD_AFTER_MS}",
                 f"timeout_ms={SETTLE_S * 1000}", f"state={self.state(worker)}", f"control={self.folder / 'end'}",
                 f"dump={name}.weights", f"seed={self.options.seed}", *self.settings],
                stdout=out, stderr=log)
        self.lives[worker].append(Life(worker, serial, process, Log(f"{name}.out"), self.chunk))

    def now(self, worker):
        return self.lives[worker][-1]

    def running(self, worker):
        return bool(self.lives[worker]) and self.now(worker).process.poll() is None

    def read(self):
        for lives in self.lives:
            life = lives[-1]
            life.read()
            if not life.killed and life.process.poll() is not None and not life.finished:
                life.read()
                raise Failure(f"worker {life.worker} (process {life.serial}) ended by itself with {life.process.returncode}")
        for number, shard in enumerate(self.shards):
            if shard is not None and shard.poll() is not None:
                raise Failure(f"shard {number} ended by itself with {shard.returncode}")

    def kill_worker(self, worker):
        life = self.now(worker)
        life.killed = True
        self.kill(life.process)
        life.read()
        self.counts["kills_of_workers"] += 1
        if not any(self.running(other) for other in range(WORKERS)):
            self.killed_all = True

    def kill_shard(self, shard):
        self.kill(self.shards[shard])
        self.shards[shard].stdout.close()
        self.shards[shard] = None
        self.counts["kills_of_shards"] += 1

    def kill(self, process):
        self.stopped.discard(process)
        process.kill()
        process.wait()

    def stop(self, process):
        if process not in self.stopped:
            process.send_signal(signal.SIGSTOP)
            self.stopped.add(process)
            self.counts["stops"] += 1

    def go_on(self, process):
        if process in self.stopped:
            process.send_signal(signal.SIGCONT)
            self.stopped.discard(process)

    def end(self):
        for process in [*self.stopped]:
            self.go_on(process)
        for process in [life.process for lives in self.lives for life in lives] + [shard for shard in self.shards if shard]:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


class Punisher:
    """What happens when, drawn from the seed; when exactly it happens is the machine's."""

    def __init__(self, cluster, options):
        self.cluster, self.options = cluster, options
        self.draw = random.Random(options.seed)
        self.due = []  # (time, what to do)

    def later(self, seconds, action):
        self.due.append((time.monotonic() + seconds, action))

    def run_due(self):
        now = time.monotonic()
        for at, action in [entry for entry in self.due if entry[0] <= now]:
            self.due.remove((at, action))
            action()

    def kill_worker(self, worker):
        if not self.cluster.running(worker):
            return
        self.cluster.kill_worker(worker)
        self.later(self.pause(), lambda: self.restart_worker(worker))

    def restart_worker(self, worker):
        if self.draw.random() < DELETE_STATE and self.cluster.state(worker).exists():
            self.cluster.state(worker).unlink()
            self.cluster.counts["states_deleted"] += 1
        self.cluster.counts["restarts"] += 1
        self.cluster.start_worker(worker)

    def kill_shard(self, shard):
        if self.cluster.shards[shard] is None:
            return
        self.cluster.kill_shard(shard)
        self.later(self.pause(), lambda: self.restart_shard(shard))

    def restart_shard(self, shard):
        self.cluster.counts["restarts"] += 1
        self.cluster.start_shard(shard)

    def stop(self, process):
        if process is None or process.poll() is not None:
            return
        self.cluster.stop(process)
        self.later(self.draw.uniform(0.1, 2.5) * DEAD_AFTER_MS / 1000, lambda: self.cluster.go_on(process))

    def pause(self):
        return self.draw.choice((0, self.draw.uniform(0, 0.3), self.draw.uniform(0, 2.5)))

    def strike(self):
        worker, other, shard = self.draw.randrange(WORKERS), self.draw.randrange(WORKERS), self.draw.randrange(SHARDS)
        kinds = {
            "worker": (40, lambda: self.kill_worker(worker)),
            "two workers": (8, lambda: (self.kill_worker(worker), self.kill_worker(other))),
            "stop worker": (12, lambda: self.stop(self.cluster.now(worker).process)),
            "shard": (22, lambda: self.kill_shard(shard)),
            "shard and worker": (8, lambda: (self.kill_shard(shard), self.kill_worker(worker))),
            "stop shard": (6, lambda: self.stop(self.cluster.shards[shard])),
            "all workers": (2, lambda: [self.kill_worker(every) for every in range(WORKERS)]),
        }
        if self.options.spare == "shards":
            kinds = {kind: entry for kind, entry in kinds.items() if "shard" not in kind and kind != "all workers"}
        if self.options.spare == "workers":
            kinds = {kind: entry for kind, entry in kinds.items() if "worker" not in kind}
        kind = self.draw.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        kinds[kind][1]()

    def punish(self, seconds):
        end = time.monotonic() + seconds
        strike_at = time.monotonic() + 0.5
        while time.monotonic() < end:
            self.run_due()
            self.cluster.read()
            if time.monotonic() >= strike_at:
                self.strike()
                strike_at = time.monotonic() + self.draw.uniform(0.1, 2.0)
            time.sleep(0.02)
        self.stop_punishing()

    def stop_punishing(self):
        for _, action in self.due:
            action()
        self.due = []


def wait_for(cluster, what, condition):
    limit = time.monotonic() + SETTLE_S
    while not condition():
        cluster.read()
        if time.monotonic() > limit:
            states = ", ".join(f"worker {life.worker}: {'joined' if life.joined else 'not joined'}, step {life.steps}, "
                               f"{'finished' if life.finished else 'running'}" for life in map(cluster.now, range(WORKERS)))
            raise Failure(f"within {SETTLE_S} s {what}: {states}")
        time.sleep(0.02)


def let_finish(cluster):
    """All are back and have moved; then the end is written where they look for it, beyond any step that was."""
    lives = [cluster.now(worker) for worker in range(WORKERS)]
    wait_for(cluster, "not every worker rejoined", lambda: all(life.joined and life.digests for life in lives))
    steps = max(life.steps for every in cluster.lives for life in every)
    fresh = cluster.folder / "end.new"
    fresh.write_text(str(steps + STEPS_AFTER), encoding="utf-8")
    os.rename(fresh, cluster.folder / "end")
    wait_for(cluster, "not every worker finished", lambda: all(life.finished for life in lives))
    for life in lives:
        life.process.wait(timeout=SETTLE_S)


class Judge:
    def __init__(self, cluster, options):
        self.cluster, self.options = cluster, options
        self.ends = [cluster.now(worker) for worker in range(WORKERS)]
        self.weights = {life.worker: self.read_weights(life) for life in self.ends}
        self.last = max(self.ends, key=lambda life: (life.steps, life.worker))
        self.in_step = "mode=synchronous" in MODES[options.mode]
        self.final = self.weights[self.last.worker]
        if not self.in_step:
            for own in self.weights.values():
                self.final = {index: max(own.get(index, 0), self.final.get(index, 0)) for index in own.keys() | self.final.keys()}
        self.missing = {"kept": 0, "after the save": 0, "no state": 0, "counted as lost": 0, "void": 0}
        self.owed = {life.serial: 0 for lives in cluster.lives for life in lives}
        self.void = []  # (process, index) that a save had as counted

    @staticmethod
    def read_weights(life):
        weights = {}
        with open(f"{life.log.path.removesuffix('.out')}.weights", encoding="utf-8") as file:
            for line in file:
                index, value = line.split()
                weights[int(index)] = float(value)
        return weights

    def check(self):
        self.check_counts()
        self.check_agreement()
        kept = {index for life in self.ends for index in life.kept}
        if both := kept & self.final.keys():
            raise Failure(f"{len(both)} pushes are in the weights and are kept back as well, the first is index {min(both)}")
        for lives in self.cluster.lives:
            for place, life in enumerate(lives):
                for index in life.own():
                    if index not in self.final:
                        self.missing[self.explain(lives, place, index)] += 1
        for life in self.ends:
            if self.owed[life.serial] > life.lost:
                raise Failure(f"worker {life.worker} lives, and {self.owed[life.serial]} of its pushes are neither in the weights "
                              f"nor in its residual; it counted {life.lost:g} as lost")
        harmless = self.cluster.counts["kills_of_shards"] == 0 and not self.cluster.killed_all
        if self.missing["void"] and harmless:
            raise Failure(f"{self.missing['void']} pushes were counted and are gone, although no shard was killed")
        for life, index in self.void:
            self.check_void(life, index)

    def check_counts(self):
        pushed = {index for lives in self.cluster.lives for life in lives for index in life.own()}
        for index, value in self.final.items():
            if value != 1:
                raise Failure(f"the push of index {index} was counted {value:g} times (process {index // self.cluster.chunk})")
            if index not in pushed:
                raise Failure(f"index {index} is in the weights, and was never pushed")

    def check_agreement(self):
        if not self.in_step:
            return
        for life in self.ends:
            own = self.weights[life.worker]
            if life.steps == self.last.steps and own != self.final:
                raise Failure(f"workers {life.worker} and {self.last.worker} both end at step {life.steps}, with other weights")
            if any(own[index] != self.final.get(index) for index in own):
                raise Failure(f"worker {life.worker} has weights that worker {self.last.worker}, which is further, has not")
            for step, digest in life.digests.items():
                other = self.last.digests.get(step)
                if other is not None and other != digest:
                    raise Failure(f"workers {life.worker} and {self.last.worker} disagree about the weights after {step} steps")

    def explain(self, lives, place, index):
        """Returns why a push is not in the weights: follows it from process to process of its worker, by the saves."""
        life = lives[place]
        if not life.killed:
            if index in life.kept:
                return "kept"
            self.owed[life.serial] += 1
            return "counted as lost"
        after = lives[place + 1]
        if after.holds is None:
            return "no state"
        if index in after.holds:
            return self.explain(lives, place + 1, index)
        if index in life.own() and life.base + index - life.index(0) >= after.base:
            return "after the save"
        if self.owed[life.serial] < life.lost:
            self.owed[life.serial] += 1
            return "counted as lost"
        self.void.append((life, index))
        return "void"

    def check_void(self, life, index):
        """A counted push is gone. No process that had its update may have kept these weights to the end."""
        settings = MODES[self.options.mode]
        if not self.in_step or any(word.startswith("select=") for word in settings) or index not in life.own():
            return
        in_flight = next((int(word.removeprefix("staleness=")) for word in settings if word.startswith("staleness=")), 0)
        push = index - life.index(0)
        # A step that omitted this process returned the push: it went with the next one.
        with_it = {(step, digest) for pushes, step, digest in life.had if pushes > push + in_flight + 1}
        for end in self.ends:
            if not end.lost and any(end.digests.get(step) == digest for step, digest in with_it):
                raise Failure(f"push {push} of process {life.serial} was counted and is gone, and worker {end.worker} had its "
                              "update and lives")


def run(options, folder):
    cluster = Cluster(options, folder)
    started = time.monotonic()
    try:
        for shard in range(SHARDS):
            cluster.start_shard(shard)
        for worker in range(WORKERS):
            cluster.start_worker(worker)
        wait_for(cluster, "the job did not start", lambda: all(cluster.now(worker).joined for worker in range(WORKERS)))
        punisher = Punisher(cluster, options)
        punisher.punish(options.seconds)
        for process in [*cluster.stopped]:
            cluster.go_on(process)
        let_finish(cluster)
        judge = Judge(cluster, options)
        judge.check()
        lives = [life for every in cluster.lives for life in every]
        return {"seed": options.seed, "mode": options.mode, "seconds": round(time.monotonic() - started, 1), **cluster.counts,
                "steps": judge.last.steps, "pushes": sum(len(life.own()) for life in lives), "counted": len(judge.final),
                "twice": 0, "missing": judge.missing}
    finally:
        cluster.end()


def show(result):
    print(f"punisher: seed {result['seed']}, mode {result['mode']}: {result['seconds']} s, {result['steps']} steps; "
          f"{result['kills_of_workers']} kills of workers, {result['kills_of_shards']} of shards, {result['stops']} stops, "
          f"{result['restarts']} restarts, {result['states_deleted']} states deleted")
    missing = ", ".join(f"{count} {cause}" for cause, count in result["missing"].items())
    print(f"punisher: {result['pushes']} pushes, {result['counted']} counted once, none twice; of the rest: {missing}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("server")
    parser.add_argument("worker")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="default: of the time")
    parser.add_argument("--mode", choices=MODES, default=None, help="default: by the seed")
    parser.add_argument("--spare", choices=("shards", "workers"), default=None, help="these are left alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", help="folder for the logs, kept; default: only those of a run that failed")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = time.time_ns() % 1_000_000
    if options.mode is None:
        options.mode = list(MODES)[options.seed % len(MODES)]
    print(f"punisher: seed {options.seed}, mode {options.mode}, {options.seconds:g} s", file=sys.stderr, flush=True)
    folder = options.keep or tempfile.mkdtemp(prefix="millrace-punisher-")
    os.makedirs(folder, exist_ok=True)
    try:
        result = run(options, folder)
    except Failure as failure:
        print(f"punisher: FAILED (seed {options.seed}, mode {options.mode}, logs in {folder}): {failure}")
        return 1
    if not options.keep:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
