#!/usr/bin/env python3
"""Two builds in one cluster: shards change from an earlier commit's to this one under load, one after the other. The
earlier one speaks the oldest version of messages that this build takes.

    upgrade_test.py FOLDER_OF_PROGRAMS SOURCE_TREE [unittest arguments]

Builds the earlier commit from this repository's history in build/earlier: some minutes at first. Exits 77 where the
repository has no such commit (a shallow clone, an archive), or none shares a membership table with this build.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(2))

from commands import PROGRAMS, TIMEOUT_S, millrace, run  # pylint: disable=wrong-import-position
from shards_by_hand import ShardsByHand  # pylint: disable=wrong-import-position

# The last commit whose messages have version 2, kProtocolVersionMin. Its job specification, job record and tables have the
# numbers of today. A change after which the two cannot share a job (protocol/wire/versions.md) names a later commit here.
# Empty: there is none yet. The release number may be the same in both: tables of version 3 came after 0.1.0, and with 0.2.0.
EARLIER = "820d02940223f26380c49fc1b6b4214405716648"
FOLDER = SOURCE / "build/earlier" / EARLIER
EARLIER_PROGRAMS = FOLDER / "build/dev/bin"
SKIPPED = 77


def number(folder, name):
    """Returns a number of the messages in the source tree of a folder."""
    header = (folder / "protocol/messages/messages.h").read_text(encoding="utf-8")
    return int(re.search(rf"{name} = (\d+);", header)[1])


def build_earlier():
    """Returns False if there is no earlier commit, or the history lacks it."""
    if not EARLIER:
        return False
    if subprocess.run(["git", "-C", SOURCE, "cat-file", "-e", f"{EARLIER}^{{commit}}"], capture_output=True, check=False).returncode:
        return False
    if not FOLDER.is_dir():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as folder:
            archive = subprocess.Popen(["git", "-C", SOURCE, "archive", f"--prefix={EARLIER}/", EARLIER], stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
            if archive.wait():
                raise RuntimeError(f"git archive {EARLIER} failed")
            os.rename(Path(folder) / EARLIER, FOLDER)
    subprocess.run(["cmake", "--preset", "dev"], cwd=FOLDER, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["cmake", "--build", "--preset", "dev", "--target", "millrace-server", "millrace_command"], cwd=FOLDER,
                   stdout=subprocess.DEVNULL, check=True)
    return True


class Upgrade(ShardsByHand):
    epochs = 30

    def worker_of(self, programs, cluster, model, worker):
        command = [programs / "millrace", *millrace("train", *self.train_flags(cluster, model, worker), "--compute-time", "4ms")[1:]]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def expect_programs_of(self, cluster, *folders):
        """Each shard's process must run the program of its folder."""
        for process, folder in zip(cluster.processes, folders, strict=True):
            self.assertEqual(os.readlink(f"/proc/{process.pid}/exe"), str((folder / "millrace-server").resolve()))

    def test_TheEarlierBuildSpeaksTheOldestVersionThatThisOneTakes(self):
        self.assertEqual(number(FOLDER, "kProtocolVersion"), number(SOURCE, "kProtocolVersionMin"))

    def under_load(self, name, exchange):
        """Exchanges the shards of the earlier build under workers of both builds: calls exchange(cluster, shard) for each."""
        expected = self.undisturbed()
        cluster = self.cluster(self.folder / f"{name}.db", programs=EARLIER_PROGRAMS)
        model = self.folder / name
        workers = [self.worker_of(programs, cluster, model, worker) for worker, programs in enumerate((EARLIER_PROGRAMS, PROGRAMS))]
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        self.expect_programs_of(cluster, EARLIER_PROGRAMS, EARLIER_PROGRAMS)
        for shard in (0, 1):
            cluster.wait_for_steps(20)
            exchange(cluster, shard)
            self.assertEqual(cluster.lines[shard]["incarnation"], 2)
            cluster.wait_for(lambda shard=shard: cluster.status(shard)["jobs"], "the workers do not find the new shard")
        cluster.wait_for_steps(20)
        self.expect_programs_of(cluster, PROGRAMS, PROGRAMS)
        ended = [worker.stderr.read() for worker in workers if worker.poll() is not None]
        self.assertEqual(ended, [], "the shards were exchanged during training")
        self.assertEqual(self.model(workers, model), expected)

    def test_ShardsAreReplacedOneByOneUnderWorkersOfBothBuilds(self):
        def replace(cluster, shard):
            cluster.programs = PROGRAMS
            cluster.kill(shard)
            cluster.start(shard)

        self.under_load("replaced", replace)

    def test_ShardsMoveToSparesOfThisBuildByDrain(self):
        """As OPERATING.md says: a spare of the new build, then `millrace cluster drain`."""
        def drain(cluster, shard):
            spare = cluster.start_spare()
            table = ("--table", cluster.table)
            cluster.wait_for(lambda: json.loads(run("cluster", "status", *table, "--json").stdout)["spares"], "the spare is not in the table")
            before = cluster.processes[shard]
            drained = run("cluster", "drain", shard, *table)
            self.assertEqual(drained.returncode, 0, drained.stderr)
            before.communicate(timeout=TIMEOUT_S)
            self.assertEqual(before.returncode, 0, "a drained process ends in order")
            cluster.becomes(spare, shard)

        self.under_load("drained", drain)


if __name__ == "__main__":
    if not build_earlier():
        print(f"upgrade_test: skipped: this repository's history has no earlier commit that shares a table with this one {EARLIER}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
