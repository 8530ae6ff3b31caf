#!/usr/bin/env python3
"""Nemeses of a training in its network: of two processes one receives no packet of the other, which hears it.

    nemesis_partition_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Every process is in a network namespace of its own (deploy/netlab.sh). In all tests a job yields the model of an undisturbed run, bit for
bit, or its workers end with a sentence. Exits 77 (skipped, for ctest) where namespaces cannot be made, or nft is missing.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import unittest

PREFIX = os.environ.get("NETLAB_PREFIX", "")  # set on the hosts
if not PREFIX:
    ARGUMENTS = sys.argv[1:]

import etcd_members
from commands import NETLAB, TIMEOUT_S, millrace
from nemeses import Nemesis
from shards_by_hand import SHARDS, WORKERS, Cluster

SHARD, WORKER, TABLE, SPARE, TEST = 1, SHARDS + 1, SHARDS + WORKERS + 1, SHARDS + WORKERS + 2, SHARDS + WORKERS + 3  # hosts, of each kind the first
HOSTS = TEST
OPEN = ("--insecure", "--http-insecure")  # the hosts see each other alone
# No time limit may pass while a busy machine is slow.
PATIENT = ("--heartbeat", "200ms", "--dead-after", "10m", "--shard-silence", "10m")
IMPATIENT = ("--heartbeat", "200ms", "--dead-after", "10s")
SILENT_MS = 2_000


def address(host):
    return f"10.77.0.{host}"


def on_host(host):
    return ["ip", "netns", "exec", f"{PREFIX}-{host}"]


def nft(host, *arguments, rules=None):
    return subprocess.run([*on_host(host), "nft", *arguments], input=rules, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def deaf(hearer, speaker):
    """The first host receives no packet of the second one."""
    nft(hearer, "-f", "-", rules=f"""table inet nemesis {{
  chain deaf {{
    type filter hook input priority 0;
    ip saddr {address(speaker)} counter drop
  }}
}}""")
    try:
        yield
        lost = int(re.search(r"counter packets (\d+)", nft(hearer, "list", "ruleset"))[1])
    finally:
        nft(hearer, "delete", "table", "inet", "nemesis")
    if lost == 0:
        raise AssertionError("no packet was lost: this run says nothing")


def both_ways(one, other):
    return ((one, other), (other, one))


class Partitions(Nemesis):
    compute_time = "10ms"

    def cluster(self, table, *flags):
        cluster = Cluster(self.folder, table, *OPEN, *flags)
        cluster.hosts = [address(SHARD + shard) for shard in range(SHARDS)]
        cluster.enter = [on_host(SHARD + shard) for shard in range(SHARDS)]
        self.addCleanup(cluster.end)
        for shard in range(SHARDS):
            cluster.start(shard)
        return cluster

    def start_worker(self, cluster, model, worker, *flags):
        command = millrace("train", *self.train_flags(cluster, model, worker), *flags)
        return subprocess.Popen([*on_host(WORKER + worker), *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def job(self, cluster, shard):
        return cluster.status(shard)["jobs"][0]

    def waits_for_worker(self, cluster, shard, worker):
        """Whether the shard has not heard the worker for some time, and is blocked on it alone."""
        job = self.job(cluster, shard)
        silent = {member["worker"]: member["silent_ms"] for member in job["members"]}
        return job["blocked_on"] == [worker] and silent[worker] >= SILENT_MS


class WorkersAndShards(Partitions):
    ways = both_ways(SHARD + 1, WORKER + 1)

    def test_AShardAndAWorkerOfWhichOneIsDeafLoseNothing(self):
        """The job waits until both hear each other again."""
        cluster = self.cluster(self.folder / "table.db")
        for hearer, speaker in self.ways:
            with self.subTest(hearer=hearer, speaker=speaker):
                workers = self.begin(cluster, *PATIENT)
                with deaf(hearer, speaker):
                    cluster.wait_for(lambda: self.waits_for_worker(cluster, 1, 1), "shard 1 is not blocked on worker 1")
                self.same_model(workers)

    def test_AWorkerThatAShardMissesForTooLongEndsTheJobForAll(self):
        """With --workers-min of all workers the job ends after --dead-after, with one code. Then its name is free."""
        cluster = self.cluster(self.folder / "table.db")
        for hearer, speaker in self.ways:
            with self.subTest(hearer=hearer, speaker=speaker):
                workers = self.begin(cluster, *IMPATIENT, "--workers-min", WORKERS)
                with deaf(hearer, speaker):
                    self.ended_alike(workers, 8, "ended the job: .*worker")
                self.same_model(self.begin(cluster))

    def test_WithoutAMinimumOfWorkersTheOtherOneContinues(self):
        """It ends with code 8, since a worker is missing. A reproducible job takes none back: the evicted worker ends with code 5."""
        cluster = self.cluster(self.folder / "table.db")
        workers = self.begin(cluster, *IMPATIENT)
        with deaf(*self.ways[0]):
            code, sentence = self.ended(workers[0])
            self.assertEqual(code, 8, sentence)
            self.assertIn("without 1 of its 2 workers", sentence)
            code, sentence = self.ended(workers[1])
            self.assertEqual(code, 5, sentence)
            self.assertRegex(sentence, "was removed from the job|is not a member of job")


class ShardsAndShards(Partitions):
    select = ("--select", "topk:0.01", "--reselect", "topk:8")

    def test_ShardsOfWhichOneIsDeafLoseNothing(self):
        """A reproducible job that re-selects waits for the other shard's magnitudes, and the shard names it."""
        cluster = self.cluster(self.folder / "table.db")
        for hearer, speaker in both_ways(0, 1):
            with self.subTest(hearer=hearer, speaker=speaker):
                workers = self.begin(cluster, *PATIENT, *self.select)
                with deaf(SHARD + hearer, SHARD + speaker):
                    cluster.wait_for(lambda: self.waits_for_shard(cluster, hearer, speaker), f"shard {hearer} does not wait for shard {speaker}")
                self.same_model(workers, *self.select)

    def waits_for_shard(self, cluster, shard, other):
        job = self.job(cluster, shard)
        return (job["waiting_for"], job["waiting_shards"]) == ("magnitudes", [other]) and job["waiting_ms"] >= SILENT_MS


@unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
class ShardsAndTheTable(Partitions):
    compute_time = "40ms"  # the job continues without the table: it must outlast a lease and the spare's start

    def etcd(self):
        etcd = etcd_members.Members(self.folder, 1, host=address(TABLE), enter=on_host(TABLE))
        self.addCleanup(etcd.end)
        etcd.leader()
        return etcd

    def test_AShardAndItsTableOfWhichOneIsDeafLoseNothing(self):
        """The job continues without the table, and the shard reports that no member of etcd answers."""
        etcd = self.etcd()
        cluster = self.cluster(etcd.table("/table"))
        for hearer, speaker in both_ways(TABLE, SHARD + 1):
            with self.subTest(hearer=hearer, speaker=speaker):
                workers = self.begin(cluster, *PATIENT)
                with deaf(hearer, speaker):
                    cluster.wait_for(lambda: "no member has answered" in cluster.status(1).get("table_error", ""), "shard 1 does not report that etcd is away")
                    cluster.wait_for_steps(20)
                self.same_model(workers)

    def test_ASpareTakesTheNumberOfAShardThatItsTableDoesNotHear(self):
        """Both processes of the number hear the workers meanwhile. The spare's steps count, and the other one ends."""
        etcd = self.etcd()
        for number, (hearer, speaker) in enumerate(both_ways(TABLE, SHARD + 1)):
            with self.subTest(hearer=hearer, speaker=speaker):
                cluster = self.cluster(etcd.table(f"/spare-{number}"))
                spare = cluster.start_spare(*OPEN, host=address(SPARE), enter=on_host(SPARE))
                workers = self.begin(cluster, *PATIENT)
                before = cluster.processes[1]
                self.addCleanup(self.end_workers, [before])
                with deaf(hearer, speaker):
                    cluster.becomes(spare, 1)
                    cluster.wait_for(lambda: cluster.status(1)["jobs"], "the workers do not find the spare")
                self.same_model(workers)
                self.assertEqual(before.wait(timeout=TIMEOUT_S), 5)
                cluster.end()


def on_hosts():
    """Runs this script again on a host of its own, beside those of the processes. Returns its exit code."""
    again = f'exec "$0" exec "$NETLAB_PREFIX" {TEST} -- "$@"'
    return subprocess.run([NETLAB, "run", str(HOSTS), "none", "--", "bash", "-c", again, NETLAB, sys.executable, __file__, *ARGUMENTS], check=False).returncode


def skip_reason():
    if not shutil.which("nft"):
        return "'nft' is missing: run deploy/setup.sh (package nftables)"
    able = subprocess.run([NETLAB, "check"], capture_output=True, text=True, check=False)
    if able.returncode:
        return able.stderr.strip()
    table = 'ip netns exec "$NETLAB_PREFIX-1" nft add table inet nemesis'
    able = subprocess.run([NETLAB, "run", "1", "none", "--", "bash", "-c", table], capture_output=True, text=True, check=False)
    return f"the kernel has no nf_tables: {able.stderr.strip()}" if able.returncode else None


if __name__ == "__main__":
    if PREFIX:
        unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
    reason = skip_reason()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    sys.exit(on_hosts())
