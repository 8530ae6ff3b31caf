#!/usr/bin/env python3
"""Two versions in one cluster: shards change from an earlier version to this build under load, one after the other.

    upgrade_test.py FOLDER_OF_PROGRAMS SOURCE_TREE [unittest arguments]

Builds the earlier version from this repository's history in build/earlier: some minutes at first. Exits 77 where the
repository has no such commit (a shallow clone, an archive), or none shares a membership table with this build.
"""

import subprocess
import sys
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(2))

from commands import PROGRAMS, TIMEOUT_S, millrace  # pylint: disable=wrong-import-position
from shards_by_hand import ShardsByHand  # pylint: disable=wrong-import-position

# The first commit that CI passed whose messages, job specification, job record and tables have the numbers of today. A
# change after which the two cannot share a job (protocol/wire/versions.md) names a later commit here. Empty: there is
# none yet; tables of version 3 came after 0.1.0.
EARLIER, EARLIER_VERSION = "", "0.1.0"
FOLDER = SOURCE / "build/earlier"
EARLIER_PROGRAMS = FOLDER / "build/dev/bin"
SKIPPED = 77


def build_earlier():
    """Returns False if there is no earlier version, or the history lacks it."""
    if not EARLIER:
        return False
    if subprocess.run(["git", "-C", SOURCE, "cat-file", "-e", f"{EARLIER}^{{commit}}"], capture_output=True, check=False).returncode:
        return False
    if not FOLDER.is_dir():
        FOLDER.mkdir(parents=True)
        archive = subprocess.Popen(["git", "-C", SOURCE, "archive", EARLIER], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", FOLDER], stdin=archive.stdout, check=True)
        if archive.wait():
            raise RuntimeError(f"git archive {EARLIER} failed")
    subprocess.run(["cmake", "--preset", "dev"], cwd=FOLDER, stdout=subprocess.DEVNULL, check=True)
    subprocess.run(["cmake", "--build", "--preset", "dev", "--target", "millrace-server", "millrace_command"], cwd=FOLDER,
                   stdout=subprocess.DEVNULL, check=True)
    return True


class Upgrade(ShardsByHand):
    epochs = 30

    def worker_of(self, programs, cluster, model, worker):
        command = [programs / "millrace", *millrace("train", *self.train_flags(cluster, model, worker), "--compute-time", "4ms")[1:]]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_ShardsAreReplacedOneByOneUnderWorkersOfBothVersions(self):
        expected = self.undisturbed()
        cluster = self.cluster(self.folder / "upgrade.db", programs=EARLIER_PROGRAMS)
        model = self.folder / "upgraded"
        workers = [self.worker_of(programs, cluster, model, worker) for worker, programs in enumerate((EARLIER_PROGRAMS, PROGRAMS))]
        cluster.wait_for(lambda: cluster.status(0)["jobs"] and cluster.status(1)["jobs"], "the job does not begin")
        cluster.programs = PROGRAMS
        for shard in (0, 1):
            cluster.wait_for_steps(20)
            cluster.kill(shard)
            cluster.start(shard)
            self.assertEqual(cluster.lines[shard]["incarnation"], 2)
            cluster.wait_for(lambda shard=shard: cluster.status(shard)["jobs"], "the workers do not find the new shard")
        cluster.wait_for_steps(20)
        ended = [worker.stderr.read() for worker in workers if worker.poll() is not None]
        self.assertEqual(ended, [], "the shards were replaced during training")
        self.assertEqual(self.model(workers, model), expected)

    def test_TheEarlierVersionIsAnother(self):
        said = [subprocess.run([programs / "millrace-server", "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
                for programs in (EARLIER_PROGRAMS, PROGRAMS)]
        self.assertIn(EARLIER_VERSION, said[0])
        self.assertNotIn(EARLIER_VERSION, said[1])


if __name__ == "__main__":
    if not build_earlier():
        print(f"upgrade_test: skipped: this repository's history has no earlier version that shares a table with this one {EARLIER}")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
