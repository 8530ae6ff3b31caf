#!/usr/bin/env python3
"""`millrace train --path switch --reproducible` over links that lose packets, or mark them: the same model, to the bit, as
without, and as by the servers.

    switch_loss_test.py FOLDER_OF_PROGRAMS [unittest arguments]

Every process is in a network namespace of its own (deploy/netlab.sh). Exits 77 (skipped, for ctest) where namespaces cannot be made,
or nft cannot lose packets.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from commands import NETLAB, PROGRAMS, TIMEOUT_S, assert_at_switch, millrace

PREFIX = f"sl{os.getpid() % 100000}"
SERVERS, SWITCH, FIRST_WORKER = 1, 2, 3  # hosts
WORKERS = 3
HOSTS = FIRST_WORKER + WORKERS - 1
FEATURES = 30_000
WINDOW = 4_096  # the exact sums of an f32: 5,376 at most
SLOTS = 4       # of the 8 windows, so that slots have several turns a step
JOB = 31


def netlab(*arguments):
    return subprocess.run([NETLAB, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


def on_host(host, *command):
    return [str(NETLAB), "exec", PREFIX, str(host), "--", *map(str, command)]


def rows_of_words(rows, seed):
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = sorted({1 + int(draw.random() ** 3 * FEATURES) for _ in range(30)})
        label = 1 if sum(word % 2 for word in words) * 2 > len(words) else -1
        # Values of many magnitudes: sums of floats depend on their order.
        lines.append(" ".join([str(label)] + [f"{word}:{10 ** draw.uniform(-3, 1):.6g}" for word in words]))
    return "\n".join(lines) + "\n"


class SwitchLoss(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.addClassCleanup(netlab, "down", PREFIX)
        made = netlab("up", PREFIX, HOSTS, "1gbit")
        if made.returncode != 0:
            raise AssertionError(made.stderr)
        cls.data = cls.file("train.svm", rows_of_words(1_200, 1))
        cls.key = cls.file(f"{JOB}.key", "0123456789abcdef" * 4 + "\n")
        cls.key.chmod(0o600)
        cls.jobs = cls.file("jobs.json", json.dumps({"jobs": [{
            "name": "lossy", "job": JOB, "key_file": str(cls.key), "workers": WORKERS, "window_indices": WINDOW, "slots": SLOTS}]}))
        cls.runs = 0

    @classmethod
    def file(cls, name, text):
        path = Path(cls.folder.name) / name
        path.write_text(text, encoding="ascii")
        return path

    def begin(self, host, *command):
        """A process that says in one line of JSON that it is ready, and ends with the test."""
        process = subprocess.Popen(on_host(host, *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        def end():
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=240), 0)
            process.stdout.close()

        self.addCleanup(end)
        return json.loads(process.stdout.readline())

    def lost_packets(self):
        """Pieces, and their bytes."""
        lost, lost_bytes = 0, 0
        for host in range(1, HOSTS + 1):
            rules = subprocess.run(on_host(host, "nft", "list", "ruleset"), capture_output=True, text=True, check=True).stdout
            for packets, count in re.findall(r"counter packets (\d+) bytes (\d+)", rules):
                lost, lost_bytes = lost + int(packets), lost_bytes + int(count)
        return lost, lost_bytes

    def model(self, loss, path=()):
        """Returns the model's bytes, and the workers' reports. All processes are new, the loss begins with the
        workers."""
        type(self).runs += 1
        out = Path(self.folder.name) / f"model-{self.runs}"
        servers = self.begin(SERVERS, *millrace("serve", "--insecure", "--http-insecure", "--shards", 2, "--listen", f"10.77.0.{SERVERS}:0", "--http", f"10.77.0.{SERVERS}:0", "--json",
                                                "--job-keys", self.folder.name))["servers"]
        if path:
            address = self.begin(SWITCH, PROGRAMS / "millrace-switch", "run", "--listen", f"10.77.0.{SWITCH}:0", "--jobs", self.jobs,
                                 "--json")["addresses"][0]
            path = ["--path", "switch", "--switch-address", address, *path]
        self.assertEqual(netlab("lose", PREFIX, *str(loss).split()).returncode, 0)
        running = []
        for worker in range(WORKERS):
            running.append(subprocess.Popen(
                on_host(FIRST_WORKER + worker, *millrace(
                    "train", "--servers", servers, "--job", f"run-{self.runs}", "--worker", worker, "--workers", WORKERS, "--train", self.data,
                    "--epochs", 2, "--batch", 20, "--lr", 0.05, "--audit", "--select", "topk:0.02", "--reproducible", "--grid",
                    f"{WINDOW}:-20", "--json", *path, *(["-o", out] if worker == 0 else []))),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        results = []
        for process in running:
            said, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            results.append(json.loads(said.strip().split("\n")[-1]))
        self.lost, self.lost_bytes = self.lost_packets()
        netlab("lose", PREFIX, 0)
        for result in results:
            self.assertEqual(result["audit"]["imbalance"], 0, result["audit"])
        return out.read_bytes(), results

    def by_switch(self, loss):
        model, results = self.model(loss, ["--switch-job", JOB, "--switch-key", self.key, "--switch-slots", SLOTS,
                                           "--switch-codec", "gap+fixed32"])
        for result in results:
            assert_at_switch(self, result)
        return model, [result["switch"] for result in results]

    def mark(self, hosts):
        """Marks half of the markable UDP packets to these hosts [RFC3168], from now on to the end of the test."""
        rules = """table inet marks {
  chain marks {
    type filter hook input priority 0;
    meta l4proto udp ip ecn ect0 numgen random mod 2 < 1 ip ecn set ce
  }
}"""
        for host in hosts:
            self.addCleanup(subprocess.run, on_host(host, "nft", "delete", "table", "inet", "marks"), check=False, stderr=subprocess.DEVNULL)
            made = subprocess.run(on_host(host, "nft", "-f", "-"), input=rules, capture_output=True, text=True, check=False)
            self.assertEqual(made.returncode, 0, made.stderr)

    def test_LossChangesNoBitOfTheModel(self):
        by_servers, _ = self.model(0)
        without_loss, switch = self.by_switch(0)
        self.assertEqual(without_loss, by_servers, "by the switch, and by the servers")
        self.assertEqual([worker["congestion_marks"] for worker in switch], [0] * WORKERS)
        for loss in (0.01, 0.05, "0.05 bursts"):
            with self.subTest(loss=loss):
                model, switch = self.by_switch(loss)
                self.assertGreater(self.lost, 0, "nothing was lost: this run says nothing")
                self.assertGreater(sum(worker["resends"] for worker in switch), 0)
                self.assertEqual(model, by_servers)

    def test_MarksAreHeardByAllWorkersAndChangeNoBit(self):
        by_servers, _ = self.model(0)
        for way, hosts in {"to the switch": [SWITCH], "to the workers": range(FIRST_WORKER, HOSTS + 1)}.items():
            with self.subTest(way=way):
                self.mark(hosts)
                model, switch = self.by_switch(0)
                self.doCleanups()
                for worker in switch:
                    self.assertGreater(worker["congestion_marks"], worker["turns"] // 20, worker)
                self.assertEqual(model, by_servers)


def skip_reason():
    checked = netlab("check")
    if checked.returncode != 0:
        return checked.stderr.strip() or "no network namespaces"
    try:
        made = netlab("up", PREFIX, 1, "none")
        lossy = netlab("lose", PREFIX, 0.01) if made.returncode == 0 else made
    finally:
        netlab("down", PREFIX)
    return None if lossy.returncode == 0 else lossy.stderr.strip()


if __name__ == "__main__":
    reason = skip_reason()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
