#!/usr/bin/env python3
"""Workers behind a link that needs longer for a message than a connection may be silent: each byte crosses the link once.

    slow_link_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]

The shard is on a host of its own (deploy/netlab.sh). Exits 77 (skipped, for ctest) where namespaces or NumPy are missing.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S
from hosts import SKIPPED, address, on_host, run_tests

SHARD, HOSTS = 1, 2
RATE, BYTES_A_S = "16mbit", 2e6
ENTRIES = 3_000_000
SILENT_S = 4  # by default a connection that is silent for 4 heartbeats is made again
PACKAGE = sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else "build/dev/python"
SPARE = 1.1  # of the bytes of the values: headers of messages and containers, heartbeats

# Both first workers of a job, on the shard's host. Worker 0 pushes alone until the input ends: updates of over 4 MB a second.
FAST_SIDE = """
import json, sys, threading
sys.dont_write_bytecode = True
package, server, entries, timeout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
sys.path.insert(0, package)
import millrace, numpy as np
sessions = [None, None]
def join(worker):
    job = millrace.JobConfig(name="slow", workers=2, select="none", initial_weights="first")
    tensor = millrace.Tensor("w", entries, weights=np.zeros(entries, np.float32), scale=1.0)
    sessions[worker] = millrace.Session(job, millrace.WorkerConfig(worker=worker, shards=[server]), [tensor])
threads = [threading.Thread(target=join, args=[worker]) for worker in (0, 1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
first, second = sessions
indices = np.sort(np.random.default_rng(1).choice(entries, 100_000, replace=False)).astype(np.uint32)
values = np.random.default_rng(2).standard_normal(100_000).astype(np.float32)
pushed = [one.push_sparse("w", indices[:1], values[:1], timeout=timeout) for one in sessions]
for one, step in zip(sessions, pushed): one.wait("w", step, timeout=timeout)
second.close()
joined, steps = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), joined.set()), daemon=True).start()
print("pushes", flush=True)
while not joined.wait(0.1):
    first.wait("w", first.push_sparse("w", indices, values, timeout=timeout), timeout=timeout)
    steps += 1
first.finish(timeout=timeout)
print(json.dumps([steps, first.stats().bytes_down]), flush=True)
"""


class SlowLink(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        command = [PROGRAMS / "millrace-server", "--shard", 0, "--shards", 1, "--listen", f"{address(SHARD)}:0", "--insecure",
                   "--table", Path(self.folder.name) / "table.db", "--drain", "0s", "--json"]
        self.shard = subprocess.Popen([*on_host(SHARD), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.end_shard)
        self.server = json.loads(self.shard.stdout.readline())["address"]

    def end_shard(self):
        self.shard.terminate()
        self.shard.wait(timeout=TIMEOUT_S)
        self.shard.stdout.close()

    def session(self, worker, weights=None, **options):
        """Returns a session of a job of two workers, with its weights if it has them."""
        job = millrace.JobConfig(name="slow", workers=2, select="none", **options)
        kept = {"weights": weights, "scale": 1.0} if weights is not None else {}
        return millrace.Session(job, millrace.WorkerConfig(worker=worker, shards=[self.server]), [millrace.Tensor("w", ENTRIES, **kept)])

    def in_thread(self, call):
        """Returns the future of a call."""
        pool = ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        return pool.submit(call)

    def begin_with_first(self, **options):
        """Returns both sessions of a job that begins with the weights of worker 0, and worker 1's weights."""
        weights = np.arange(ENTRIES, dtype=np.float32)
        taken = np.zeros_like(weights)
        first = self.in_thread(lambda: self.session(0, weights, initial_weights="first", **options))
        second = self.session(1, taken, initial_weights="first", **options)
        self.addCleanup(second.close)
        first = first.result(TIMEOUT_S)
        self.addCleanup(first.close)
        np.testing.assert_array_equal(taken, weights)
        return first, second, taken

    def assert_step(self, first, second):
        """Makes a step of both."""
        steps = [session.push_sparse("w", np.array([7], np.uint32), np.ones(1, np.float32), timeout=TIMEOUT_S) for session in (first, second)]
        for session, step in zip((first, second), steps):
            session.wait("w", step, timeout=TIMEOUT_S)

    def test_FirstWeightsInOnePartCrossTheLinkOnce(self):
        first, second, _ = self.begin_with_first(parts_per_shard=1)
        self.assertLess(first.stats().bytes_up, SPARE * 4 * ENTRIES)
        self.assertLess(second.stats().bytes_down, SPARE * 4 * ENTRIES)
        self.assert_step(first, second)

    def test_AJoinerTakesTheStateOnceWhileStepsGoOn(self):
        first, second, _ = self.begin_with_first()
        self.assert_step(first, second)
        second.close()
        joined, steps = threading.Event(), []

        def push_until_joined():
            while not joined.is_set():
                steps.append(first.push_sparse("w", np.array([8], np.uint32), np.ones(1, np.float32), timeout=TIMEOUT_S))
                first.wait("w", steps[-1], timeout=TIMEOUT_S)
                joined.wait(0.1)
            first.finish(timeout=TIMEOUT_S)

        pushing = self.in_thread(push_until_joined)
        self.addCleanup(joined.set)
        given = first.stats().bytes_up
        taken = np.zeros(ENTRIES, np.float32)
        with self.session(1, taken, initial_weights="first") as third:
            stats = third.stats()
            joined.set()
            self.assertGreater(len(steps), SILENT_S, "steps while it joined")
            self.assertLess(stats.bytes_down, 1.2 * 4 * ENTRIES)
            self.assertLess(first.stats().bytes_up - given, 1.2 * 4 * ENTRIES)
            step = third.push_sparse("w", np.array([9], np.uint32), np.ones(1, np.float32), timeout=TIMEOUT_S)
            third.wait("w", step, timeout=TIMEOUT_S)
            pushing.result(TIMEOUT_S)
            third.finish(timeout=TIMEOUT_S)
        np.testing.assert_array_equal(taken[10:], np.arange(10, ENTRIES, dtype=np.float32))

    def test_AJoinerTakesTheStateWhileUpdatesExceedItsLink(self):
        command = [sys.executable, "-c", FAST_SIDE, PACKAGE, self.server, ENTRIES, TIMEOUT_S]
        with subprocess.Popen([*on_host(SHARD), *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as fast:
            self.addCleanup(fast.kill)
            self.assertEqual(fast.stdout.readline(), "pushes\n")
            with self.session(1, np.zeros(ENTRIES, np.float32), initial_weights="first") as third:
                fast.stdin.close()
                step = third.push_sparse("w", np.array([9], np.uint32), np.ones(1, np.float32), timeout=TIMEOUT_S)
                third.wait("w", step, timeout=TIMEOUT_S)
                steps, updates = json.loads(fast.stdout.readline())
                self.assertGreater(updates, 4 * ENTRIES, f"{steps} steps while it joined")
                self.assertLess(third.stats().bytes_down, 1.2 * 4 * ENTRIES + updates, "no update twice")
                third.finish(timeout=TIMEOUT_S)

    def test_AnUpdateThatIsLongerThanItsTimeoutComesOnce(self):
        second = self.in_thread(lambda: self.session(1))
        with self.session(0) as first, second.result(TIMEOUT_S) as second:
            dense = first.push("w", np.ones(ENTRIES, np.float32), timeout=TIMEOUT_S)
            sparse = second.push_sparse("w", np.array([7], np.uint32), np.ones(1, np.float32), timeout=TIMEOUT_S)
            first.wait("w", dense, timeout=TIMEOUT_S)
            second.wait("w", sparse, timeout=TIMEOUT_S)
            self.assertLess(first.stats().bytes_up, SPARE * 4 * ENTRIES)
            for session in (first, second):
                self.assertLess(session.stats().bytes_down, SPARE * 4 * ENTRIES)

    def test_APullBehindAPushIsAnsweredOnce(self):
        job = millrace.JobConfig(name="slow", workers=1, select="none", store="sgd:1")
        with millrace.Session(job, millrace.WorkerConfig(shards=[self.server]), [millrace.Tensor("w", ENTRIES)]) as session:
            step = session.push("w", np.full(ENTRIES, 2, np.float32), timeout=TIMEOUT_S)
            pulled = np.empty(ENTRIES, np.float32)
            session.pull("w", pulled, timeout=TIMEOUT_S)
            session.wait("w", step, timeout=TIMEOUT_S)
            session.pull_range("w", 0, pulled[:1], timeout=TIMEOUT_S)  # behind second copies, if there are any
            stats = session.stats()
            self.assertLess(stats.bytes_up, SPARE * 4 * ENTRIES)
            self.assertLess(stats.bytes_down, SPARE * 2 * 4 * ENTRIES, "the update and the weights")

    def test_AStepAndAPullLongerThanASilenceCrossTheLinkOnce(self):
        self.assertGreater(4 * ENTRIES / BYTES_A_S, 1.2 * SILENT_S)
        job = millrace.JobConfig(name="slow", workers=1, select="none", store="sgd:1", store_begin="worker")
        me = millrace.WorkerConfig(shards=[self.server])
        with millrace.Session(job, me, [millrace.Tensor("w", ENTRIES)]) as session:
            weights = np.arange(ENTRIES, dtype=np.float32)
            session.place_weights([weights], timeout=TIMEOUT_S)
            step = session.push("w", np.full(ENTRIES, 2, np.float32), timeout=TIMEOUT_S)
            session.wait("w", step, timeout=TIMEOUT_S)
            pulled = np.empty_like(weights)
            session.pull("w", pulled, timeout=TIMEOUT_S)
            np.testing.assert_array_equal(pulled, weights - 2)
            session.pull_range("w", 0, pulled[:1], timeout=TIMEOUT_S)  # behind the second copies, if there are any
            stats = session.stats()
            self.assertEqual((stats.reconnects, stats.resends), (0, 0))
            self.assertLess(stats.bytes_up, SPARE * 2 * 4 * ENTRIES, "the weights and the gradient")
            self.assertLess(stats.bytes_down, SPARE * 2 * 4 * ENTRIES, "the update and the weights")
            session.finish(timeout=TIMEOUT_S)


if __name__ == "__main__":
    if importlib.util.find_spec("numpy") is None:
        print("skipped: this Python has no NumPy (Debian's package python3-numpy)")
        sys.exit(SKIPPED)
    sys.dont_write_bytecode = True
    sys.path.insert(0, PACKAGE)
    import millrace
    import numpy as np
    run_tests(__file__, HOSTS, None, RATE, [PACKAGE])
