#!/usr/bin/env python3
"""`millrace trace` writes one timeline of the shards, workers and ranks of a job, with every kind of span, nested and in order.

    trace_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import collections
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

from commands import PROGRAMS, TIMEOUT_S, made_up_rows, run, start

sys.argv.insert(1, str(PROGRAMS))  # mpi_ranks takes it off again
import mpi_ranks  # noqa: E402
from monitored_cluster import WORKERS, MonitoredCluster  # noqa: E402
from shards_by_hand import ShardsByHand  # noqa: E402

JOB = 'trace "}],\\ <b>'
AT_WORKERS = {"push", "select", "encode", "send", "decode", "apply"}
AT_SHARDS = {"admit", "reduce", "threshold", "encode", "send"}
AT_RANKS = {"select", "encode", "exchange", "apply"}
RANKS = 2
IN_ORDER = ("push", "admit", "reduce", "apply")


def get(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
        return json.loads(answer.read())


class Trace(MonitoredCluster):
    def start_job(self):
        """Returns the HTTP addresses of the workers of a job that makes steps until the test ends."""
        # Far apart, so that each shard holds a range of the tensor.
        far = self.path("far.svm", re.sub(r"(\d+):", lambda index: f"{int(index[1]) * 700}:", made_up_rows(600, 5)))
        flags = ["--train", far, "--batch", 5, "--epochs", 1_000_000, "--select", "topk:0.5", "--reselect", "topk:0.3",
                 "--compute-time", "2ms", "--http", "127.0.0.1:0"]
        workers = [start("train", *self.flags(worker, WORKERS, JOB), *flags) for worker in range(WORKERS)]
        for worker in workers:
            self.addCleanup(self.end, worker)
        addresses = ["127.0.0.1:" + self.line_of(worker, "status: port ") for worker in workers]
        deadline = time.monotonic() + TIMEOUT_S
        for address in addresses:
            while get(address, "/status")["rounds"] < 3:
                self.assertLess(time.monotonic(), deadline)
        return workers, addresses

    def assert_nested(self, spans):
        """Spans of a thread lie in one another, or apart. Times have three decimals of a microsecond."""
        threads = collections.defaultdict(list)
        for span in spans:
            threads[span["pid"], span["tid"]].append((round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000)))
        for of_thread in threads.values():
            open_ends = []
            for begin, end in sorted(of_thread, key=lambda span: (span[0], -span[1])):
                while open_ends and open_ends[-1] <= begin + 1:
                    open_ends.pop()
                if open_ends:
                    self.assertLessEqual(end, open_ends[-1] + 1)
                open_ends.append(end)

    def assert_in_order(self, spans, error_us):
        """No process reduces a step before it has admitted it, and so on, as exactly as the file says of its clocks."""
        first = collections.defaultdict(dict)
        last = collections.defaultdict(dict)
        for span in spans:
            step, name = span["args"]["step"], span["name"]
            if name in IN_ORDER:
                first[step][name] = min(first[step].get(name, span["ts"]), span["ts"])
                last[step][name] = max(last[step].get(name, span["ts"]), span["ts"])
        whole = [step for step, names in first.items() if len(names) == len(IN_ORDER)]
        self.assertGreater(len(whole), 10)
        whole.remove(min(whole))  # its beginning may be before the timeline's
        for step in whole:
            for before, after in zip(IN_ORDER, IN_ORDER[1:]):
                self.assertLessEqual(first[step][before], first[step][after] + 2 * error_us, (step, before, after))
            self.assertLessEqual(last[step]["push"], last[step]["apply"] + 2 * error_us, step)

    def test_EveryProcessAndEverySpanIsInOneFile(self):
        workers, addresses = self.start_job()
        output = self.path("trace.json")
        ended = run("trace", JOB, *[shard["http"] for shard in self.cluster["shards"]], *addresses, "--seconds", 1, "-o", output, "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        summary = json.loads(ended.stdout)
        trace = json.loads(output.read_text(encoding="utf-8"))
        about = trace["otherData"]
        self.assertEqual(about["job"], JOB)
        self.assertEqual({one["name"] for one in about["processes"]}, {"shard 0", "shard 1", "worker 0", "worker 1"})
        self.assertEqual([one["spans"] for one in summary["processes"]], [one["spans"] for one in about["processes"]])
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        self.assertEqual(len(spans), sum(one["spans"] for one in about["processes"]))
        names = collections.defaultdict(set)
        for span in spans:
            self.assertGreaterEqual(span["ts"], 0)
            self.assertGreaterEqual(span["dur"], 0)
            names[span["pid"]].add(span["name"])
        for one in about["processes"]:
            expected = AT_SHARDS if one["name"].startswith("shard") else AT_WORKERS
            self.assertLessEqual(expected, names[one["pid"]], one["name"])
            self.assertEqual(one["spans_lost"] + one["spans_over_limit"], 0, one)
            # One clock: the true offset is 0.
            self.assertLessEqual(abs(one["clock_offset_us"]), one["clock_error_us"], one)
        self.assert_nested(spans)
        self.assert_in_order(spans, max(one["clock_error_us"] for one in about["processes"]))
        self.recording_ends(addresses[0])
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        for worker in workers:
            worker.communicate(timeout=TIMEOUT_S)

    def recording_ends(self, address):
        """A process that is not asked any more stops recording: 20 steps later the cursor is the same."""
        deadline = time.monotonic() + TIMEOUT_S
        cursor = None
        while cursor != get(address, "/trace")["next"]:
            self.assertLess(time.monotonic(), deadline)
            cursor = get(address, "/trace")["next"]
            rounds = get(address, "/status")["rounds"]
            while get(address, "/status")["rounds"] < rounds + 20:
                self.assertLess(time.monotonic(), deadline)

    def test_AWrongQueryIsRefused(self):
        with self.assertRaises(urllib.error.HTTPError) as refused:
            get(self.cluster["shards"][0]["http"], "/trace?seconds=x")
        self.assertEqual(refused.exception.code, 400)
        self.assertIn("seconds: a whole number", refused.exception.read().decode())
        refused.exception.close()

    def test_TraceReportsAMissingJobOrAddress(self):
        http = self.cluster["shards"][0]["http"]
        output = self.path("none.json")
        self.refused(4, "no shard has job 'absent' open; open are: ", "trace", "absent", http, "-o", output)
        self.assertFalse(output.exists())
        self.refused(2, "no address: ", "trace", "train", "-o", output)
        self.refused(4, "127.0.0.1:1 does not answer", "trace", "train", "127.0.0.1:1", "-o", output)
        self.refused(2, "--seconds", "trace", "train", http, "-o", output, "--seconds", 0)

    def test_ASwitchHasItsBursts(self):
        switch = self.start_switch()
        flags = ["--train", self.rows(), "--batch", 5, "--epochs", 1_000_000, "--http", "127.0.0.1:0", *self.switch_flags(switch)]
        workers = [start("train", *self.flags(worker, WORKERS, "train"), *flags) for worker in range(WORKERS)]
        for worker in workers:
            self.addCleanup(self.end, worker)
        http = "127.0.0.1:" + self.line_of(workers[0], "status: port ")
        deadline = time.monotonic() + TIMEOUT_S
        while get(http, "/status")["rounds"] < 3:
            self.assertLess(time.monotonic(), deadline)
        output = self.path("switch.json")
        ended = run("trace", "train", switch["http"], http, *[shard["http"] for shard in self.cluster["shards"]], "--seconds", 1, "-o", output)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        trace = json.loads(output.read_text(encoding="utf-8"))
        by_name = {one["name"]: one for one in trace["otherData"]["processes"]}
        self.assertGreater(by_name["switch"]["spans"], 0)
        self.assertGreater(by_name["worker 0"]["spans"], 0)

    @unittest.skipIf(shutil.which("mpirun") is None, "there is no mpirun (deploy/setup.sh)")
    def test_EveryRankHasItsPhasesAmongPeersAndOverServers(self):
        if "not in this build" in subprocess.run([mpi_ranks.PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout:
            self.skipTest("this build has no MPI")
        flags = ["train", "--train", str(self.rows()), "--batch", "20", "--epochs", "1000000", "--select", "topk:0.5", "--http", "127.0.0.1:0", "--job", "ranks"]
        for expected, more in ((AT_RANKS, []), ({"push", "exchange", "apply"}, ["--path", "server", "--servers", self.servers])):
            with self.subTest(more=more):
                mpirun = mpi_ranks.start(RANKS, [*flags, *more])
                self.addCleanup(self.end, mpirun)
                addresses = ["127.0.0.1:" + self.line_of(mpirun, "status: port ") for _ in range(RANKS)]
                deadline = time.monotonic() + TIMEOUT_S
                for address in addresses:
                    while get(address, "/status")["steps"] < 3:
                        self.assertLess(time.monotonic(), deadline)
                output = self.path("ranks.json")
                ended = run("trace", "ranks", *addresses, "--seconds", 1, "-o", output)
                self.assertEqual(ended.returncode, 0, ended.stderr)
                trace = json.loads(output.read_text(encoding="utf-8"))
                self.assertEqual({one["name"] for one in trace["otherData"]["processes"]}, {f"rank {rank}" for rank in range(RANKS)})
                spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
                names = collections.defaultdict(set)
                for span in spans:
                    self.assertEqual((span["cat"], span["args"]["tensor"]), ("rank", 0))
                    names[span["pid"]].add(span["name"])
                self.assertEqual(list(names.values()), RANKS * [expected])
                self.assert_nested(spans)
                self.refused(4, "it is of another job", "trace", "another", *addresses, "-o", output)
                mpirun.send_signal(signal.SIGTERM)
                mpirun.communicate(timeout=TIMEOUT_S)


class TraceWithoutAShard(ShardsByHand):
    def test_AShardThatIsNotFoundIsReportedAndTheFileHasTheOthers(self):
        cluster = self.cluster(self.folder / "table.db")
        for worker in self.workers(cluster, self.folder / "model", "--compute-time", "10ms"):
            self.addCleanup(worker.communicate)
            self.addCleanup(worker.kill)
        cluster.wait_for(lambda: cluster.steps() > 0, "the job does not begin")
        cluster.kill(1)
        output = self.folder / "trace.json"
        ended = run("trace", "etcd", cluster.lines[0]["http"], "--seconds", 1, "-o", output, "--json")
        self.assertEqual(ended.returncode, 4, ended.stderr)
        self.assertIn("shard 1: ", ended.stderr)
        self.assertEqual([one["address"] for one in json.loads(ended.stdout)["unanswered"]], ["shard 1"])
        about = json.loads(output.read_text(encoding="utf-8"))["otherData"]
        self.assertEqual([one["name"] for one in about["processes"]], ["shard 0"])


if __name__ == "__main__":
    unittest.main()
