#!/usr/bin/env python3
"""`millrace train --path switch`: training by a millrace-switch, which is killed and started again meanwhile.

    train_switch_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""

import json
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

from commands import PROGRAMS, TIMEOUT_S, WithServers, assert_at_switch, made_up_rows, run, start

JOB = 21
WORKERS = 3
WINDOW = 64
SLOTS = 1  # 41 parameters are one window
LANES = 2


def tearDownModule():
    WithSwitch.keys.cleanup()


class WithSwitch(WithServers):
    """Training whose steps a switch decides."""

    keys = tempfile.TemporaryDirectory()
    key = Path(keys.name) / f"{JOB}.key"

    @classmethod
    def setUpClass(cls):
        cls.key.write_text("0123456789abcdef" * 4 + "\n", encoding="utf-8")
        cls.key.chmod(0o600)
        super().setUpClass()

    def start_switch(self, listen="127.0.0.1:0", window=WINDOW, slots=SLOTS, lanes=1):
        """The process and the address of its datagrams. As many lcores as the job has lanes."""
        jobs = self.path("jobs.json", json.dumps({"jobs": [{
            "name": "train", "job": JOB, "key_file": str(self.key), "workers": WORKERS, "window_indices": window, "slots": slots,
            "lanes": lanes}]}))
        process = subprocess.Popen([PROGRAMS / "millrace-switch", "run", "--listen", listen, "--jobs", jobs, "--lcores", str(lanes),
                                    "--http", "127.0.0.1:0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.end_switch, process)
        line = json.loads(process.stdout.readline())
        self.switch_http = line["http"]
        return process, line["addresses"][0]

    def status_of_switch(self):
        with urllib.request.urlopen(f"http://{self.switch_http}/status", timeout=TIMEOUT_S) as answer:
            return json.load(answer)

    def status_of_switch_when(self, holds):
        """Returns the status of the switch that was started last, as soon as `holds` accepts it. Its lcores report
        at different times."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            status = self.status_of_switch()
            if holds(status):
                return status
            self.assertLess(time.monotonic(), deadline, status)

    def job_at_switch_when(self, holds):
        return self.status_of_switch_when(lambda status: holds(status["jobs"][0]))["jobs"][0]

    def end_switch(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)

    def begin(self, address, *more, only=None, job=None):
        data = self.path("switch.svm", made_up_rows(900, 5))
        test = self.path("switch.test.svm", made_up_rows(200, 6))
        flags = ["--train", data, "--test", test, "--batch", 2, "--lr", 0.5, "--audit", "--path", "switch", "--switch-address", f"{address}", "--switch-job", JOB,
                 "--switch-key", self.key, "--switch-slots", 16, "--grid", f"{WINDOW}:-12", "--switch-return-after", "500ms", *more]
        which = range(WORKERS) if only is None else [only]
        return [start("train", *self.flags(worker, WORKERS, job), "--json", "-v", *flags) for worker in which]

    def end(self, processes):
        """All must train to the end with the same weights and balanced audits; returns their results, and their
        messages."""
        results, said = [], []
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_S)
            self.assertEqual(process.returncode, 0, err)
            results.append(json.loads(out.strip().split("\n")[-1]))
            said.append(err)
        for result in results:
            self.assertEqual(result["epochs"][-1]["held_out"], results[0]["epochs"][-1]["held_out"])
            self.assertEqual(result["audit"]["imbalance"], 0, result["audit"])
            self.assertGreater(result["audit"]["checks"], 0)
            self.assertEqual(result["audit"]["in_flight"], 0)
        self.assertGreater(results[0]["epochs"][-1]["held_out"]["accuracy"], 0.8)
        return results, said

    def wait_for_line(self, process, words):
        """Reads the worker's log until a line has `words`."""
        deadline = time.monotonic() + TIMEOUT_S
        before = ""
        while True:
            line = process.stderr.readline()
            if words in line:
                return
            self.assertNotEqual(line, "", f"the worker ended without '{words}': {before}")
            before = line
            self.assertLess(time.monotonic(), deadline)


class Switch(WithSwitch):
    """... or shard 0 in its place, with the same key."""

    serve_flags = ("--job-keys", WithSwitch.keys.name)

    @classmethod
    def setUpClass(cls):
        # In a build whose shards do not take over from a switch, jobs of this path have no fallback.
        if cls.serve_flags[0] not in run("serve", "--help").stdout:
            raise unittest.SkipTest(f"millrace serve has no {cls.serve_flags[0]}")
        super().setUpClass()

    def test_TrainsByTheSwitch(self):
        _, address = self.start_switch()
        results, _ = self.end(self.begin(address, "--epochs", 3))
        for result in results:
            self.assertEqual(result["path"], "switch")
            assert_at_switch(self, result)
            self.assertGreaterEqual(result["switch"]["turns"], result["steps"])
        at_least = results[0]["steps"] // (1 if results[0]["switch"]["fallbacks"] == 0 else 4)
        self.job_at_switch_when(lambda job: job["events"].get("closed", 0) >= at_least)

    def test_AShardReplacesAKilledSwitchUntilItReturns(self):
        switch, address = self.start_switch()
        workers = self.begin(address, "--epochs", 8, "--compute-time", "5ms")
        self.wait_for_line(workers[0], "all 3 workers have joined")
        time.sleep(0.5)  # some steps; how many does not matter
        switch.kill()
        switch.communicate()
        self.wait_for_line(workers[0], "is left: shard 0 decides")
        self.start_switch(listen=address)
        self.wait_for_line(workers[0], "decides again")
        results, _ = self.end(workers)
        for result in results:
            self.assertGreaterEqual(result["switch"]["fallbacks"], 1)
            self.assertGreaterEqual(result["switch"]["came_back"], 1)
            assert_at_switch(self, result)

    def test_TheSwitchCountsRetransmissionsAndSlotsInUse(self):
        _, address = self.start_switch()
        workers = self.begin(address, "--epochs", 8, "--compute-time", "5ms")
        self.wait_for_line(workers[0], "all 3 workers have joined")
        before = self.job_at_switch_when(lambda job: job["events"].get("closed", 0) > 2)
        # The others' turn stays open without it, and they send again.
        workers[2].send_signal(signal.SIGSTOP)
        try:
            held = self.job_at_switch_when(
                lambda job: job["slots_in_use"] == SLOTS and job["retransmissions"] > before["retransmissions"])
        finally:
            workers[2].send_signal(signal.SIGCONT)
        self.assertEqual(held["slots"], SLOTS)
        self.end(workers)
        ended = self.job_at_switch_when(lambda job: job["slots_in_use"] == 0)
        self.assertGreater(ended["packets_in"], held["packets_in"])
        self.assertGreater(ended["packets_in"], ended["retransmissions"])
        for direction in ("in", "out"):
            self.assertGreater(held[f"packets_{direction}"], 2 * WORKERS)
            self.assertGreaterEqual(held[f"bytes_{direction}"], 80 * held[f"packets_{direction}"], "header and MAC")

    def test_AJobOfTwoLanesOutlivesItsSwitchAndAWorker(self):
        # 1,000 features are 16 windows: eight in each lane.
        data, test = (self.path(name, "\n".join(f"{row} 1000:0.01" for row in made_up_rows(count, seed).splitlines()) + "\n")
                      for name, count, seed in (("lanes.svm", 900, 5), ("lanes.test.svm", 200, 6)))
        of_two = {"slots": 4, "lanes": LANES}
        switch, address = self.start_switch(**of_two)
        flags = ["--train", data, "--test", test, "--batch", 2, "--lr", 0.5, "--audit", "--path", "switch", "--switch-address", f"{address}", "--switch-job", JOB,
                 "--switch-key", self.key, "--switch-slots", 4, "--switch-lanes", LANES, "--grid", f"{WINDOW}:-12", "--switch-return-after",
                 "500ms", "--epochs", 12, "--compute-time", "5ms"]
        begin = lambda worker, *more: start("train", *self.flags(worker, WORKERS, None), "--json", "-v", *flags, *more)
        workers = [begin(worker) for worker in range(WORKERS)]
        self.wait_for_line(workers[0], "all 3 workers have joined")
        # Both lcores have windows of the job, and each packet comes to the one of its lane.
        status = self.status_of_switch_when(lambda status: all(lcore["events"].get("closed", 0) > 10 for lcore in status["lcores"]))
        self.assertEqual((status["jobs"][0]["lanes"], status["jobs"][0]["slots"]), (LANES, 4))
        for lcore in status["lcores"]:
            self.assertNotIn("wrong_job", lcore["events"])
        switch.kill()
        switch.communicate()
        self.wait_for_line(workers[0], "is left: shard 0 decides")
        self.start_switch(listen=address, **of_two)
        self.wait_for_line(workers[0], "decides again")
        workers[2].kill()
        workers[2].communicate()
        workers[2] = begin(2, "--state", self.path("lanes.state"))
        results, said = self.end(workers)
        self.assertIn("this worker continues from there", said[2])
        for result in results:
            assert_at_switch(self, result)

    def test_AWorkerThatIsKilledIsLeftOut(self):
        _, address = self.start_switch()
        workers = self.begin(address, "--epochs", 4, "--compute-time", "2ms", "--workers-min", 2)
        self.wait_for_line(workers[0], "all 3 workers have joined")
        workers[2].kill()
        workers[2].communicate()
        self.end(workers[:2])

    def test_AKilledWorkerRejoinsByTheSameCommand(self):
        _, address = self.start_switch()
        workers = self.begin(address, "--epochs", 12, "--compute-time", "5ms")
        self.wait_for_line(workers[0], "all 3 workers have joined")
        time.sleep(0.5)
        workers[2].kill()
        workers[2].communicate()
        # Its number is free once it has been silent for two heartbeats; the same command, with a state that it never wrote.
        workers[2] = self.begin(address, "--epochs", 12, "--compute-time", "5ms", "--state", self.path("two.state"), only=2)[0]
        results, said = self.end(workers)
        self.assertIn("this worker continues from there", said[2])
        assert_at_switch(self, results[2])
        self.assertGreater(results[2]["switch"]["turns"], 10)
        self.assertLess(results[2]["steps"], results[0]["steps"])

    def test_AJobTrainsAfterAnEarlierJobOfItsNumber(self):
        _, address = self.start_switch()
        first, _ = self.end(self.begin(address, "--epochs", 2, job="first"))
        closed = self.job_at_switch_when(lambda job: job["events"].get("closed", 0) > 0 and job["slots_in_use"] == 0)["events"]["closed"]
        second, _ = self.end(self.begin(address, "--epochs", 2, job="second"))
        self.assertEqual(second[0]["epochs"][-1]["held_out"], first[0]["epochs"][-1]["held_out"])
        for result in second:
            assert_at_switch(self, result)
        self.job_at_switch_when(lambda job: job["events"]["closed"] > closed)

    def test_PathSwitchRefusesInvalidOptions(self):
        _, address = self.start_switch()
        data = self.path("refused.svm", made_up_rows(20, 5))
        path = ["--train", data, "--path", "switch", "--switch-address", f"{address}", "--switch-job", JOB]
        self.refused(2, "switch_key_file", "train", *self.flags(), *path)
        self.refused(2, "path switch is for mode synchronous", "train", *self.flags(), *path, "--switch-key", self.key, "--staleness", 1)
        self.refused(2, "initial_weights first", "train", *self.flags(), *path, "--switch-key", self.key, "--initial-weights", "first")


class WithoutAFallback(WithSwitch):
    """Shards that know nothing of the switch: not even that two jobs have one number there."""

    def test_AJobWaitsForAnotherOfItsNumberAndForAKilledOnesLease(self):
        _, address = self.start_switch()
        first = self.begin(address, "--epochs", 6, "--compute-time", "5ms", job="runs")
        self.wait_for_line(first[0], "all 3 workers have joined")
        time.sleep(0.5)  # some steps; how many does not matter
        second = self.begin(address, "--epochs", 60, "--compute-time", "20ms", job="waits")
        self.end(first)
        self.wait_for_line(second[0], "all 3 workers have joined")
        time.sleep(2)  # it is killed in some step, or before its first one: either is right
        for process in second:
            process.kill()
            process.communicate()
        results, _ = self.end(self.begin(address, "--epochs", 2, job="comes-last"))
        for result in results:
            self.assertTrue(result["switch"]["at_switch"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
