#!/usr/bin/env python3
"""Every program exports the metrics in its tables of monitoring/METRICS.md, and no other name. From the first moment it
exports every series whose labels are known beforehand.

    metrics_test.py FOLDER_OF_PROGRAMS EXAMPLE_OF_THE_LIBRARY [unittest arguments]
"""

import itertools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import urllib.request
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, start

EXAMPLE = Path(sys.argv.pop(1)).resolve()
sys.argv.insert(1, str(PROGRAMS))  # mpi_ranks takes it off again
import metric_tables  # noqa: E402
import mpi_ranks  # noqa: E402
from monitored_cluster import WORKERS, MonitoredCluster  # noqa: E402

RANKS = 2
SERIES = re.compile(r"^(\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

TABLES = metric_tables.read()
# Of processes with certificates (http_security_test.py, etcd_test.py).
OF_CERTIFICATES = ("millrace_http_certificate_end_time_seconds", "millrace_shard_certificate_end_time_seconds")


def scrape(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    return {(name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))): float(value) for name, labels, value in SERIES.findall(text)}


def total(series, name):
    return sum(value for (one, _), value in series.items() if one == name)


class Metrics(MonitoredCluster):
    def scrape_when(self, address, name, least=1):
        """Returns the exported series, as soon as a metric is there and its sum is `least`."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            series = scrape(address)
            if name in {one for one, _ in series} and total(series, name) >= least:
                return series
            self.assertLess(time.monotonic(), deadline, series)

    def assert_in_the_tables(self, series, *programs):
        names = set()
        for program in (*programs, "http"):
            for name, (kind, _) in TABLES[program].items():
                names |= {f"{name}_{suffix}" for suffix in ("bucket", "sum", "count")} if kind == "histogram" else {name}
        self.assertEqual({name for name, _ in series} - names, set())

    def assert_whole(self, series, job, *programs, but=()):
        """A counter or histogram has all series that are known beforehand; a gauge has one at least."""
        for program in (*programs, "http"):
            self.assertGreater(len(TABLES[program]), 0 if program == "http" else 5)
            for name, (kind, labels) in TABLES[program].items():
                if name in (*but, *OF_CERTIFICATES):
                    continue
                sample = f"{name}_count" if kind == "histogram" else name
                if kind == "gauge":
                    self.assertIn(sample, {one for one, _ in series})
                known = {label: [job] if label == "job" else ["0"] if label == "lcore" else values for label, values in labels.items()}
                if None in known.values() or kind == "gauge":
                    continue
                for values in itertools.product(*known.values()):
                    self.assertIn((sample, frozenset(zip(known, values))), series)

    def test_ShardsWorkersAndASwitch(self):
        switch = self.start_switch()
        flags = ["--train", self.rows(), "--batch", 5, "--epochs", 1_000_000, "--audit", "--http", "127.0.0.1:0", *self.switch_flags(switch)]
        workers = [start("train", *self.flags(worker, WORKERS, "train"), *flags) for worker in range(WORKERS)]
        for worker in workers:
            self.addCleanup(self.end, worker)
        for worker in workers:
            series = self.scrape_when("127.0.0.1:" + self.line_of(worker, "status: port "), "millrace_worker_steps_total", 10)
            self.assert_in_the_tables(series, "worker")
            self.assert_whole(series, "train", "worker")
            self.assertGreater(total(series, "millrace_worker_dense_bytes_total"), 0)
            self.assertEqual(total(series, "millrace_worker_audit_imbalance"), 0)
        series = self.scrape_when(switch["http"], "millrace_switch_packets_total")
        self.assert_in_the_tables(series, "switch")
        self.assert_whole(series, "train", "switch")
        for shard in self.cluster["shards"]:
            # The gauge that the shard's loop sets last, while it answers.
            series = self.scrape_when(shard["http"], "millrace_shard_audit_mass", -math.inf)
            self.assert_in_the_tables(series, "shard")
            self.assert_whole(series, "train", "shard")
            self.assertEqual(total(series, "millrace_shard_audit_imbalance"), 0)
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        for worker in workers:
            worker.communicate(timeout=TIMEOUT_S)
            self.assertEqual(worker.returncode, 7)

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun (deploy/setup.sh)")
    def test_PeersAmongThemselvesAndOverServers(self):
        if "not in this build" in subprocess.run([mpi_ranks.PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout:
            self.skipTest("this build has no MPI")
        flags = ["train", "--train", str(self.rows()), "--batch", "20", "--epochs", "1000000", "--select", "topk:0.5", "--http", "127.0.0.1:0"]
        for programs, more in ((["peer"], ["--job", "ranks"]),
                               (["peer", "worker"], ["--job", "ranks", "--path", "server", "--servers", self.servers])):
            with self.subTest(programs=programs):
                mpirun = mpi_ranks.start(RANKS, [*flags, *more])
                self.addCleanup(self.end, mpirun)
                ports = [self.line_of(mpirun, "status: port ") for _ in range(RANKS)]
                self.assertEqual(len(set(ports)), RANKS)
                for port in ports:
                    series = self.scrape_when(f"127.0.0.1:{port}", "millrace_peer_steps_total", 2)
                    self.assert_in_the_tables(series, *programs)
                    # Not of an audited job.
                    self.assert_whole(series, "ranks", *programs, but=("millrace_worker_audit_mass",))
                    for name in ("step_seconds_count", "contribution_entries_total", "update_entries_total", "dense_bytes_total", "residual_norm",
                                 "network_bytes_total", "compute_seconds_total", "wait_seconds_total"):
                        self.assertGreater(total(series, f"millrace_peer_{name}"), 0, name)
                    self.assertEqual(total(series, "millrace_peer_ranks"), RANKS)
                    self.assertEqual(total(series, "millrace_peer_messages_unexpected_total"), 0)
                    for name in ("steps_total", "step_seconds_count") if "worker" in programs else ():
                        self.assertGreater(total(series, f"millrace_worker_{name}"), 0, name)
                mpirun.send_signal(signal.SIGTERM)
                mpirun.communicate(timeout=TIMEOUT_S)

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun (deploy/setup.sh)")
    def test_ARankReportsAPortAbove65535(self):
        if "not in this build" in subprocess.run([mpi_ranks.PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout:
            self.skipTest("this build has no MPI")
        ended = mpi_ranks.run(RANKS, ["train", "--train", str(self.rows()), "--http", "127.0.0.1:65535"])
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("rank 1 would listen on the port 65536", ended.stderr)

    def test_AProgramThatUsesTheLibrary(self):
        with subprocess.Popen([PROGRAMS / "millrace", "serve", "--shards", "1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serve:
            shard = "tcp://" + json.loads(serve.stdout.readline())["servers"]
            with subprocess.Popen([EXAMPLE, shard, "0", "1", "1000000000", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True) as example:
                port = self.line_of(example, "metrics: port ")
                series = self.scrape_when(f"127.0.0.1:{port}", "millrace_worker_steps_total", 3)
                self.assert_in_the_tables(series, "worker")
                self.assert_whole(series, "example", "worker", but=("millrace_worker_audit_mass",))
                self.assertGreater(total(series, "millrace_worker_step_seconds_count"), 0)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=TIMEOUT_S) as answer:
                    self.assertEqual(answer.read().strip(), b"ok")
                example.kill()
                example.communicate(timeout=TIMEOUT_S)
            serve.send_signal(signal.SIGTERM)
            serve.communicate(timeout=TIMEOUT_S)
            self.assertEqual(serve.returncode, 0)


if __name__ == "__main__":
    unittest.main()
