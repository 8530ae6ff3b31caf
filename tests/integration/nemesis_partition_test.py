#!/usr/bin/env python3
"""Nemeses of a training in its network: one process receives no packet of another, which hears it or does not.

    nemesis_partition_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Every process is in a network namespace of its own (deploy/netlab.sh). In all tests a job yields the model of an undisturbed run, bit for
bit, or its workers end with a sentence. Exits 77 (skipped, for ctest) where namespaces cannot be made, or nft is missing.
"""

import contextlib
import re
import signal
import subprocess
import unittest

import etcd_members
from commands import TIMEOUT_S, millrace
from hosts import address, on_host, run_tests
from nemeses import Nemesis
from shards_by_hand import SHARDS, WORKERS, Cluster

MEMBERS = 3  # of etcd
SHARD, WORKER, TABLE = 1, SHARDS + 1, SHARDS + WORKERS + 1  # hosts, of each kind the first
SPARE, HOSTS = TABLE + MEMBERS, TABLE + MEMBERS + 1  # the last one is the test's
OPEN = ("--insecure", "--http-insecure")  # the hosts see each other alone
# No time limit may pass while a busy machine is slow.
PATIENT = ("--heartbeat", "200ms", "--dead-after", "10m", "--shard-silence", "10m")
IMPATIENT = ("--heartbeat", "200ms", "--dead-after", "10s")
SILENT_MS = 2_000


def nft(host, *arguments, rules=None):
    return subprocess.run([*on_host(host), "nft", *arguments], input=rules, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def deaf(hearer, *speakers):
    """The first host receives no packet of the other ones."""
    nft(hearer, "-f", "-", rules=f"""table inet nemesis {{
  chain deaf {{
    type filter hook input priority 0;
    ip saddr {{ {", ".join(map(address, speakers))} }} counter drop
  }}
}}""")
    try:
        yield
        lost = int(re.search(r"counter packets (\d+)", nft(hearer, "list", "ruleset"))[1])
    finally:
        nft(hearer, "delete", "table", "inet", "nemesis")
    if lost == 0:
        raise AssertionError("no packet was lost: this run says nothing")


@contextlib.contextmanager
def unplugged(host):
    """The host neither sends nor receives. Nothing tells the others: no connection is reset."""
    subprocess.run([*on_host(host), "ip", "link", "set", "eth0", "down"], check=True)
    try:
        yield
    finally:
        subprocess.run([*on_host(host), "ip", "link", "set", "eth0", "up"], check=True)


def both_ways(one, other):
    return ((one, other), (other, one))


@contextlib.contextmanager
def paused(worker):
    """Stops the worker, for which its job waits. So the job outlasts the events of a test, however slow they are."""
    worker.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGCONT)


class Partitions(Nemesis):
    compute_time = "10ms"

    def etcd(self, members=1):
        hosts = range(TABLE, TABLE + members)
        etcd = etcd_members.Members(self.folder, members, hosts=[address(host) for host in hosts], enter=[on_host(host) for host in hosts])
        self.addCleanup(etcd.end)
        etcd.leader()
        return etcd

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


    def test_ASpareTakesTheNumberOfAShardWhoseHostIsDown(self):
        """The lease ends, and shard 0 tells the workers the spare's address."""
        cluster = self.cluster(self.etcd().table("/down"))
        spare = cluster.start_spare(*OPEN, host=address(SPARE), enter=on_host(SPARE))
        workers = self.begin(cluster, *PATIENT)
        with unplugged(SHARD + 1):
            cluster.kill(1)
            self.assertEqual(cluster.becomes(spare, 1)["incarnation"], 2)
            cluster.wait_for(lambda: cluster.status(1)["jobs"], "the workers do not find the spare")
            cluster.wait_for_steps(20)
            self.assertEqual([worker.poll() for worker in workers], [None] * WORKERS, "the host was down during training")
            self.same_model(workers)


def cut_from_members(leader, others):
    return [(leader, *others), *((other, leader) for other in others)]


def cut_from_members_and_shards(leader, others):
    return [(leader, *others, SHARD, SHARD + 1), *((other, leader) for other in others)]


def deaf_to_members(leader, others):
    return [(leader, *others)]


@unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
class TheLeaderOfEtcd(Partitions):
    """Three members of etcd, of which the leader is cut off. The shards ask it first, as long as it answers."""

    def test_MembershipsChangeWhileALeaderIsCutAndNothingIsLost(self):
        """The job continues. Another job begins and ends, and a shard starts, by the other members. No number of a start is given twice, neither
        then nor when the old leader is back."""
        etcd = self.etcd(MEMBERS)
        for number, cut in enumerate((cut_from_members, cut_from_members_and_shards, deaf_to_members)):
            with self.subTest(cut=cut.__name__):
                cluster = self.one_with_the_leader_cut(etcd, number, cut)
                cluster.end()

    def one_with_the_leader_cut(self, etcd, number, cut):
        leader = etcd.leader()
        cluster = self.cluster(etcd.table(f"/cut-{number}", first=leader))
        workers = self.begin(cluster, *PATIENT)
        with contextlib.ExitStack() as cuts:
            for hearer, *speakers in cut(TABLE + leader, [TABLE + member for member in range(MEMBERS) if member != leader]):
                cuts.enter_context(deaf(hearer, *speakers))
            cluster.wait_for_steps(20)
            with paused(workers[1]):
                etcd.leader(besides=leader)
                self.train_another(cluster)
                self.start_again(cluster, 1)
            cluster.wait_for_steps(20)
        with paused(workers[1]):
            cluster.wait_for(etcd.agree, "the old leader does not follow the new one")
            self.start_again(cluster, 1)
        cluster.wait_for_steps(20)
        self.assertTrue(all(worker.poll() is None for worker in workers), "the leader was cut off during training")
        self.same_model(workers)
        return cluster

    def train_another(self, cluster):
        """Trains a job of one worker."""
        command = millrace("train", "--servers", cluster.servers(), "--job", "another", "--worker", 0, "--workers", 1, "--train", self.folder / "rows.svm",
                           "--batch", 100, "--epochs", 1, "--lr", 0.5, "--connect-timeout", "3m")
        ended = subprocess.run([*on_host(WORKER), *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def start_again(self, cluster, shard):
        """Kills a shard and starts it. Its process must have a number of its own."""
        before = cluster.lines[shard]["incarnation"]
        cluster.kill(shard)
        cluster.wait_for(lambda: not cluster.try_to_start(shard), f"shard {shard} does not start")
        self.assertGreater(cluster.lines[shard]["incarnation"], before)


if __name__ == "__main__":
    run_tests(__file__, HOSTS, "add table inet nemesis")
