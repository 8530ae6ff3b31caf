#!/usr/bin/env python3
"""`millrace-server --spare`: it takes the number of a shard that is killed, and no step is lost or doubled.

    spare_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import signal
import subprocess
import sys
import unittest

import etcd_members
from commands import PROGRAMS, TIMEOUT_S
from shards_by_hand import ShardsByHand, WithKeys


class SparedCluster(ShardsByHand):
    epochs = 6

    def kill_one_of(self, table):
        """Trains over shards of that table, of which one is killed; the model must be that of an undisturbed run."""
        expected = self.undisturbed()
        cluster = self.cluster(table)
        spare = cluster.start_spare()
        workers = self.workers(cluster, self.folder / "spared", "--compute-time", "10ms")
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        cluster.wait_for_steps(20)
        cluster.kill(1)
        self.assertEqual(cluster.becomes(spare, 1)["incarnation"], 2)
        cluster.wait_for(lambda: cluster.status(1)["jobs"], "the workers do not find the spare")
        cluster.wait_for_steps(20)
        self.assertTrue(all(worker.poll() is None for worker in workers), "the shard was killed during training")
        self.assertEqual(self.model(workers, self.folder / "spared"), expected)


class KeyedSpares(WithKeys, SparedCluster):
    def test_ASpareTakesTheNumberOfAKilledShard(self):
        self.kill_one_of(self.folder / "keyed.db")


class Spares(SparedCluster):
    def test_ASpareTakesTheNumberOfAKilledShard(self):
        self.kill_one_of(self.folder / "spare.db")

    @unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
    def test_ASpareOnEtcdTakesTheNumberOfAKilledShard(self):
        etcd = etcd_members.Members(self.folder, 1)
        self.addCleanup(etcd.end)
        etcd.leader()
        self.kill_one_of(etcd.table())

    def test_TwoSparesTakeTheNumbersOfTwoKilledShards(self):
        cluster = self.cluster(self.folder / "restart.db")
        spares = [cluster.start_spare(), cluster.start_spare()]
        cluster.kill(0)
        cluster.kill(1)
        lines = [json.loads(spare.stdout.readline()) for spare in spares]
        self.assertEqual(sorted((line["shard"], line["incarnation"]) for line in lines), [(0, 2), (1, 2)])

    def test_ASpareWhoseNumberIsTakenBackWaitsAgainByTheSameCommand(self):
        """As under the unit millrace-spare@: the shard's supervisor starts it again, and the spare's starts the spare again."""
        cluster = self.cluster(self.folder / "back.db")
        first = cluster.lines[1]
        spare = cluster.start_spare()
        cluster.kill(1)
        cluster.becomes(spare, 1)
        cluster.lines[1] = first
        cluster.start(1)
        self.assertEqual(cluster.lines[1]["incarnation"], 3)
        spare.communicate(timeout=TIMEOUT_S)
        self.assertEqual(spare.returncode, 5)
        again = cluster.start_spare()
        cluster.kill(1)
        self.assertEqual(cluster.becomes(again, 1)["incarnation"], 4)

    def test_ASpareThatWaitsEndsInOrder(self):
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            cluster = self.cluster(self.folder / "ends.db")
            spare = cluster.start_spare()
            spare.send_signal(signal_number)
            out, _ = spare.communicate(timeout=TIMEOUT_S)
            self.assertEqual((spare.returncode, out), (0, ""))
            cluster.end()

    def test_FlagsThatASpareDoesNotTakeAreRefused(self):
        for more in (["--shard", "1"], ["--shards", "2"], ["--datagrams", "127.0.0.1:0", "--job-keys", str(self.folder)]):
            ended = subprocess.run([PROGRAMS / "millrace-server", "--spare", "--table", self.folder / "table.db", *more], capture_output=True,
                                   text=True, timeout=TIMEOUT_S, check=False)
            self.assertEqual(ended.returncode, 2, ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
