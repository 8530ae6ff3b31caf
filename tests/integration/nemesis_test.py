#!/usr/bin/env python3
"""Nemeses of a training besides kills: stopped processes, a clock that jumps, damaged or lost tables and saves.

    nemesis_test.py FOLDER_OF_PROGRAMS CLOCK_SHIFT_LIBRARY [--thorough] [--seed N] [unittest arguments]

Each test states what must hold in its first sentence. In all of them a job yields the model of an undisturbed run, bit
for bit, or its workers end with a sentence. nemesis_host_test.py has a full disk, which needs root.
"""

import contextlib
import json
import os
import re
import signal
import sqlite3
import struct
import sys
import time
import unittest
from datetime import datetime
from pathlib import Path
from unittest import mock

from commands import TIMEOUT_S, start
from nemeses import CHOSEN, DEAD_AFTER_S, SHARD_LIMITS, SHORT_LIMITS, Nemesis, damage, log_of
from shards_by_hand import SHARDS, WORKERS

CLOCK_SHIFT = sys.argv.pop(1) if len(sys.argv) > 1 else ""
HOUR_S = 3600


class Stops(Nemesis):
    """SIGSTOP and SIGCONT."""

    compute_time = "20ms"

    def test_AShardThatResumesInTimeLosesNothing(self):
        """A shard that stops for longer than dead_after, and shorter than shard_silence, changes no bit."""
        cluster = self.cluster(self.folder / "stop.db")
        workers = self.begin(cluster, "--dead-after", f"{DEAD_AFTER_S}s", "--heartbeat", "200ms", "--shard-silence", "10m")
        cluster.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(1.2 * DEAD_AFTER_S)
        self.assertTrue(all(worker.poll() is None for worker in workers), "the job ended before the stop did")
        cluster.processes[1].send_signal(signal.SIGCONT)
        self.same_model(workers)

    def test_AShardThatStopsForTooLongEndsTheJobAndServesTheNextOne(self):
        """After shard_silence the workers end with code 8 and name the shard; it serves the next job once it continues."""
        cluster = self.cluster(self.folder / "stop.db")
        workers = self.begin(cluster, *SHORT_LIMITS)
        cluster.processes[1].send_signal(signal.SIGSTOP)
        for worker in workers:
            code, sentence = self.ended(worker)
            self.assertEqual(code, 8, sentence)
            self.assertIn("shard 1", sentence)
        cluster.processes[1].send_signal(signal.SIGCONT)
        self.same_model(self.begin(cluster))

    def test_AStoppedWorkerIsEvictedAndDoesNotRejoin(self):
        """The other worker finishes and reports that one is missing; the evicted one ends with a sentence."""
        cluster = self.cluster(self.folder / "stop.db")
        workers = self.begin(cluster, *SHORT_LIMITS)
        workers[1].send_signal(signal.SIGSTOP)
        code, sentence = self.ended(workers[0])
        self.assertEqual(code, 8, sentence)
        self.assertIn("without 1 of its 2 workers", sentence)
        workers[1].send_signal(signal.SIGCONT)
        _, sentence = self.ended(workers[1])
        self.assertRegex(sentence, "not a member|was removed|has ended|shard")


class ShiftedClock:
    """A process's own wall clock: the file of its shift, and the variables that it starts with (clock_shift.cc)."""

    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(8))
        self.variables = {"CLOCK_SHIFT_FILE": str(path), "LD_PRELOAD": CLOCK_SHIFT}

    def jump(self, seconds):
        """Moves the clock to `seconds` from the real time."""
        with open(self.path, "r+b") as file:
            file.write(struct.pack("=q", seconds))

    def is_used_by(self, process):
        return str(self.path) in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")


@unittest.skipUnless(CLOCK_SHIFT, "no library that shifts a process's clock was given")
class Clocks(Nemesis):
    """Wall clocks jump, each process's by itself."""

    compute_time = "10ms"

    def setUp(self):
        super().setUp()
        self.clocks = {(kind, number): ShiftedClock(self.folder / f"shift-{kind}-{number}")
                       for kind, count in (("shard", SHARDS), ("worker", WORKERS)) for number in range(count)}

    def start_worker(self, cluster, model, worker, *flags):
        clock = self.clocks["worker", worker] if model.name == "disturbed" else None
        with mock.patch.dict(os.environ, clock.variables if clock else {}):
            return super().start_worker(cluster, model, worker, *flags)

    def test_WallClocksThatJumpApartByHoursChangeNothing(self):
        """Leases, time limits and steps take monotonic clocks: a jump of one shard or one worker changes no bit."""
        cluster = self.own_cluster(self.folder / "clock.db")
        cluster.enter = [["env", *(f"{name}={value}" for name, value in self.clocks["shard", shard].variables.items())] for shard in range(SHARDS)]
        for shard in range(SHARDS):
            cluster.start(shard)
        workers = self.begin(cluster)
        processes = [*cluster.processes, *workers]
        for process, clock in zip(processes, self.clocks.values()):
            cluster.wait_for(lambda process=process, clock=clock: clock.is_used_by(process), f"{clock.path.name} has no effect")
        # One process an hour ahead of the others, then behind them; at the end no two clocks agree.
        for clock in self.clocks.values():
            for seconds in (HOUR_S, -HOUR_S):
                clock.jump(seconds)
                cluster.wait_for_steps(10)
            clock.jump(0)
        for hours, clock in enumerate(self.clocks.values(), start=-len(self.clocks)):
            clock.jump(hours * HOUR_S)
        cluster.wait_for_steps(20)
        cluster.kill(1)
        cluster.start(1)
        self.same_model(workers)
        # Two starts: one before the jumps, one hours in the past.
        times = [datetime.fromisoformat(at) for at in re.findall(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", log_of(cluster, 1))]
        self.assertLess((min(times) - times[0]).total_seconds(), -2 * HOUR_S, "the log shows no jump: the library had no effect")


class LostTables(Nemesis):
    """The membership table is gone, with all that it had."""

    def lose(self, path):
        for part in path.parent.glob(path.name + "*"):
            part.unlink()

    def test_AJobWhoseMembersStayNeedsNoTable(self):
        """A table's file that is removed during a job changes no bit, and the shards' log says what to do."""
        table = self.folder / "table.db"
        cluster = self.cluster(table)
        workers = self.begin(cluster)
        self.lose(table)
        self.same_model(workers)
        for shard in range(2):
            self.assertIn("the file was removed or replaced", log_of(cluster, shard))

    def test_AShardThatStartsWithANewTableEndsTheJobsOfTheOldOne(self):
        """Workers of the lost table's job end with a sentence. After a restart of all shards the next job trains."""
        table = self.folder / "table.db"
        cluster = self.cluster(table)
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
        cluster = self.cluster(table)
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
        cluster = self.cluster(table)
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
        self.model_path = self.folder / "stored.model"
        self.store = self.cluster(self.folder / "store.db", "--store-dir", self.saves)

    def store_workers(self, *flags, job="stored"):
        running = [start("train", "--servers", self.store.servers(), "--job", job, "--worker", worker, "--workers", WORKERS, "--train",
                         self.folder / "rows.svm", "--batch", 2, "--store", "adagrad:0.5", "--audit", "--json", "-o", self.model_path, *flags)
                   for worker in range(WORKERS)]
        self.addCleanup(self.end_workers, running)
        return running

    def trained(self, *flags, job="stored"):
        """Trains an epoch to its end, with no value lost or counted twice. Returns the bytes of the model."""
        for worker in self.store_workers("--epochs", 1, *flags, job=job):
            out, err = worker.communicate(timeout=TIMEOUT_S)
            self.assertEqual(worker.returncode, 0, err)
            self.assertEqual(json.loads(out.strip().split("\n")[-1])["audit"]["imbalance"], 0, out)
        model = self.model_path.read_bytes()
        self.model_path.unlink()
        return model

    def begin_saved(self):
        """Starts workers whose shards save once, after some steps. Returns the workers, some steps later."""
        workers = self.store_workers("--epochs", 20, "--compute-time", self.compute_time)
        self.store.wait_for(lambda: self.store.status(0)["jobs"] and self.store.status(1)["jobs"], "the job does not begin")
        self.store.wait_for_steps(20)
        for process in self.store.processes:
            process.send_signal(signal.SIGUSR2)
        self.store.wait_for(lambda: len(self.files()) == SHARDS, "the store is not saved")
        self.store.wait_for_steps(20)
        return workers

    def files(self):
        return sorted(self.saves.glob("*.store"))

    def file(self, shard, job="stored"):
        (path,) = self.saves.glob(f"{job}-*.shard-{shard}.store")
        return path

    def copies(self):
        return {path: path.read_bytes() for path in self.files()}

    def put_back(self, copies):
        """Ends the shards, so that no save of theirs is under way, and starts them with these saves alone.

        The table is new: a job of a late Hello (R11d) may have a member whose process is gone.
        """
        self.store.end()
        for part in self.folder.glob("store.db*"):
            part.unlink()
        for path in self.saves.iterdir():
            path.unlink()
        for path, data in copies.items():
            path.write_bytes(data)
        for shard in range(SHARDS):
            self.store.start(shard)


class DamagedRecords(Nemesis):
    """A job's record in the table of killed shards is damaged."""

    epochs = 50  # the job is not over before the kills, on a busy machine too

    def test_NoJobContinuesFromADamagedRecord(self):
        """Of a flipped bit or a missing end the workers hear: they end with code 6 and name the record. The shards run."""
        for name, damaged in (("a bit", self.flipped), ("the end", lambda record: record[:-1])):
            with self.subTest(name):
                table = self.folder / f"{name}.db"
                cluster = self.cluster(table)
                workers = self.begin(cluster)
                for shard in range(SHARDS):
                    cluster.kill(shard)
                with contextlib.closing(sqlite3.connect(table)) as database, database:
                    ((record,),) = database.execute("SELECT record FROM jobs").fetchall()
                    database.execute("UPDATE jobs SET record = ?", (damaged(record),))
                for shard in range(SHARDS):
                    cluster.start(shard)
                self.ended_alike(workers, 6, "a job's record is damaged")
                cluster.end()

    def flipped(self, record):
        """Returns the record with a bit flipped behind the version."""
        at = self.draw.randrange(2, len(record))
        return record[:at] + bytes([record[at] ^ 1 << self.draw.randrange(8)]) + record[at + 1:]


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


class DamagedSaves(StoreJobs):
    """A save has a flipped bit, lacks its end, or is another one's. No job continues with it, and its copy works."""

    def flipped(self, data, at):
        return data[:at] + bytes([data[at] ^ 1 << self.draw.randrange(8)]) + data[at + 1:]

    def damages(self, copies, shard):
        """Returns bytes in place of the shard's save, with the workers' exit code and words of their sentence."""
        data = copies[self.file(shard)]
        name = data.index(b"stored")
        refused = {
            "in the magic": (self.flipped(data, 0), 6, "it does not begin as one"),
            "in the version": (data[:7] + bytes([data[7] ^ 1]) + data[8:], 5, "of a version that this build does not read"),
            "in a length": (self.flipped(data, 9), 6, "is damaged"),
            "in the name": (self.flipped(data, name), 6, "a checksum does not fit"),
            "in the last weight": (self.flipped(data, len(data) - 40), 6, "a checksum does not fit"),
            "in the last byte": (self.flipped(data, len(data) - 1), 6, "a checksum does not fit"),
            "half of it": (data[:len(data) // 2], 6, "it is cut off"),
            "without its last byte": (data[:-1], 6, "it is cut off"),
            "empty": (b"", 6, "it is too short"),
            "of the other shard": (copies[self.file(1 - shard)], 5, f"it is of shard {1 - shard} of 2, this is shard {shard} of 2"),
            "of another job": (copies[self.file(shard, "other")], 5, "its name is 'other'"),
        }
        for number in range(40 if CHOSEN.thorough else 2):
            refused[f"at random {number}"] = (damage(data, self.draw), 6, "the save is damaged")
        return refused

    def test_AJobDoesNotBeginWithADamagedSave(self):
        """Its workers end with one code and a sentence, and write no model. With the copy the next job trains."""
        self.trained()
        self.trained(job="other")
        self.store.end()
        copies = self.copies()
        self.put_back(copies)
        expected = self.trained("--store-begin", "saved")
        self.assertNotEqual(expected, self.trained())
        for shard in range(SHARDS):
            for place, (data, code, words) in self.damages(copies, shard).items():
                with self.subTest(shard=shard, place=place):
                    self.put_back(copies | {self.file(shard): data})
                    workers = self.store_workers("--store-begin", "saved")
                    self.ended_alike(workers, code, words)
                    self.assertFalse(self.model_path.exists())
            self.store.end()
            self.assertEqual(self.file(shard).read_bytes(), data, "the damaged save stays")
            self.put_back(copies)
            self.assertEqual(self.trained("--store-begin", "saved"), expected)

    def test_AKilledShardDoesNotContinueFromADamagedSave(self):
        """The workers' sentence names part and file. Each run from the copies of one moment makes the same model."""
        workers = self.begin_saved()
        self.store.kill(1)
        copies = self.copies()
        data = copies[self.file(1)]
        self.file(1).write_bytes(self.flipped(data, len(data) // 2))
        self.store.start(1)
        self.ended_alike(workers, 6, "the weights that shard 1 held of part [0-9]+ are lost", f"the save is damaged.*{self.file(1).name}")
        self.assertIn("its save is not used: the save is damaged", log_of(self.store, 1))
        models = set()
        for _ in range(2):
            self.put_back(copies)
            models.add(self.trained("--store-begin", "saved"))
        self.assertEqual(len(models), 1)


class LostReplicas(StoreJobs):
    """All copies of a part are gone."""

    def test_AMissingSaveEndsTheJobAndTheErrorNamesThePart(self):
        """No process has the weights of the killed shard's parts: the workers' sentence names shard and part."""
        workers = self.begin_saved()
        self.store.kill(1)
        self.file(1).unlink()
        self.store.start(1)
        self.ended_alike(workers, 6, "the weights that shard 1 held of part [0-9]+ are lost")
        self.assertEqual(len(self.files()), SHARDS - 1, "what shard 0 had saved stays")

    def test_AJobWhoseWorkersAreAllGoneEndsAndItsNameIsFree(self):
        """Without a state of any worker a job is lost: the shards end it after --abandon-after, and serve the next."""
        cluster = self.cluster(self.folder / "gone.db", *SHARD_LIMITS)
        workers = self.begin(cluster, *SHORT_LIMITS)
        self.end_workers(workers)
        cluster.wait_for(lambda: not cluster.status(0)["jobs"] and not cluster.status(1)["jobs"], "the job does not end")
        self.assertIn("no worker has been heard for long", log_of(cluster, 0) + log_of(cluster, 1))
        self.same_model(self.begin(cluster))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
