#!/usr/bin/env python3
"""Nemeses of a training besides kills: stopped processes, a clock that jumps, a damaged or lost table, lost saves.

    nemesis_test.py FOLDER_OF_PROGRAMS CLOCK_SHIFT_LIBRARY [--thorough] [--seed N] [unittest arguments]

Each test states what must hold in its first sentence. In all of them a job yields the model of an undisturbed run, bit
for bit, or its workers end with a sentence. nemesis_host_test.py has a full disk, which needs root.
"""

import contextlib
import os
import re
import signal
import sqlite3
import struct
import sys
import time
import unittest
from datetime import datetime
from unittest import mock

from commands import start
from nemeses import CHOSEN, SHARD_LIMITS, SHORT_LIMITS, Nemesis, damage, log_of
from shards_by_hand import SHARDS, WORKERS

CLOCK_SHIFT = sys.argv.pop(1) if len(sys.argv) > 1 else ""
HOUR_S = 3600


@unittest.skipUnless(CHOSEN.thorough, "its time limits are too short for a busy machine (--thorough)")
class Stops(Nemesis):
    """SIGSTOP and SIGCONT."""

    def test_AStoppedShardThatGoesOnInTimeLosesNothing(self):
        """A shard that stops for longer than dead_after, and shorter than shard_silence, changes no bit."""
        cluster = self.cluster(self.folder / "stop.db", *SHARD_LIMITS)
        workers = self.begin(cluster, "--dead-after", "1s", "--heartbeat", "200ms", "--shard-silence", "60s")
        cluster.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        cluster.processes[1].send_signal(signal.SIGCONT)
        self.same_model(workers)

    def test_AShardThatStopsForTooLongEndsTheJobAndServesTheNextOne(self):
        """After shard_silence the workers end with code 8 and name the shard; it serves the next job once it continues."""
        cluster = self.cluster(self.folder / "stop.db", *SHARD_LIMITS)
        workers = self.begin(cluster, *SHORT_LIMITS)
        cluster.processes[1].send_signal(signal.SIGSTOP)
        for worker in workers:
            code, sentence = self.ended(worker)
            self.assertEqual(code, 8, sentence)
            self.assertIn("shard 1", sentence)
        cluster.processes[1].send_signal(signal.SIGCONT)
        self.same_model(self.begin(cluster))

    def test_AStoppedWorkerIsEvictedAndDoesNotComeBack(self):
        """The other worker finishes and reports that one is missing; the evicted one ends with a sentence."""
        cluster = self.cluster(self.folder / "stop.db", *SHARD_LIMITS)
        workers = self.begin(cluster, *SHORT_LIMITS)
        workers[1].send_signal(signal.SIGSTOP)
        code, sentence = self.ended(workers[0])
        self.assertEqual(code, 8, sentence)
        self.assertIn("without 1 of its 2 workers", sentence)
        workers[1].send_signal(signal.SIGCONT)
        _, sentence = self.ended(workers[1])
        self.assertRegex(sentence, "not a member|was removed|has ended|shard")


@unittest.skipUnless(CLOCK_SHIFT, "no library that shifts a process's clock was given")
class Clocks(Nemesis):
    """One process's wall clock jumps."""

    def test_AWallClockThatJumpsByAnHourChangesNothing(self):
        """Leases, time limits and steps take monotonic clocks: a jump of a shard or a worker changes no bit."""
        shift = self.folder / "shift"
        shift.write_bytes(bytes(8))

        def jump(seconds):
            with open(shift, "r+b") as file:
                file.write(struct.pack("=q", seconds))

        with mock.patch.dict(os.environ, CLOCK_SHIFT_FILE=str(shift), LD_PRELOAD=CLOCK_SHIFT):
            cluster = self.cluster(self.folder / "clock.db", *SHARD_LIMITS)
            workers = self.begin(cluster)
            for seconds in (HOUR_S, -HOUR_S):
                jump(seconds)
                cluster.wait_for_steps(50)
            cluster.kill(1)
            cluster.start(1)
        self.same_model(workers)
        # Two starts: one before the jumps, one an hour in the past.
        times = [datetime.fromisoformat(at) for at in re.findall(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", log_of(cluster, 1))]
        self.assertLess((min(times) - times[0]).total_seconds(), -HOUR_S / 2, "the log shows no jump: the library had no effect")


class LostTables(Nemesis):
    """The membership table is gone, with all that it had."""

    def lose(self, path):
        for part in path.parent.glob(path.name + "*"):
            part.unlink()

    def test_AJobWhoseMembersStayNeedsNoTable(self):
        """A table's file that is removed during a job changes no bit, and the shards' log says what to do."""
        table = self.folder / "table.db"
        cluster = self.cluster(table, *SHARD_LIMITS)
        workers = self.begin(cluster)
        self.lose(table)
        self.same_model(workers)
        for shard in range(2):
            self.assertIn("the file was removed or replaced", log_of(cluster, shard))

    def test_AShardThatStartsWithANewTableEndsTheJobsOfTheOldOne(self):
        """Workers of the lost table's job end with a sentence. After a restart of all shards the next job trains."""
        table = self.folder / "table.db"
        cluster = self.cluster(table, *SHARD_LIMITS)
        workers = self.begin(cluster)
        self.lose(table)
        cluster.kill(1)
        cluster.start(1)
        said = [self.ended(worker)[1] for worker in workers]
        self.assertIn("has ended", "\n".join(said))
        cluster.kill(0)
        cluster.start(0)
        self.same_model(self.begin(cluster))


    def test_AWorkerOfTheLostTableDoesNotEnterTheNextJobOfItsName(self):
        """A worker that was stopped during the loss ends with a sentence, and changes no bit of the job of its name."""
        table = self.folder / "table.db"
        cluster = self.cluster(table, *SHARD_LIMITS)
        workers = self.begin(cluster, "--shard-silence", "600s")
        workers[1].send_signal(signal.SIGSTOP)
        for shard in range(SHARDS):
            cluster.kill(shard)
        self.lose(table)
        for shard in range(SHARDS):
            cluster.start(shard)
        self.assertIn("has ended", self.ended(workers[0])[1])
        next_workers = self.begin(cluster)
        workers[1].send_signal(signal.SIGCONT)
        self.assertIn("has ended", self.ended(workers[1])[1])
        self.same_model(next_workers)

    def test_AShardWhoseRowIsDamagedDoesNotStart(self):
        """A flipped bit in its count of starts would give an incarnation again: the start names the row."""
        table = self.folder / "table.db"
        cluster = self.cluster(table, *SHARD_LIMITS)
        cluster.kill(1)
        with contextlib.closing(sqlite3.connect(table)) as database, database:
            self.assertEqual(database.execute("UPDATE shards SET life = 0 WHERE shard = 1").rowcount, 1)
        self.assertIn("row of shard 1 is damaged", cluster.try_to_start(1))
        self.assertEqual(cluster.processes[1].wait(), 3)


class StoreJobs(Nemesis):
    """A job whose weights the shards hold, with a folder of saves."""

    def setUp(self):
        super().setUp()
        self.saves = self.folder / "saves"
        self.saves.mkdir()
        self.store = self.cluster(self.folder / "store.db", *SHARD_LIMITS, "--store-dir", self.saves)

    def store_workers(self, *flags):
        model = self.folder / "stored.model"
        running = [start("train", "--servers", self.store.servers(), "--job", "stored", "--worker", worker, "--workers", WORKERS, "--train",
                         self.folder / "rows.svm", "--batch", 2, "--store", "adagrad:0.5", "--json", "-o", model, *flags)
                   for worker in range(WORKERS)]
        self.addCleanup(self.end_workers, running)
        return running

    def files(self):
        return sorted(self.saves.glob("*.store"))


@unittest.skipUnless(CHOSEN.thorough, "its time limits are too short for a busy machine (--thorough)")
class DamagedTables(Nemesis):
    """The table of killed shards has a flipped bit, or lacks its end."""

    def statement(self, sql):
        def change(table):
            with contextlib.closing(sqlite3.connect(table)) as database, database:
                self.assertEqual(database.execute(sql).rowcount, 1)
        return change

    def wal(self, table):
        path = table.with_name(table.name + "-wal")
        path.write_bytes(damage(path.read_bytes(), self.draw))

    def survives(self, change):
        """Kills all shards of a job, damages the table, and starts them. Each runs, or ends with a sentence."""
        table = self.folder / "flipped.db"
        cluster = self.cluster(table, *SHARD_LIMITS)
        workers = self.begin(cluster, *SHORT_LIMITS)
        for shard in range(SHARDS):
            cluster.kill(shard)
        change(table)
        refused = [cluster.try_to_start(shard) for shard in range(SHARDS)]
        self.same_model_or_sentences(workers)
        for process, sentence in zip(cluster.processes, refused):
            ended = process.poll()
            self.assertTrue(ended in (3, 5, 6) and sentence if sentence else ended is None, (ended, sentence))
        cluster.end()
        for part in self.folder.glob("flipped.db*"):
            part.unlink()
        return refused

    def test_RecordsAddressesAndTheLog(self):
        """A record's last byte, an address, and random bits of the write-ahead log."""
        self.survives(self.statement("UPDATE jobs SET record = substr(record, 1, length(record) - 1) || x'00'"))
        self.survives(self.statement("UPDATE shards SET address = 'tcp://127.0.0.1:1' WHERE shard = 1"))
        for _ in range(4):
            self.survives(self.wal)


class LostReplicas(StoreJobs):
    """All copies of a part are gone."""

    def test_AShardWithoutItsSaveEndsTheJobWithWhatIsLost(self):
        """No process has the weights of the killed shard's parts: the workers' sentence names shard and part."""
        workers = self.store_workers("--epochs", 20, "--compute-time", "4ms")
        self.store.wait_for(lambda: self.store.status(0)["jobs"] and self.store.status(1)["jobs"], "the job does not begin")
        self.store.wait_for_steps(20)
        for process in self.store.processes:
            process.send_signal(signal.SIGUSR2)
        self.store.wait_for(lambda: len(self.files()) == SHARDS, "the store is not saved")
        self.store.wait_for_steps(20)
        self.store.kill(1)
        for path in self.files():
            if "shard-1" in path.name:
                path.unlink()
        self.store.start(1)
        for worker in workers:
            code, sentence = self.ended(worker)
            self.assertEqual(code, 6, sentence)
            self.assertRegex(sentence, "the weights that shard 1 held of part [0-9]+ are lost")
        self.assertEqual(len(self.files()), SHARDS - 1, "what shard 0 had saved stays")

    @unittest.skipUnless(CHOSEN.thorough, "its time limits are too short for a busy machine (--thorough)")
    def test_AJobWhoseWorkersAreAllGoneEndsAndItsNameIsFree(self):
        """Without a state of any worker a job is lost: the shards end it after --abandon-after, and serve the next."""
        workers = self.begin(self.store, *SHORT_LIMITS)
        for worker in workers:
            worker.kill()
            worker.communicate()
        self.store.wait_for(lambda: not self.store.status(0)["jobs"] and not self.store.status(1)["jobs"], "the job does not end")
        self.assertIn("no worker has been heard for long", log_of(self.store, 0) + log_of(self.store, 1))
        self.same_model(self.begin(self.store))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
