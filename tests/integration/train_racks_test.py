#!/usr/bin/env python3
"""`millrace train --path switch --switch-address HOST:PORT --rack HOST:PORT`: training through two racks' switches, each adding up two workers in front of shard 0 (or of a
switch that decides). Real processes and sockets on loopback; one rack is killed and started again meanwhile.

    train_racks_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import random
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, WithServers, assert_at_switch, start
from reserved_ports import ReservedPorts

JOB = 23
RACKS = [[0, 1], [2, 3]]
WORKERS = 4
FEATURES = 6_000
WINDOW = 1024
SLOTS = 6  # 6,001 parameters are six windows


def rows_of_words(rows, seed):
    """Word w says its parity's label; values of several magnitudes."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = sorted({1 + int(draw.random() ** 3 * FEATURES) for _ in range(30)})
        label = 1 if sum(word % 2 for word in words) * 2 > len(words) else -1
        lines.append(" ".join([str(label)] + [f"{word}:{10 ** draw.uniform(-1, 0):.6g}" for word in words]))
    return "\n".join(lines) + "\n"


def status_of(address):
    with urllib.request.urlopen(f"http://{address}/status", timeout=120) as answer:
        return json.load(answer)


class Racks(WithServers):
    keys = tempfile.TemporaryDirectory()
    key = Path(keys.name) / f"{JOB}.key"
    ports = ReservedPorts(1, socket.SOCK_DGRAM)
    shard = f"127.0.0.1:{ports.numbers[0]}"  # of shard 0's datagrams
    serve_flags = ("--job-keys", keys.name, "--datagrams", shard)

    @classmethod
    def setUpClass(cls):
        cls.key.write_text("fedcba9876543210" * 4 + "\n", encoding="utf-8")
        cls.key.chmod(0o600)
        cls.key.with_suffix(".racks").write_text(json.dumps({"racks": RACKS}), encoding="utf-8")
        super().setUpClass()
        cls.data = Path(cls.folder.name) / "train.svm"
        cls.data.write_text(rows_of_words(1_600, 1), encoding="ascii")
        cls.test = Path(cls.folder.name) / "test.svm"
        cls.test.write_text(rows_of_words(400, 2), encoding="ascii")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.ports.close()
        cls.keys.cleanup()

    def start_switch(self, name, listen="127.0.0.1:0", **job):
        """Process, address of its datagrams, address of its status page."""
        described = {"name": "train", "job": JOB, "key_file": str(self.key), "workers": WORKERS, "window_indices": WINDOW, "slots": SLOTS}
        jobs = self.path(f"{name}.json", json.dumps({"jobs": [described | job]}))
        process = subprocess.Popen([PROGRAMS / "millrace-switch", "run", "--listen", listen, "--jobs", jobs, "--http", "127.0.0.1:0",
                                    "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end_switch, process)
        said = json.loads(process.stdout.readline())
        return process, said["addresses"][0], said["http"]

    def start_rack(self, number, listen="127.0.0.1:0", shard=None, **job):
        return self.start_switch(f"rack-{number}", listen, role="combine", rack=RACKS[number], rack_number=number,
                                 shard=shard or self.shard, **job)

    def end_switch(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def end_worker(self, process):
        """Of a test that failed: the next one's job has the same number at shard 0."""
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=TIMEOUT_S)

    def begin(self, job, racks, *more, path=None):
        """All workers; `racks`: addresses, or none."""
        flags = ["--train", self.data, "--test", self.test, "--batch", 20, "--lr", 0.3, "--audit", "--grid", f"{WINDOW}:-20", *more]
        by_switch = path != "server"
        if by_switch:
            flags += ["--switch-job", JOB, "--switch-key", self.key, "--switch-slots", SLOTS,
                      "--switch-return-after", "300ms"]
        running = []
        for worker in range(WORKERS):
            own = ["--path", "switch", "--switch-address", path or self.shard, *(["--rack", racks[0 if worker in RACKS[0] else 1]] if racks else [])]
            own = own if by_switch else []
            own += ["-o", self.path(f"{job}.model")] if worker == 0 else []
            running.append(start("train", *self.flags(worker, WORKERS, job), "--json", "-v", *flags, *own))
            self.addCleanup(self.end_worker, running[-1])
        return running

    def end(self, processes):
        """All must train to the end with the same weights and balanced books."""
        results = []
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            results.append(json.loads(out.strip().split("\n")[-1]))
        for result in results:
            self.assertEqual(result["epochs"][-1]["held_out"], results[0]["epochs"][-1]["held_out"])
            self.assertEqual(result["audit"]["imbalance"], 0, result["audit"])
            self.assertGreater(result["audit"]["checks"], 0)
            self.assertEqual(result["audit"]["in_flight"], 0)
        return results

    def model(self, job):
        return self.path(f"{job}.model").read_bytes()

    def rack(self, http):
        return status_of(http)["jobs"][0]

    def at_shard(self):
        """What shard 0 says of its aggregator; None: it serves no job of this path."""
        jobs = status_of(self.cluster["shards"][0]["http"])["jobs"]
        found = [job["switch_path"]["aggregator"] for job in jobs if "switch_path" in job]
        return found[0] if found else None

    def wait_until(self, condition, what):
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def test_ThroughRacksTheModelIsTheSameToTheBit(self):
        flags = ["--reproducible", "--epochs", 2, "--select", "topk:0.05"]
        self.end(self.begin("by-shards", None, *flags, path="server"))
        flags += ["--switch-codec", "gap+fixed32"]  # of path switch; the other one does not look at it
        self.end(self.begin("past-racks", None, *flags))
        racks = [self.start_rack(number) for number in (0, 1)]
        results = self.end(self.begin("by-racks", [address for _, address, _ in racks], *flags))
        self.assertEqual(self.model("by-shards"), self.model("past-racks"))
        self.assertEqual(self.model("by-shards"), self.model("by-racks"))
        for result in results:
            assert_at_switch(self, result)
        for number, (_, _, http) in enumerate(racks):
            # A status page's numbers of a lane are up to 100 ms old, as long as this job takes.
            self.wait_until(lambda: self.rack(http)["events"].get("group_sent", 0) >= results[0]["steps"], "the rack summed up little")
            said = self.rack(http)
            self.assertEqual(said["role"], "combine")
            self.assertEqual(said["rack"]["workers"], RACKS[number])
            self.assertEqual(said["rack"]["number"], number)
            self.assertEqual(said["rack"]["shard"], self.shard)
            self.assertEqual(said["rack"]["uplink"], "welcome")
            self.assertGreater(said["rack"]["entries_kept"], 0)
            self.assertEqual(said["rack"]["entries_cut"], 0)
            self.assertGreater(said["rack"]["bytes_up"], 64 * said["rack"]["packets_up"])

    def test_WithReselectionAtTheRacksItTrainsAsWell(self):
        flags = ["--epochs", 3, "--select", "topk:0.05"]
        straight = self.end(self.begin("straight", None, *flags))
        k = int(0.05 * FEATURES)
        racks = [self.start_rack(number, reselect_k=k // 2) for number in (0, 1)]
        cut = self.end(self.begin("cut", [address for _, address, _ in racks], *flags))
        loss = [run[0]["epochs"][-1]["held_out"]["log_loss"] for run in (straight, cut)]
        self.assertLessEqual(abs(loss[1] - loss[0]), 0.02 * loss[0] + 0.01, loss)
        for _, _, http in racks:
            self.wait_until(lambda: self.rack(http)["events"].get("reselected", 0) > 0, "the rack cut nothing")
            said = self.rack(http)
            self.assertGreater(said["rack"]["entries_cut"], said["rack"]["entries_kept"] // 4)

    def test_ASecondJobOfTheSameNumberGoesThroughTheSameRacks(self):
        _, decider, _ = self.start_switch("decider", racks=RACKS)
        for name, path, shard in (("by-shard", None, None), ("by-switch", decider, decider)):
            racks = [self.start_rack(number, shard=shard) for number in (0, 1)]
            before = 0
            for job in ("first", "second"):
                # Longer than a rack waits before it takes the number for free.
                flags = ["--reproducible", "--epochs", 5, "--compute-time", "25ms", "--select", "topk:0.05", "--switch-codec", "gap+fixed32"]
                results = self.end(self.begin(f"{name}-{job}", [address for _, address, _ in racks], *flags, path=path))
                for result in results:
                    assert_at_switch(self, result)
                http = racks[0][2]
                self.wait_until(lambda: self.rack(http)["events"].get("group_sent", 0) > before + 50,
                                f"the rack summed up little of the {job} job")
                before = self.rack(http)["events"]["group_sent"]
            self.assertEqual(self.model(f"{name}-first"), self.model(f"{name}-second"))
        self.assertEqual(self.model("by-shard-first"), self.model("by-switch-first"))

    def test_WorkersBypassAKilledRackAndReturnToIt(self):
        racks = [self.start_rack(number, reselect_k=200) for number in (0, 1)]
        workers = self.begin("killed", [address for _, address, _ in racks], "--epochs", 40, "--select", "topk:0.05", "--compute-time", "5ms")
        killed, address, http = racks[0]
        self.wait_until(lambda: self.rack(http)["events"].get("group_sent", 0) > 50, "the rack sums up nothing")
        killed.kill()
        killed.communicate()
        turns = self.at_shard()["turns"]
        self.wait_until(lambda: self.at_shard()["turns"] > turns + 100, "the job stalls without its rack")
        _, _, http = self.start_rack(0, listen=address, reselect_k=200)
        self.wait_until(lambda: self.rack(http)["events"].get("group_sent", 0) > 50, "the rack's workers do not rejoin")
        results = self.end(workers)
        for result in results:
            assert_at_switch(self, result)  # the decider was never away
        self.assertLess(results[0]["epochs"][-1]["loss"], 0.8 * results[0]["epochs"][0]["loss"])

    def test_AShardReplacesADecidingSwitchUntilTheSwitchReturns(self):
        switch, decider, _ = self.start_switch("decider", racks=RACKS)
        racks = [self.start_rack(number, shard=decider) for number in (0, 1)]
        workers = self.begin("two-levels", [address for _, address, _ in racks], "--epochs", 40, "--select", "topk:0.05", "--compute-time", "5ms",
                             path=decider)
        http = racks[0][2]
        self.wait_until(lambda: self.rack(http)["events"].get("group_sent", 0) > 50, "the rack sums up nothing")
        switch.kill()
        switch.communicate()
        # Racks hand their sums to the switch alone: while shard 0 takes over, their workers send straight to shard 0.
        self.wait_until(lambda: self.at_shard()["turns"] > 100, "shard 0 does not take over")
        self.start_switch("decider", listen=decider, racks=RACKS)
        sent = self.rack(http)["events"]["group_sent"]
        self.wait_until(lambda: self.rack(http)["events"]["group_sent"] > sent + 50, "nothing comes by the rack again")
        for result in self.end(workers):
            self.assertGreaterEqual(result["switch"]["fallbacks"], 1)
            self.assertGreaterEqual(result["switch"]["came_back"], 1)

    def test_RefusesWhatCannotBe(self):
        more = ["--train", self.data, "--switch-job", JOB, "--switch-key", self.key]
        for path, sentence in ((["switch", "--rack", self.shard], "give the rack's own"), (["swich"], "did you mean 'switch'?")):
            self.refused(2, sentence, "train", *self.flags(), *more, "--switch-address", self.shard, "--path", *path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
