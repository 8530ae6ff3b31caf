#!/usr/bin/env python3
"""`millrace doctor` names a bad path between two shards, which its own host does not use.

    doctor_paths_test.py FOLDER_OF_PROGRAMS [unittest arguments]

The shards and the doctor are on hosts of their own (deploy/netlab.sh). Exits 77 (skipped, for ctest) where namespaces cannot be made, or
nft is missing.
"""

import json
import subprocess

from commands import TIMEOUT_S, run
from hosts import address, on_host, run_tests
from shards_by_hand import SHARDS, Cluster, ShardsByHand

DOCTOR = SHARDS + 1  # its host; shard N has host N + 1


def losing(sender):
    """Returns the rules of a host that loses the large packets of a shard: connections succeed, and no transfer ends."""
    return f"""table inet losing {{
  chain losing {{
    type filter hook input priority 0;
    ip saddr {address(sender + 1)} meta length > 1000 counter drop
  }}
}}"""


class BadPaths(ShardsByHand):
    def cluster(self, table, *flags):
        cluster = Cluster(self.folder, table, "--insecure", "--http-insecure", *flags)
        cluster.hosts = [address(shard + 1) for shard in range(SHARDS)]
        cluster.enter = [on_host(shard + 1) for shard in range(SHARDS)]
        self.addCleanup(cluster.end)
        for shard in range(SHARDS):
            cluster.start(shard)
        return cluster

    def test_ABadPathBetweenShardsIsNamed(self):
        subprocess.run(on_host(1, "nft", "-f", "-"), input=losing(1), text=True, check=True, timeout=TIMEOUT_S)
        cluster = self.cluster(self.folder / "table.db")
        ended = run("doctor", "--json", "--table", self.folder / "table.db")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        report = json.loads(ended.stdout)
        bad = [path for path in report["pairs"] if (path["receiver"], path["sender"]) == (0, 1)]
        self.assertEqual(len(bad), 1, report["pairs"])
        self.assertIn("has not arrived", bad[0]["problem"])
        self.assertEqual(len(report["pairs"]), 2)
        named = [check for check in report["checks"] if check["check"] == "bandwidth" and check["subject"] == "shard 1 to shard 0"]
        self.assertEqual([check["verdict"] for check in named], ["warning"], report["checks"])
        self.assertIn("the slowest of 2 paths", named[0]["found"])
        self.assertIn("ethtool", named[0]["change"])
        cluster.end()


if __name__ == "__main__":
    run_tests(__file__, DOCTOR, losing(1))
