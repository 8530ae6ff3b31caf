#!/usr/bin/env python3
"""A real Prometheus scrapes shards, workers, a switch and ranks, by the configuration and the rules of monitoring/. The query
of every panel and of every rule returns data, but for those of EMPTY. Some need a fault, which the test causes.

    prometheus_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Skipped where Prometheus or python3-yaml is not installed. Without MPI there are no ranks, and their queries are left out.
"""

import contextlib
import json
import math
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, run, start

sys.argv.insert(1, str(PROGRAMS))  # mpi_ranks takes it off again
import mpi_ranks  # noqa: E402
import promql  # noqa: E402
from monitored_cluster import WORKERS, MonitoredCluster  # noqa: E402
from reserved_ports import ReservedPorts  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None
if yaml is None or shutil.which("prometheus") is None:
    print("prometheus_test: skipped: there is no prometheus, or no python3-yaml (deploy/setup.sh --tests)")
    sys.exit(77)

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"
RANKS = 2
POLL_S = 0.5
DATA_S = 240
# Metrics without a series in a cluster of this kind: the reason. A panel or a rule may name them beside others.
EMPTY = {
    "millrace_http_certificate_end_time_seconds": "no port has TLS; http_security_test.py evaluates the panel",
    "millrace_shard_certificate_end_time_seconds": "no shard has a certificate; http_security_test.py evaluates the panel",
}
# Metrics without a value in a healthy cluster: what cause_faults() does to have one.
FAULTS = {
    "millrace_shard_dropped_total": "a greeting of ZMTP 1",
    "millrace_shard_refused_total": "a worker with another specification of its job",
    "millrace_shard_table_errors_total": "a lock of the table while a worker leaves",
    "millrace_shard_merged_steps_total": "an asynchronous job with a worker that stops",
    "millrace_shard_merged_updates_total": "the same",
    "millrace_shard_datagram_events_total": "the end of the switch, for which shard 0 decides from then on",
    "millrace_shard_datagrams_dropped_total": "a datagram without a header at shard 0",
}


def panel_queries():
    """Returns (dashboard and panel, query) of every query of every dashboard, for all jobs and instances."""
    found = []
    for path in sorted(MONITORING.glob("*.json")) + sorted(MONITORING.glob("dashboards/*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", "5s").replace("$job", ".*").replace("$instance", ".*")
                found.append((f"{path.stem}: {panel['title']}", expression))
    return found


def rules():
    return [rule for path in sorted(MONITORING.glob("rules/*.yml")) for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
            for rule in group["rules"]]


class PrometheusTest(MonitoredCluster):
    tables = tempfile.TemporaryDirectory()
    table = Path(tables.name) / "table.db"
    datagrams = ReservedPorts(1, socket.SOCK_DGRAM)
    serve_flags = (*MonitoredCluster.serve_flags, "--table", table, "--datagrams", f"127.0.0.1:{datagrams.numbers[0]}")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.datagrams.close()
        cls.tables.cleanup()

    def setUp(self):
        self.workers = {}  # by job

    def has_mpi(self):
        return shutil.which("mpirun") is not None and "not in this build" not in subprocess.run(
            [mpi_ranks.PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout

    def start_workers(self, job, *flags):
        """Starts workers of a job of small steps that has no end. Returns their HTTP addresses."""
        workers = [start("train", *self.flags(worker, WORKERS, job), "--train", self.rows(), "--batch", 5, "--epochs", 1_000_000, "--audit",
                         "--compute-time", "20ms", "--http", "127.0.0.1:0", *flags) for worker in range(WORKERS)]
        for worker in workers:
            self.addCleanup(self.end, worker)
        self.workers[job] = workers
        return ["127.0.0.1:" + self.line_of(worker, "status: port ") for worker in workers]

    def start_ranks(self):
        ranks = mpi_ranks.start(RANKS, ["train", "--train", str(self.rows()), "--batch", "5", "--epochs", "1000000", "--select", "topk:0.5", "--http",
                                        "127.0.0.1:0", "--job", "ranks"])
        self.addCleanup(self.end, ranks)
        return ["127.0.0.1:" + self.line_of(ranks, "status: port ") for _ in range(RANKS)]

    def start_prometheus(self, targets):
        """Starts it with the configuration of monitoring/, these targets by scrape job, and intervals of a test."""
        configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text(encoding="utf-8"))
        self.assertEqual({one["job_name"] for one in configuration["scrape_configs"]}, set(targets))
        for one in configuration["scrape_configs"]:
            one["static_configs"] = [{"targets": targets[one["job_name"]]}]
        configuration["global"] |= {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
        configuration["rule_files"] = [str(MONITORING / one) for one in configuration["rule_files"]]
        ports = ReservedPorts(1)
        self.addCleanup(ports.close)
        port = ports.numbers[0]
        log = open(self.path("prometheus.log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={self.path('prometheus.yml', yaml.safe_dump(configuration))}",
             f"--storage.tsdb.path={self.path('tsdb')}", f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(self.end, prometheus)
        self.address = f"http://127.0.0.1:{port}"
        self.prometheus = prometheus
        self.until(lambda: self.get("/-/ready") is not None or "is not ready")

    def get(self, path, **parameters):
        """Returns the answer's JSON, or its text, or None where there is none yet."""
        self.assertIsNone(self.prometheus.poll(), "prometheus has ended")
        try:
            with urllib.request.urlopen(f"{self.address}{path}?{urllib.parse.urlencode(parameters)}", timeout=TIMEOUT_S) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            self.assertEqual(error.code, 503, f"{path} {parameters}: {error.read().decode()}")
            return None
        except OSError:
            return None
        return json.loads(text)["data"] if text.startswith("{") else text

    def until(self, done):
        """Calls `done` until it returns True; its other values are the missing parts."""
        deadline = time.monotonic() + DATA_S
        while (missing := done()) is not True:
            self.assertLess(time.monotonic(), deadline, missing)
            time.sleep(POLL_S)

    def has_data(self, expression):
        answer = self.get("/api/v1/query", query=expression)
        return bool(answer) and any(not math.isnan(float(one["value"][1])) for one in answer["result"])

    def test_EveryQueryOfPanelsAndRulesReturnsData(self):
        switch = self.start_switch()
        targets = {"millrace-shards": [shard["http"] for shard in self.cluster["shards"]], "millrace-switches": [switch["http"]],
                   "millrace-workers": [*self.start_workers("train", *self.switch_flags(switch)),
                                        *self.start_workers("served", "--select", "topk:0.5")],
                   "millrace-peers": self.start_ranks() if self.has_mpi() else []}
        self.start_prometheus(targets)

        def all_up():
            states = {one["scrapeUrl"]: one["health"] for one in (self.get("/api/v1/targets") or {"activeTargets": []})["activeTargets"]}
            return len(states) == sum(map(len, targets.values())) and set(states.values()) == {"up"} or states

        self.until(all_up)
        selectors = {f"{name}{{}}" for rule in rules() if "alert" in rule for name in promql.words(rule["expr"])}
        whole = [(rule["record"], rule["expr"]) for rule in rules() if "record" in rule] + panel_queries()
        queries = whole + [("operand of an alert", one) for one in sorted(selectors)]
        self.assertGreater(len(whole), 100)
        queries = [one for one in queries if not self.is_without_data(one[1], bool(targets["millrace-peers"]))]
        healthy = [one for one in queries if not promql.words(one[1]) <= set(FAULTS)]
        self.assertGreater(len(healthy), 0.9 * len(queries) - 10)
        self.all_return(healthy)
        # Prometheus evaluates them itself as well, and none fires in a healthy cluster.
        evaluated = [rule for group in self.get("/api/v1/rules")["groups"] for rule in group["rules"]]
        self.assertEqual(len(evaluated), len(rules()))
        self.assertEqual([rule for rule in evaluated if rule["health"] == "err"], [])
        self.assertEqual([rule["name"] for rule in evaluated if rule.get("state") == "firing"], [])
        # `job` is Millrace's own, the training run.

        def both_jobs():
            answer = self.get("/api/v1/query", query="count by (job) (millrace_worker_steps_total)")
            jobs = {one["metric"]["job"] for one in answer["result"]} if answer else set()
            return jobs == {"train", "served"} or jobs

        self.until(both_jobs)
        self.cause_faults()
        self.all_return([one for one in queries if promql.words(one[1]) <= set(FAULTS)])

    def all_return(self, queries):
        """Waits until each query has returned data."""
        left = list(queries)

        def none_left():
            left[:] = [one for one in left if not self.has_data(one[1])]
            return not left or left

        self.until(none_left)

    def cause_faults(self):
        """Does what FAULTS lists."""
        host, port = self.servers.split(",")[0].split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(b"\xff" + bytes(8) + b"\x7f\x01" + bytes(20))
        refused = run("train", *self.flags(0, WORKERS + 1, "served"), "--train", self.rows())
        self.assertNotEqual(refused.returncode, 0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            datagram.sendto(b"junk", ("127.0.0.1", self.datagrams.numbers[0]))
        with contextlib.closing(sqlite3.connect(self.table, isolation_level=None)) as database:
            database.execute("BEGIN EXCLUSIVE")
            self.workers["served"][1].send_signal(signal.SIGINT)
            self.until(lambda: self.has_data("millrace_shard_table_errors_total") or "the lock has no effect")
            database.execute("ROLLBACK")
        self.end(self.switch)
        self.start_workers("merged", "--mode", "asynchronous")
        self.until(self.merges_updates)

    def merges_updates(self):
        """Stops a worker for a second. Returns whether a shard has merged updates for it lately."""
        worker = self.workers["merged"][1]
        worker.send_signal(signal.SIGSTOP)
        time.sleep(1)
        worker.send_signal(signal.SIGCONT)
        return self.has_data("rate(millrace_shard_merged_updates_total[5s]) > 0") or "no update was merged"

    def is_without_data(self, expression, with_ranks):
        names = promql.words(expression)
        return names <= set(EMPTY) or not with_ranks and all(name.startswith("millrace_peer_") for name in names)

    def test_EveryExceptionIsOfAQuery(self):
        names = set().union(*(promql.words(query) for _, query in panel_queries()), *(promql.words(rule["expr"]) for rule in rules()))
        self.assertLessEqual(set(EMPTY) | set(FAULTS), names)


if __name__ == "__main__":
    unittest.main()
