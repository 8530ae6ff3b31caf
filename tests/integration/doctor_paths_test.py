#!/usr/bin/env python3
"""`millrace doctor` names a bad path between two shards, which its own host does not use.

    doctor_paths_test.py FOLDER_OF_PROGRAMS [unittest arguments]

The shards and the doctor are on hosts of their own (deploy/netlab.sh). Exits 77 (skipped, for ctest) where namespaces cannot be made, or
nft is missing.
"""

import json
import os
import shutil
import subprocess
import sys
import unittest

PREFIX = os.environ.get("NETLAB_PREFIX", "")  # set on the hosts
ARGUMENTS = sys.argv[1:]

from commands import NETLAB, TIMEOUT_S, run
from shards_by_hand import SHARDS, Cluster, ShardsByHand

DOCTOR = SHARDS + 1  # its host; the shards have the ones before


def address(shard):
    return f"10.77.0.{shard + 1}"


def losing(sender):
    """Returns the rules of a host that loses the large packets of a shard: connections succeed, and no transfer ends."""
    return f"""table inet losing {{
  chain losing {{
    type filter hook input priority 0;
    ip saddr {address(sender)} meta length > 1000 counter drop
  }}
}}"""


def on_host(shard, *command):
    return ["ip", "netns", "exec", f"{PREFIX}-{shard + 1}", *command]


class BadPaths(ShardsByHand):
    def cluster(self, table, *flags):
        cluster = Cluster(self.folder, table, "--insecure", "--http-insecure", *flags)
        cluster.hosts = [address(shard) for shard in range(SHARDS)]
        cluster.enter = [on_host(shard) for shard in range(SHARDS)]
        self.addCleanup(cluster.end)
        for shard in range(SHARDS):
            cluster.start(shard)
        return cluster

    def test_ABadPathBetweenShardsIsNamed(self):
        subprocess.run(on_host(0, "nft", "-f", "-"), input=losing(1), text=True, check=True, timeout=TIMEOUT_S)
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


def on_hosts():
    """Runs this script again on the doctor's host. Returns its exit code."""
    again = f'exec "$0" exec "$NETLAB_PREFIX" {DOCTOR} -- "$@"'
    return subprocess.run([NETLAB, "run", str(DOCTOR), "none", "--", "bash", "-c", again, NETLAB, sys.executable, __file__, *ARGUMENTS], check=False).returncode


def skip_reason():
    if not shutil.which("nft"):
        return "'nft' is missing: run deploy/setup.sh (package nftables)"
    able = subprocess.run([NETLAB, "check"], capture_output=True, text=True, check=False)
    if able.returncode:
        return able.stderr.strip()
    lose = 'exec ip netns exec "$NETLAB_PREFIX-1" nft "$0"'
    able = subprocess.run([NETLAB, "run", "1", "none", "--", "bash", "-c", lose, losing(1)], capture_output=True, text=True, check=False)
    return f"the kernel cannot drop large packets: {able.stderr.strip()}" if able.returncode else None


if __name__ == "__main__":
    if PREFIX:
        unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
    reason = skip_reason()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    sys.exit(on_hosts())
