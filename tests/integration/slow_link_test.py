#!/usr/bin/env python3
"""A worker behind a link that needs longer for a step than a connection may be silent: each byte crosses the link once.

    slow_link_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]

The shard is on a host of its own (deploy/netlab.sh). Exits 77 (skipped, for ctest) where namespaces or NumPy are missing.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S
from hosts import SKIPPED, address, on_host, run_tests

SHARD, HOSTS = 1, 2
RATE, BYTES_A_S = "16mbit", 2e6
ENTRIES = 3_000_000
SILENT_S = 4  # by default a connection that is silent for 4 heartbeats is made again
PACKAGE = sys.argv.pop(1) if len(sys.argv) > 1 and "/" in sys.argv[1] else "build/dev/python"
SPARE = 1.1  # of the bytes of the values: headers of messages and containers, heartbeats


class SlowLink(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        command = [PROGRAMS / "millrace-server", "--shard", 0, "--shards", 1, "--listen", f"{address(SHARD)}:0", "--insecure",
                   "--table", Path(self.folder.name) / "table.db", "--drain", "0s", "--json"]
        self.shard = subprocess.Popen([*on_host(SHARD), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.end_shard)
        self.server = json.loads(self.shard.stdout.readline())["address"]

    def end_shard(self):
        self.shard.terminate()
        self.shard.wait(timeout=TIMEOUT_S)
        self.shard.stdout.close()

    def test_AStepAndAPullLongerThanASilenceCrossTheLinkOnce(self):
        self.assertGreater(4 * ENTRIES / BYTES_A_S, 1.2 * SILENT_S)
        job = millrace.JobConfig(name="slow", workers=1, select="none", store="sgd:1", store_begin="worker")
        me = millrace.WorkerConfig(shards=[self.server])
        with millrace.Session(job, me, [millrace.Tensor("w", ENTRIES)]) as session:
            weights = np.arange(ENTRIES, dtype=np.float32)
            session.place_weights([weights], timeout=TIMEOUT_S)
            step = session.push("w", np.full(ENTRIES, 2, np.float32), timeout=TIMEOUT_S)
            session.wait("w", step, timeout=TIMEOUT_S)
            pulled = np.empty_like(weights)
            session.pull("w", pulled, timeout=TIMEOUT_S)
            np.testing.assert_array_equal(pulled, weights - 2)
            session.pull_range("w", 0, pulled[:1], timeout=TIMEOUT_S)  # behind the second copies, if there are any
            stats = session.stats()
            self.assertEqual((stats.reconnects, stats.resends), (0, 0))
            self.assertLess(stats.bytes_up, SPARE * 2 * 4 * ENTRIES, "the weights and the gradient")
            self.assertLess(stats.bytes_down, SPARE * 2 * 4 * ENTRIES, "the update and the weights")
            session.finish(timeout=TIMEOUT_S)


if __name__ == "__main__":
    if importlib.util.find_spec("numpy") is None:
        print("skipped: this Python has no NumPy (Debian's package python3-numpy)")
        sys.exit(SKIPPED)
    sys.dont_write_bytecode = True
    sys.path.insert(0, PACKAGE)
    import millrace
    import numpy as np
    run_tests(__file__, HOSTS, None, RATE, [PACKAGE])
