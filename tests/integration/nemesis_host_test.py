#!/usr/bin/env python3
"""Nemeses of a training that need root: a full disk of saves or of the membership table.

    nemesis_host_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Disks are mounts of this test's own namespace. Exits 77 (skipped, for ctest) where it cannot mount.
"""

import os
import shutil
import signal
import subprocess
import sys
import unittest

INSIDE = "NEMESIS_INSIDE"  # set where the script may mount
if INSIDE not in os.environ:
    ARGUMENTS = sys.argv[1:]

from commands import TIMEOUT_S, millrace, start
from nemeses import Nemesis, log_of
from shards_by_hand import SHARDS, WORKERS

DISK_BYTES = 1 << 20


class Disk:
    """A small file system that a test fills and frees."""

    def __init__(self, test, path):
        self.path, self.filler = path, path / "filler"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "nemesis", path], check=True)
        test.addCleanup(subprocess.run, ["umount", "-l", path], check=True)

    def fill(self):
        with open(self.filler, "wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass

    def free(self):
        self.filler.unlink()


class FullDisks(Nemesis):
    def test_AFullDiskOfSavesKeepsTheSaveBefore(self):
        """A save that fails leaves the one before whole, the log names file and reason, and a later one succeeds."""
        disk = Disk(self, self.folder / "disk")
        cluster = self.cluster(self.folder / "table.db", "--store-dir", disk.path)
        model = self.folder / "disturbed"
        flags = ["--servers", cluster.servers(), "--job", "stored", "--train", self.folder / "rows.svm", "--batch", 2, "--epochs", 20, "--store",
                 "adagrad:0.5", "--compute-time", "4ms", "-o", model]
        worker = subprocess.Popen(millrace("train", *flags), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end_workers, [worker])
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        cluster.wait_for_steps(5)

        def save_now():
            for process in cluster.processes:
                process.send_signal(signal.SIGUSR2)

        def saves():
            return {path.name: path.read_bytes() for path in disk.path.glob("*.store")}

        save_now()
        cluster.wait_for(lambda: len(saves()) == SHARDS, "the store is not saved")
        before = saves()
        disk.fill()
        cluster.wait_for_steps(5)
        save_now()
        cluster.wait_for(lambda: all("No space left on device" in log_of(cluster, shard) for shard in range(SHARDS)), "no shard reports the full disk")
        self.assertEqual(saves(), before)
        disk.free()
        cluster.wait_for_steps(5)
        save_now()
        cluster.wait_for(lambda: all(saves()[name] != data for name, data in before.items()), "no save takes the place of the one before")
        self.assertIsNone(worker.poll(), "the job outlasts the saves")

    def test_AFullDiskOfTheTableKeepsNewJobsWaiting(self):
        """Workers of a new job try again until there is room, and train. A job whose members stay changes no bit."""
        disk = Disk(self, self.folder / "disk")
        cluster = self.cluster(disk.path / "table.db")
        workers = self.begin(cluster)
        disk.fill()
        newcomers = []
        for worker in range(WORKERS):
            flags = [*self.train_flags(cluster, self.folder / "next", worker), "--connect-timeout", f"{TIMEOUT_S}s"]
            flags[flags.index("--job") + 1] = "next"
            newcomers.append(start("train", *flags))
        self.addCleanup(self.end_workers, newcomers)

        def refused():
            return [one for shard in range(SHARDS) for one in cluster.status(shard)["refusals"] if one["job"] == "next"]

        cluster.wait_for(lambda: any(one["count"] > 1 for one in refused()), "no worker of the new job is refused twice")
        self.assertRegex(refused()[0]["sentence"], "disk is full")
        cluster.wait_for(lambda: "disk is full" in (cluster.status(0)["table_error"] or ""), "shard 0 has no trouble")
        self.assertEqual([worker.poll() for worker in newcomers], [None] * WORKERS, "workers of the new job do not wait")
        for worker in workers:  # their ends need no table
            self.assertEqual(worker.wait(TIMEOUT_S), 0)
        disk.free()
        self.same_model(workers)
        self.assertEqual(self.model(newcomers, self.folder / "next"), self.undisturbed())


def beside_mounts():
    """Runs this script again where it may mount. Returns its exit code."""
    return subprocess.run(["unshare", "--mount", sys.executable, __file__, *ARGUMENTS], env={**os.environ, INSIDE: "yes"}, check=False).returncode


def skip_reason():
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "mounts need root and util-linux"
    able = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return able.stderr.strip() if able.returncode else None


if __name__ == "__main__":
    if INSIDE in os.environ:
        unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
    reason = skip_reason()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    sys.exit(beside_mounts())
