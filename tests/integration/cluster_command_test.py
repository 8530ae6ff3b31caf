#!/usr/bin/env python3
"""`millrace cluster`: status, drain, end and remove, with real processes. All shards are drained in turn while a job trains; the model is, bit for
bit, that of an undisturbed run.

    cluster_command_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import signal
import sys
import unittest

import etcd_members
from commands import TIMEOUT_S, run, start
from shards_by_hand import SHARDS, WORKERS, ShardsByHand, WithKeys


class OperatedCluster(ShardsByHand):
    """A cluster whose shards leave their numbers to spares under load."""

    epochs = 6

    def command(self, name, cluster, *flags, code=0):
        """Runs a subcommand; returns its JSON, or its sentence where it fails."""
        ended = run("cluster", name, *flags, "--table", cluster.table, "--json")
        self.assertEqual(ended.returncode, code, ended.stderr)
        return json.loads(ended.stdout.splitlines()[-1]) if code == 0 else ended.stderr

    def drain(self, cluster, shard):
        """Moves the shard by command; returns the spare's address."""
        moved = self.command("drain", cluster, shard)
        self.assertEqual((moved["shard"], moved["incarnation"]), (shard, 2))
        return moved["to"]

    def stop(self, cluster, shard):
        """Asks the shard's process to end, as `systemctl stop` does."""
        cluster.processes[shard].send_signal(signal.SIGTERM)

    def rolling_restart(self, table, compute_time, leave=drain):
        """All shards leave their numbers in turn. compute_time: the job's 2,000 steps must outlast it, also on a slow machine."""
        expected = self.undisturbed()
        cluster = self.cluster(table, drain="60s")
        model = self.folder / "restarted"
        workers = self.workers(cluster, model, "--compute-time", compute_time)
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        for shard in range(SHARDS):
            cluster.wait_for_steps(20)
            spare = cluster.start_spare()
            cluster.wait_for(lambda: len(self.command("status", cluster)["spares"]) == 1, "the spare is not in the table")
            old = cluster.processes[shard]
            to = leave(self, cluster, shard)
            old.communicate(timeout=TIMEOUT_S)
            self.assertEqual(old.returncode, 0, "a process that leaves its number ends in order")
            new = cluster.becomes(spare, shard)["address"]
            self.assertEqual(to or new, new)
            cluster.wait_for(lambda: cluster.status(shard)["jobs"], "the workers do not find the spare")
        cluster.wait_for_steps(20)
        seen = self.command("status", cluster)
        self.assertEqual([one["state"] for one in seen["shards"]], ["ready"] * SHARDS)
        self.assertEqual([job["name"] for job in seen["jobs"]], ["etcd"])
        self.assertTrue(all(worker.poll() is None for worker in workers), "the shards were drained during training")
        self.assertEqual(self.model(workers, model), expected)
        return cluster


class KeyedRollingRestart(WithKeys, OperatedCluster):
    def test_AllShardsAreDrainedInTurnUnderLoad(self):
        self.rolling_restart(self.folder / "keyed.db", "10ms")


class ClusterCommand(OperatedCluster):
    def test_AllShardsAreStoppedInTurnUnderLoad(self):
        """SIGTERM moves a shard to a spare that waits, as a drain does: no step is lost, and exit code 0."""
        self.rolling_restart(self.folder / "stopped.db", "10ms", OperatedCluster.stop)

    def test_AShardThatDrainsIsAliveAndNotReady(self):
        expected = self.undisturbed()
        cluster = self.cluster(self.folder / "probes.db", drain="60s")
        workers = self.workers(cluster, self.folder / "probes", "--compute-time", "10ms")
        cluster.wait_for_steps(5)
        spare = cluster.start_spare()
        cluster.wait_for(lambda: len(self.command("status", cluster)["spares"]) == 1, "the spare is not in the table")
        cluster.waits_until_unready(self.command("status", cluster)["spares"][0]["http"], "a spare without a number")
        spare.send_signal(signal.SIGSTOP)  # it is in the table, and takes no number
        self.addCleanup(spare.send_signal, signal.SIGCONT)
        asked = start("cluster", "drain", 0, "--table", cluster.table, "--timeout", "5m")
        cluster.waits_until_unready(cluster.lines[0]["http"], "leaves its number to a spare")
        leaving = cluster.processes[0]
        leaving.send_signal(signal.SIGTERM)
        cluster.waits_until_unready(cluster.lines[0]["http"], "shutting down")
        cluster.wait_for_steps(5)
        spare.send_signal(signal.SIGCONT)
        cluster.becomes(spare, 0)
        for process in (asked, leaving):
            process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0)
        self.assertEqual(self.model(workers, self.folder / "probes"), expected)

    def test_AllShardsAreDrainedInTurnUnderLoad(self):
        cluster = self.rolling_restart(self.folder / "rolling.db", "10ms")
        self.assertIn("no spare waits", self.command("drain", cluster, 0, code=5))
        self.assertIn("numbered 0 to 1", self.command("drain", cluster, 2, code=2))
        self.assertIn("leases", self.command("remove", cluster, code=5))
        cluster.end()
        self.assertIn("shards 0, 1 have no process", self.command("status", cluster, code=4))
        self.assertIn("no process", self.command("drain", cluster, 0, code=4))
        self.command("remove", cluster)
        self.assertIn("no shard has started", self.command("status", cluster, code=4))

    def test_AnEndedJobsWorkersHaveTheOperatorsReason(self):
        cluster = self.cluster(self.folder / "ended.db")
        workers = self.workers(cluster, self.folder / "ended", "--compute-time", "10ms")
        cluster.wait_for_steps(5)
        self.assertIn("no job 'other' is open", self.command("end", cluster, "other", code=2))
        self.assertEqual(self.command("end", cluster, "etcd", "--reason", "wrong data"), {"ended": "etcd"})
        for worker in workers:
            _, errors = worker.communicate(timeout=TIMEOUT_S)
            self.assertEqual(worker.returncode, 8, errors)
            self.assertIn("an operator ended the job: wrong data", errors)
        self.assertEqual(self.command("status", cluster)["jobs"], [])
        # The name is free.
        workers = self.workers(cluster, self.folder / "again")
        for worker in workers:
            _, errors = worker.communicate(timeout=TIMEOUT_S)
            self.assertEqual(worker.returncode, 0, errors)

    def test_WorkersThatStartWithTheOldListFindAMovedShard(self):
        """A worker of a running job that is started again, and a new job."""
        for moved in range(SHARDS):
            with self.subTest(moved=moved):
                cluster = self.cluster(self.folder / f"moved-{moved}.db")
                old = cluster.servers()

                def worker(job, number, workers, *flags, old=old):
                    started = start("train", "--servers", old, "--job", job, "--worker", number, "--workers", workers, "--train", self.folder / "rows.svm",
                                    "--batch", 2, *flags)
                    self.addCleanup(started.wait)
                    self.addCleanup(started.kill)
                    return started

                def again(number, worker=worker, moved=moved):
                    return worker("long", number, WORKERS, "--epochs", 60, "--compute-time", "10ms", "--state", self.folder / f"state-{moved}-{number}")

                workers = [again(number) for number in range(WORKERS)]
                cluster.wait_for(lambda folder=self.folder, moved=moved: (folder / f"state-{moved}-1").exists(), "no state is saved")
                spare = cluster.start_spare()
                drained = cluster.processes[moved]
                self.command("drain", cluster, moved)
                drained.communicate(timeout=TIMEOUT_S)
                cluster.becomes(spare, moved)
                late = worker("late", 0, 1, "--epochs", 1)
                _, err = late.communicate(timeout=TIMEOUT_S)
                self.assertEqual(late.returncode, 0, err)
                workers[1].kill()
                workers[1].wait()
                back = again(1)

                def is_back(cluster=cluster, back=back):
                    self.assertIsNone(back.poll(), "the worker that was started again has ended")
                    jobs = [cluster.status(shard)["jobs"] for shard in range(SHARDS)]
                    return all(any(one["incarnation"] > 1 and one["connected"] for one in job["members"]) for of in jobs for job in of if job["name"] == "long")

                cluster.wait_for(is_back, "the worker does not find both shards")
                for process in (workers[0], back):
                    process.kill()

    @unittest.skipUnless(etcd_members.is_here(), "etcd is not installed (deploy/setup.sh --tests)")
    def test_AllShardsOnEtcdAreDrainedInTurnUnderLoad(self):
        etcd = etcd_members.Members(self.folder, 1)
        self.addCleanup(etcd.end)
        etcd.leader()
        cluster = self.rolling_restart(etcd.table(), "20ms")
        status = run("status", "--table", etcd.table(), "--json")
        self.assertEqual(status.returncode, 0, status.stderr)
        cluster.end()
        self.command("remove", cluster)

    def test_AShardWhoseWeightsAreInNoSaveKeepsItsNumber(self):
        cluster = self.cluster(self.folder / "store.db")
        spare = cluster.start_spare()
        workers = [start("train", "--servers", cluster.servers(), "--job", "store", "--worker", worker, "--workers", 2, "--train",
                         self.folder / "rows.svm", "--batch", 2, "--epochs", 50, "--store", "sgd:0.5", "--compute-time", "5ms")
                   for worker in range(2)]
        cluster.wait_for(lambda: cluster.steps(1) > 0 or any(worker.poll() for worker in workers), "the job does not begin")
        self.assertIn("in no save", self.command("drain", cluster, 1, code=5))
        cluster.wait_for_steps(5)
        self.assertIsNone(spare.poll())
        for worker in workers:
            worker.kill()
            worker.communicate()


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
